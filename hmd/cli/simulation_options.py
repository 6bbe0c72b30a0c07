# SPDX-License-Identifier: MIT
"""Options that ``hmd simulate`` and ``hmd tune`` share: the simulated machine and its daemon."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from hmd.base.errors import ConfigError, UsageError
from hmd.base.units import PAGE_BYTES
from hmd.cli.arguments import (
    number,
    policy_info,
    share,
    size,
)

if TYPE_CHECKING:
    from hmd.base.quantities import Amount
    from hmd.policy.settings import PolicyInfo, Value
    from hmd.simulate.simulation import SimulationSettings

HEADROOM_BYTES = 64 << 10
"""Default headroom of the fast node: the simulated machine has no other programs."""

HOUR_MS = 3_600_000

DAEMON_OPTIONS: Final = """\
--tick MS = 10      length of a tick in milliseconds (10)
--delay MS = 2      milliseconds from a tick's samples to its first move (2)
--found MS = 0      milliseconds after the program's start at which the daemon finds it (0)
--period N          misses per sample, as sample.period (set by --overhead, from 199 on)
--overhead SHARE = 1%
                    most of the program's time that records of samples may take, as
                    sample.overhead; no effect with --period (1%)
--fast-min SIZE|SHARE = 0
                    least of the fast node that the program keeps, as targets[].fast_min (0)
--fast-max SIZE|SHARE = 100%
                    most of the fast node that the program may have, as targets[].fast_max (100%)
--pageout MS        page out pages that were idle for this many milliseconds, as decide.pageout
                    (off)
--swap-in US = 100  microseconds that the program sleeps at a page that was paged out (100)
--loss SHARE = 0%   share of samples that are lost (0%)
"""
"""Options of the daemon's tick and sampling."""

DAEMON_TYPES: Final = {
    **dict.fromkeys(("tick", "pageout"), number(0.1, HOUR_MS)),
    **dict.fromkeys(("delay", "found"), number(0, HOUR_MS)),
    "swap_in": number(0, 1e6),
}


def simulation_settings(args: argparse.Namespace) -> SimulationSettings:
    """Return the settings that the options of ``add_daemon`` and ``--seed`` give."""
    from hmd.config.load import exceeds
    from hmd.sample.emulated_pebs import START_PERIOD
    from hmd.simulate.machine import MigrationCost
    from hmd.simulate.pmu import MAX_PERIOD, MAX_SEED, PmuSettings
    from hmd.simulate.simulation import SimulationSettings

    for name, min_value, max_value in (("period", 1, MAX_PERIOD), ("seed", 0, MAX_SEED)):
        value = getattr(args, name)
        if value is not None and not min_value <= value <= max_value:
            raise UsageError(f"--{name} must be from {min_value} to {max_value}")
    if args.pageout is not None and args.pageout < args.tick:
        raise UsageError(f"--pageout must be at least a tick ({args.tick:g} ms)")
    if not 0 < args.overhead <= 1:
        raise UsageError("--overhead must be more than 0% and at most 100%")
    if args.loss >= 1 or args.loss < 0:
        raise UsageError("--loss must be less than 100%")
    fast_min = _amount("--fast-min", args.fast_min)
    fast_max = _amount("--fast-max", args.fast_max)
    if exceeds(fast_min, fast_max):
        raise UsageError(f"--fast-min {args.fast_min} is above the --fast-max of {args.fast_max}")
    return SimulationSettings(
        tick_s=args.tick / 1e3,
        delay_s=args.delay / 1e3,
        found_s=args.found / 1e3,
        sampling=PmuSettings(
            args.period or START_PERIOD,
            args.loss,
            args.seed,
            overhead=None if args.period else args.overhead,
        ),
        cost=MigrationCost(swap_in_ns=args.swap_in * 1e3),
        fast_min=fast_min,
        fast_max=fast_max,
        pageout_s=None if args.pageout is None else args.pageout / 1e3,
    )


def _amount(option: str, text: str) -> Amount:
    from hmd.base.quantities import parse_amount

    try:
        return parse_amount(0 if text == "0" else text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def fast_pages(text: str, pages: int) -> int:
    """Return the number of a program's pages that fit on the fast node, from ``--fast``."""
    try:
        wanted: int = round(share(text) * pages) if text.endswith("%") else size(text) // PAGE_BYTES
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--fast: {error}") from None
    if wanted < 1:
        raise UsageError(
            f"--fast {text} is less than a page of {PAGE_BYTES >> 10} KiB: give the fast node more"
        )
    return min(wanted, pages)


def given_settings(texts: Sequence[str], policies: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--set`` by key; UsageError where no policy has the key."""
    given = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: write KEY=VALUE, as in --set confidence=2")
        given[key] = value
    known = {each.name for name in policies for each in policy_info(name).settings}
    for key in given:
        if key not in known:
            known_ones = ", ".join(sorted(known)) or "no settings"
            raise UsageError(f"--set {key}: {' and '.join(policies)} can have {known_ones}")
    return given


def policy_values(policy: PolicyInfo, given: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings of a policy on the simulated machine, by name.

    Raises UsageError for an invalid value of ``--set``.
    """
    kept = {"headroom": 0.0, "headroom_min": HEADROOM_BYTES}
    values: dict[str, Value] = {s.name: kept[s.name] for s in policy.settings if s.name in kept}
    try:
        return values | {s.name: s.parse(given[s.name]) for s in policy.settings if s.name in given}
    except ConfigError as error:
        raise UsageError(f"--set {error}") from None


class ProgressLine:
    """A progress line on standard error, if that is a terminal."""

    def __enter__(self) -> Self:
        from rich.console import Console

        self._status = Console(stderr=True).status("reading the trace")
        self._status.start()
        return self

    def say(self, what: str) -> None:
        """Replace the progress line."""
        self._status.update(what)

    def note(self, line: str) -> None:
        """Print a line above the progress line."""
        self._status.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __exit__(self, *error: object) -> None:
        self._status.stop()
