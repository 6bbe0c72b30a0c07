"""Settings that are valid alone and contradict each other: names twice, shares above 100 %.

Takes a validated ``Config``; lists each contradiction with the key path of the setting to change.
"""

from __future__ import annotations

from collections.abc import Iterator

from hmd.config.schema import Config
from hmd.quantities import Amount, format_amount, format_duration, format_share
from hmd.yaml_document import KeyPath

Contradiction = tuple[KeyPath, str]


def contradictions(config: Config) -> list[Contradiction]:
    """Return every contradiction, in the order of the file's sections."""
    return [*_ticks(config), *_tiers(config), *_names(config), *_limits(config), *_shares(config)]


def _ticks(config: Config) -> Iterator[Contradiction]:
    default = Config.model_fields["tick_most"].default
    if config.tick_most < config.tick and config.tick_most != default:
        least, most = format_duration(config.tick), format_duration(config.tick_most)
        yield ("tick_most",), f"{most} is below the tick of {least}"


def _tiers(config: Config) -> Iterator[Contradiction]:
    seen: set[int] = set()
    for tier, members in enumerate(config.machine.tiers or ()):
        if not members:
            yield ("machine", "tiers", tier), "an empty tier; name its nodes, or remove it"
        for index, node in enumerate(members):
            if node in seen:
                yield ("machine", "tiers", tier, index), f"node {node} is named twice"
            seen.add(node)


def _names(config: Config) -> Iterator[Contradiction]:
    first: dict[str, int] = {}
    for index, target in enumerate(config.targets):
        if target.name in first:
            text = f"{target.name!r} is already the name of targets[{first[target.name]}]"
            yield ("targets", index, "name"), text
        first.setdefault(target.name, index)


def _limits(config: Config) -> Iterator[Contradiction]:
    for index, target in enumerate(config.targets):
        if exceeds(target.fast_min, target.fast_max):
            least, most = format_amount(target.fast_min), format_amount(target.fast_max)
            yield ("targets", index, "fast_min"), f"{least} is above the fast_max of {most}"


def exceeds(least: Amount, most: Amount) -> bool:
    """Return True where ``least`` exceeds ``most``; a size and a share cannot be compared here."""
    if least.share is not None and most.share is not None:
        return least.share > most.share
    return least.size is not None and most.size is not None and least.size > most.size


def _shares(config: Config) -> Iterator[Contradiction]:
    total = 0.0
    for index, target in enumerate(config.targets):
        share = target.fast_min.share or 0.0
        if share and round(total + share, 9) > 1.0:
            yield (
                ("targets", index, "fast_min"),
                f"with those above, the targets' fast_min is {format_share(total + share)} of the"
                " fastest tier; 100% at most",
            )
            return
        total += share
