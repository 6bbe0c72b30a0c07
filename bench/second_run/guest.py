# SPDX-License-Identifier: MIT
"""Programs that run three times under a daemon that learns, in the emulated machine.

    python -m bench.second_run.guest [PROGRAM:RATIO ...]     these, or CASES; minutes each

Nothing is known of a program before its first run: profiles of the run that warms the daemon up are
removed. Adds rows of modelled seconds to docs/results/second_run_guest.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison_case import (
    ComparisonCase,
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


def run_case(case: ComparisonCase, folder: Path) -> dict[str, Any]:
    """Return a row of a case, in a boot of its own."""
    command = prepare(compared_program(case.program), SUITE / "inputs")
    footprint = footprint_bytes(
        case.program, compared_digest(case.program), lambda: command, folder
    )
    fast_bytes = case.fast_bytes(footprint)
    policy = system_named(HMD_DEFAULT).policy
    with (
        stage([command], folder / "share") as ready,
        running_daemon(ready, policy, replace(PACE, profiles=_PROFILES)) as running,
    ):
        _run(ready, running, command, fast_bytes)
        ready.sh(f"rm -f {_PROFILES}/*")
        seconds = [_run(ready, running, command, fast_bytes) for _ in _RUNS]
        kept = ready.sh(f"ls {_PROFILES}").split()
    row = {"program": case.program, "ratio": case.ratio}
    return {**row, **dict(zip(_RUNS, seconds, strict=True)), "profiles": kept}


def _run(ready: Testbed, running: GuestDaemon, command: Command, fast_bytes: int | None) -> float:
    trial = run_trial(ready, command, FIRST.start, fast_bytes, service=running.moving())
    print_progress(
        f"{trial.modelled_seconds:.3f} s modelled, {trial.migrated_bytes >> 20} MiB moved,"
        f" {trial.fast_share:.0%} of misses fast"
    )
    return trial.modelled_seconds


def main() -> None:
    """Run cases and add their rows to the result, one by one."""
    warm_kernels()
    rows = json.loads(RESULT.read_text())["guest"] if RESULT.exists() else []
    for text in sys.argv[1:] or CASES:
        case = ComparisonCase.parse(f"{text}:{HMD_DEFAULT}")
        row = run_case(case, SUITE.parent / "second_run_guest")
        print_progress(json.dumps(row))
        same = {"program": case.program, "ratio": case.ratio}
        rows = [one for one in rows if not same.items() <= one.items()] + [row]
        document = {**measured_with(), "guest": rows}
        write_finished(RESULT, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
