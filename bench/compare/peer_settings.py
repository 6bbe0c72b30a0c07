"""What settings kernel tiering and DAMON do best with, each on programs at one ratio, in one boot.

    python bench/compare/peer_settings.py kernel                 eight settings of NUMA balancing
    python bench/compare/peer_settings.py damon cg,pagerank 1:8   six of DAMON, on these programs

What did best is what `make bench-policies` runs (hmd/emulate/compare/systems.py, damon.py). Some
twenty minutes each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hmd.emulate.compare import damon
from hmd.emulate.compare.case import Case
from hmd.emulate.compare.footprint import footprint_bytes
from hmd.emulate.compare.stage import FIRST_TOUCH, Stage, stage
from hmd.emulate.compare.systems import KERNEL_DEFAULTS
from hmd.emulate.compare.trial import run_trial
from hmd.emulate.suite.inputs import prepare
from hmd.emulate.suite.program import load_program
from hmd.emulate.suite.truth import program_digest
from hmd.errors import HmdError

BUILD = Path(__file__).resolve().parents[2] / "build"
BALANCING = "/sys/kernel/debug/sched/numa_balancing"

KERNEL: tuple[Mapping[str, int], ...] = (
    {},
    {"scan_delay_ms": 100},
    {"scan_delay_ms": 100, "hot_threshold_ms": 5000},
    {"scan_delay_ms": 100, "scan_period_min_ms": 500},
    {"scan_delay_ms": 100, "scan_period_min_ms": 500, "hot_threshold_ms": 500},
    {"scan_delay_ms": 100, "scan_period_min_ms": 500, "hot_threshold_ms": 5000},
    {"scan_delay_ms": 100, "scan_period_min_ms": 200, "hot_threshold_ms": 500},
    {
        "scan_delay_ms": 100,
        "scan_period_min_ms": 200,
        "scan_period_max_ms": 2000,
        "hot_threshold_ms": 2000,
    },
)
"""Settings of /sys/kernel/debug/sched/numa_balancing beside memory tiering and demotion."""

DAMON: tuple[damon.Watch, ...] = (
    damon.Watch(("20ms", "400ms", "4s"), ("10", "400"), "2s"),
    damon.Watch(("5ms", "100ms", "1s"), ("10", "1000"), "2s"),
    damon.Watch(("20ms", "400ms", "4s"), ("10", "1000"), "2s"),
    damon.Watch(("20ms", "400ms", "4s"), ("10", "1000"), "5s"),
    damon.Watch(("20ms", "200ms", "2s"), ("10", "1000"), "1s"),
    damon.Watch(("50ms", "1s", "10s"), ("10", "1000"), "5s"),
)


def main() -> int:
    """Run every setting on every program; prints a line a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=("kernel", "damon"))
    parser.add_argument("programs", nargs="?", default="cg,drift", help="(default cg,drift)")
    parser.add_argument("ratio", nargs="?", default="1:2", help="fast to slow (default 1:2)")
    args = parser.parse_args()
    try:
        measure(args.peer, args.programs.split(","), args.ratio)
    except HmdError as error:
        print(f"peer-settings: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def measure(peer: str, programs: list[str], ratio: str) -> None:
    """Boot once and run all."""
    commands = {name: prepare(load_program(name), BUILD / "suite/inputs") for name in programs}
    fast = {
        name: Case(name, ratio, peer).fast_bytes(
            footprint_bytes(name, program_digest(name), lambda c=command: c, BUILD / "compare")
        )
        for name, command in commands.items()
    }
    with stage(list(commands.values()), BUILD / "compare/share") as ready:
        for setting in KERNEL if peer == "kernel" else DAMON:
            with in_force(ready, setting):
                for name, command in commands.items():
                    trial = run_trial(ready, command, FIRST_TOUCH, fast[name])
                    print(
                        f"{name:12} {trial.modelled_seconds:7.3f} s modelled, "
                        f"{trial.guest_seconds:4.0f} s in the guest, "
                        f"{trial.migrated_bytes / 2**20:6.1f} MiB moved, "
                        f"{trial.gained_bytes / 2**20:+5.1f} MiB gained  {shown(setting)}",
                        flush=True,
                    )


@contextmanager
def in_force(ready: Stage, setting: damon.Watch | Mapping[str, int]) -> Iterator[None]:
    """Set a peer up and, at the end, back."""
    if isinstance(setting, damon.Watch):
        with damon.running_damon(ready, setting):
            yield
        return
    knobs = {f"{BALANCING}/{name}": value for name, value in setting.items()}
    with ready.having({**knobs, **KERNEL_DEFAULTS.knobs}):
        yield


def shown(setting: damon.Watch | Mapping[str, int]) -> str:
    """Return a setting for people."""
    if isinstance(setting, damon.Watch):
        return (
            f"intervals {' '.join(setting.intervals)}, regions {'-'.join(setting.regions)}, "
            f"cold after {setting.cold_age}"
        )
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "all at defaults"


if __name__ == "__main__":
    sys.exit(main())
