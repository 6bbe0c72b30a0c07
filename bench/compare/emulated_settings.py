# SPDX-License-Identifier: MIT
"""Settings of kernel tiering, DAMON and hmd, compared in the emulated machine.

    python -m bench.compare.emulated_settings kernel                 NUMA balancing's knobs
    python -m bench.compare.emulated_settings damon cg,pagerank 1:8  intervals, regions, ages
    python -m bench.compare.emulated_settings hmd                    ticks and periods

In the regime of the comparison: a boot per run for DAMON, a boot per setting for hmd, one boot for
kernel tiering, and a fast node full of page cache. Half an hour to two hours per system.
`make bench-policies` runs the best settings (systems.py, guest_damon.py, guest_daemon.py here).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path

from bench.compare.comparison_case import ComparisonCase, run_trial
from bench.compare.guest_services import DamonSettings, Pace, running_daemon, running_damon
from bench.compare.systems import HMD_DEFAULT, KERNEL_DEFAULTS, system_named
from bench.compare.testbed import FIRST_TOUCH, Testbed, footprint_bytes, stage
from bench.suite.ground_truth import program_digest
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from hmd.base.errors import HmdError
from hmd.emulate.vm.guest import Command, GuestError

BUILD = Path(__file__).resolve().parents[2] / "build"
BALANCING = "/sys/kernel/debug/sched/numa_balancing"

DAMON: tuple[DamonSettings, ...] = (
    DamonSettings(("50ms", "1s", "10s"), ("10", "1000"), "5s"),
    DamonSettings(("20ms", "400ms", "4s"), ("10", "400"), "2s"),
    DamonSettings(("20ms", "400ms", "4s"), ("10", "1000"), "5s"),
    DamonSettings(("20ms", "400ms", "4s"), ("10", "1000"), "2s"),
    DamonSettings(("20ms", "200ms", "2s"), ("10", "1000"), "2s"),
    DamonSettings(("20ms", "200ms", "2s"), ("10", "1000"), "1s"),
    DamonSettings(("20ms", "200ms", "2s"), ("10", "1000"), "500ms"),
    DamonSettings(("20ms", "200ms", "2s"), ("100", "2000"), "1s"),
    DamonSettings(("10ms", "100ms", "1s"), ("10", "1000"), "1s"),
    DamonSettings(("5ms", "100ms", "1s"), ("10", "1000"), "2s"),
)

HMD: tuple[Pace, ...] = (Pace(0.25), Pace(0.25, 41), Pace(0.25, 83), Pace(0.25, 331))


def _balancing(*values: int) -> Mapping[str, int]:
    names = ("scan_delay_ms", "scan_period_min_ms", "scan_period_max_ms", "hot_threshold_ms")
    return dict(zip(names, values, strict=False))


KERNEL: tuple[Mapping[str, int], ...] = (
    {},
    _balancing(100),
    _balancing(100, 1000, 60000, 5000),
    _balancing(100, 500),
    _balancing(100, 500, 60000, 500),
    _balancing(100, 500, 60000, 5000),
    _balancing(100, 200, 60000, 500),
    _balancing(100, 200, 2000, 2000),
    _balancing(100, 200, 2000, 1000),
    _balancing(100, 200, 2000, 500),
    _balancing(100, 100, 1000, 500),
    _balancing(100, 50, 500, 500),
)
"""Settings of /sys/kernel/debug/sched/numa_balancing, in addition to tiering and demotion."""


def main() -> int:
    """Run every setting on every program; prints one line per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=("kernel", "damon", "hmd"))
    parser.add_argument("programs", nargs="?", default="cg,drift", help="(default cg,drift)")
    parser.add_argument("ratio", nargs="?", default="1:2", help="fast to slow (default 1:2)")
    args = parser.parse_args()
    try:
        measure(args.system, args.programs.split(","), args.ratio)
    except HmdError as error:
        print(f"tried-settings: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    return 0


def measure(system: str, programs: list[str], ratio: str) -> None:
    """Boot and run all settings of a system."""
    commands = {name: prepared(name) for name in programs}
    fast = {
        name: ComparisonCase(name, ratio, system).fast_bytes(
            footprint_bytes(name, program_digest(name), partial(prepared, name), BUILD / "compare")
        )
        for name in programs
    }
    if system == "hmd":
        policy = system_named(HMD_DEFAULT).policy
        for pace in HMD:
            with _booted(commands) as ready, running_daemon(ready, policy, pace) as daemon:
                first = {"warming up": next(iter(commands.values()))}
                _try(ready, first, {}, "", daemon.moving)
                period = pace.period or "by quota"
                setting = f"tick {pace.tick_s} s, period {period}"
                _try(ready, commands, fast, setting, daemon.moving)
        return
    if system == "damon":
        for watch, (name, command) in product(DAMON, commands.items()):
            with _booted({name: command}) as ready:
                service = partial(running_damon, ready, watch)
                _try(ready, {name: command}, fast, _describe(watch), service)
        return
    with _booted(commands) as ready:
        for knobs in KERNEL:
            files = {f"{BALANCING}/{name}": value for name, value in knobs.items()}
            with ready.having({**files, **KERNEL_DEFAULTS.knobs}):
                description = ", ".join(f"{name} {value}" for name, value in knobs.items())
                _try(ready, commands, fast, description or "all at defaults")


def prepared(name: str) -> Command:
    """Return a program's command; makes its inputs."""
    return prepare(load_program(name), BUILD / "suite/inputs")


def _booted(commands: Mapping[str, Command]) -> AbstractContextManager[Testbed]:
    return stage(list(commands.values()), BUILD / "compare/share")


def _try(
    ready: Testbed,
    commands: Mapping[str, Command],
    fast: Mapping[str, int | None],
    setting: str,
    service: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    for name, command in commands.items():
        try:
            trial = run_trial(ready, command, FIRST_TOUCH, fast.get(name), service=service())
        except GuestError:
            raise
        except HmdError as error:
            print(f"{name:12} {error}  {setting}", flush=True)
            continue
        print(
            f"{name:12} {trial.modelled_seconds:7.3f} s modelled, "
            f"{trial.guest_seconds:4.0f} s in the guest, "
            f"{trial.migrated_bytes / 2**20:6.1f} MiB moved, "
            f"{trial.gained_bytes / 2**20:+5.1f} MiB gained  {setting}",
            flush=True,
        )


def _describe(watch: DamonSettings) -> str:
    return (
        f"intervals {' '.join(watch.intervals)}, regions {'-'.join(watch.regions)}, "
        f"cold after {watch.cold_age}"
    )


if __name__ == "__main__":
    sys.exit(main())
