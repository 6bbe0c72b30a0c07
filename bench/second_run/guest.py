# SPDX-License-Identifier: MIT
"""Programs that run three times under a daemon that learns, in the emulated machine.

    python -m bench.second_run.guest [PROGRAM:RATIO ...]     these, or CASES; minutes each

All in one boot, with one daemon. Nothing is known of a program before its first run: all profiles,
also of the run that warms the daemon up, are removed. Adds rows of modelled seconds, and of MiB
that were moved, to docs/results/second_run_guest.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison_case import (
    ComparisonCase,
    ComparisonTrial,
    compared_digest,
    compared_program,
    run_trial,
)
from bench.compare.guest_services import PACE, GuestDaemon, running_daemon
from bench.compare.policies import SUITE
from bench.compare.systems import FIRST, HMD_DEFAULT, system_named
from bench.compare.testbed import Testbed, footprint_bytes, stage
from bench.documents.markdown import measured_with
from bench.progress import print_progress
from bench.suite.inputs import prepare
from hmd.base.atomic_file import write_finished
from hmd.emulate.vm.guest import Command
from hmd.emulate.vm.images import warm_kernels

CASES: Final = tuple(
    f"{program}:{ratio}"
    for program in ("cg", "drift", "pagerank", "phases", "sat", "compress")
    for ratio in ("1:2", "1:8")
)
RESULT: Final = Path(__file__).parents[2] / "docs/results/second_run_guest.json"
_PROFILES: Final = "/run/hmd-profiles"
_RUNS: Final = ("first_s", "second_s", "third_s")


def run_cases(cases: Sequence[ComparisonCase], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row of each case."""
    commands = {
        case.program: prepare(compared_program(case.program), SUITE / "inputs") for case in cases
    }
    fast_bytes = [
        case.fast_bytes(
            footprint_bytes(
                case.program,
                compared_digest(case.program),
                partial(commands.__getitem__, case.program),
                folder,
            )
        )
        for case in cases
    ]
    policy = system_named(HMD_DEFAULT).policy
    with (
        stage(list(commands.values()), folder / "share") as ready,
        running_daemon(ready, policy, replace(PACE, profiles=_PROFILES)) as running,
    ):
        _run(ready, running, commands[cases[0].program], fast_bytes[0])
        for case, size_bytes in zip(cases, fast_bytes, strict=True):
            ready.sh(f"rm -f {_PROFILES}/*")
            runs = [_run(ready, running, commands[case.program], size_bytes) for _ in _RUNS]
            row: dict[str, Any] = {"program": case.program, "ratio": case.ratio}
            row |= {name: run.modelled_seconds for name, run in zip(_RUNS, runs, strict=True)}
            row["moved_mib"] = [run.migrated_bytes >> 20 for run in runs]
            yield row | {"profiles": ready.sh(f"ls {_PROFILES}").split()}


def _run(
    ready: Testbed, running: GuestDaemon, command: Command, fast_bytes: int | None
) -> ComparisonTrial:
    trial = run_trial(ready, command, FIRST.start, fast_bytes, service=running.moving())
    print_progress(
        f"{trial.modelled_seconds:.3f} s modelled, {trial.migrated_bytes >> 20} MiB moved,"
        f" {trial.fast_share:.0%} of misses fast, CPU waited {trial.host_wait_seconds:.0f} s"
    )
    return trial


def main() -> None:
    """Run cases and add their rows to the result, one by one."""
    warm_kernels()
    rows = json.loads(RESULT.read_text())["guest"] if RESULT.exists() else []
    cases = [ComparisonCase.parse(f"{text}:{HMD_DEFAULT}") for text in sys.argv[1:] or CASES]
    for row in run_cases(cases, SUITE.parent / "second_run_guest"):
        print_progress(json.dumps(row))
        same = {"program": row["program"], "ratio": row["ratio"]}
        rows = [one for one in rows if not same.items() <= one.items()] + [row]
        document = {**measured_with(), "guest": rows}
        write_finished(RESULT, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
