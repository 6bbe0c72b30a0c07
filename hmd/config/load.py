# SPDX-License-Identifier: MIT
"""Loading of a configuration file and its drop-ins; every mistake is reported with its line.

So are settings that are valid alone and contradict each other: names twice, shares above 100 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hmd.base.config_section import UNITS_REQUIRED, describe_error
from hmd.base.errors import ConfigError
from hmd.base.paths import CONFIG_FILE
from hmd.base.quantities import Amount, format_amount, format_duration, format_percent
from hmd.base.yaml_document import (
    KeyPath,
    Mapping,
    locate,
    merge,
    parse_document,
    read_document,
    values,
    written,
)
from hmd.config.schema import Config

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
        if target.per_cgroup and not target.cgroup:
            yield ("targets", index, "per_cgroup"), "set cgroup, to the pattern of these cgroups"
        if target.never_slow and target.fast_max != Amount(share=1.0):
            yield ("targets", index, "never_slow"), "remove its fast_max, which contradicts it"
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
                f"with those above, the targets' fast_min is {format_percent(total + share)} of the"
                " fastest tier; 100% at most",
            )
            return
        total += share


RUNTIME_DROP_INS = Path("/run/hmd.d")
"""Drop-ins of ``CONFIG_FILE`` that last until the next boot: of batch systems, one file per job.

Not below /run/hmd, which belongs to the daemon's user: root writes only where root alone may."""


def load(path: Path) -> Config:
    """Return the settings in ``path`` and its drop-ins.

    Raises ``ConfigError`` with one line ``FILE:LINE: key.path: what is wrong`` for each mistake.
    """
    return validate(read(path))


def read(path: Path) -> Mapping:
    """Return the document in ``path`` with the drop-ins ``hmd.d/*.yaml`` merged into it.

    Drop-ins apply in the order of their names: mappings merge, lists grow, values replace. Those
    of the running system (``/run/hmd.d``) apply before an administrator's.
    Raises ``ConfigError`` for a file that is not readable or not such YAML.
    """
    document = read_document(path)
    for drop_in in drop_ins(path):
        document = merge(document, read_document(drop_in))
    return document


def drop_ins(path: Path) -> list[Path]:
    """Return the drop-in files of a configuration file, in order."""
    folders = [RUNTIME_DROP_INS] if path == CONFIG_FILE else []
    folders.append(path.with_suffix(".d"))
    return [file for folder in folders for file in sorted(folder.glob("*.yaml"))]


def loads(text: str, file: str = "<text>") -> Config:
    """Return the settings in a string; raises as ``load`` does."""
    return validate(parse_document(text.encode(), file))


def validate(document: Mapping) -> Config:
    """Return the settings of a parsed document; raises as ``load`` does."""
    try:
        config = Config.model_validate(values(document), context=UNITS_REQUIRED)
    except ValidationError as error:
        lines = _lines(document, error.errors(include_url=False))
        raise ConfigError("\n".join(lines)) from None
    if found := contradictions(config):
        problems = [located(document, path, text) for path, text in found]
        raise ConfigError("\n".join(problems))
    return config


def located(document: Mapping, path: KeyPath, text: str, kind: str = "") -> str:
    """Return ``FILE:LINE: kind: key.path: text``, the form of every message about a setting."""
    path = written(document, path)
    kind = f"{kind}: " if kind else ""
    return f"{locate(document, path)}: {kind}{dotted(path)}{text}"


def _lines(document: Mapping, errors: Iterable[Any]) -> list[str]:
    found = []
    for error in errors:
        path = written(document, error["loc"])
        place = locate(document, path)
        found.append((place.file, place.line, f"{place}: {dotted(path)}{_problem(error)}"))
    return [line for _, _, line in sorted(found)]


def dotted(path: KeyPath) -> str:
    """Return ``targets[0].pid: ``, or nothing for the document as a whole."""
    text = ""
    for step in path:
        # A key may be any text: one that would garble a terminal is shown escaped.
        text += (
            f"[{step}]"
            if isinstance(step, int)
            else f".{step if step.isprintable() else ascii(step)}"
        )
    return f"{text.removeprefix('.')}: " if text else ""


def _problem(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown setting{_did_you_mean(error['loc'])}"
    if error["type"] == "missing":
        return "must be set"
    return describe_error(error)


def _did_you_mean(path: KeyPath) -> str:
    model: type[BaseModel] | None = Config
    for step in path[:-1]:
        if isinstance(step, str) and model:
            field = model.model_fields.get(step)
            model = _model_in(field.annotation) if field else None
    key = str(path[-1])
    elsewhere = [each for each in _keys(Config) if each.endswith(f".{key}")]
    close = elsewhere or get_close_matches(key, _keys(model) if model else (), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section, and those of the sections in it by their path."""
    keys = list(model.model_fields)
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += [f"{name}.{key}" for key in inner.model_fields]
    return keys


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
