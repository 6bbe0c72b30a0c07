# SPDX-License-Identifier: MIT
"""What the daemon costs a program whose pages it does not move; writes build/daemon_cost.json.

    python -m bench.compare.daemon_cost [PROGRAM] [--pairs N] [--publish]

In one boot the program runs by turns next to the daemon at work, with the policy ``none``, and next
to the daemon stopped by SIGSTOP without sampling. Runs of one boot get much the same frames. Frames
matter more than the daemon: between boots, and after the daemon has ended, a stream differs by a
tenth, because lines leave the cache in another order and the media writes more of its granules.
The cost is the ratio of the medians. A boot takes four minutes, a pair of runs one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.compare.comparison_case import (
    ComparisonCase,
    ComparisonTrial,
    compared_digest,
    compared_program,
    run_trial,
)
from bench.compare.guest_services import GuestDaemon, running_daemon
from bench.compare.policies import FOLDER, ROOT, SUITE
from bench.compare.systems import hmd_with
from bench.compare.testbed import FIRST_TOUCH, Testbed, footprint_bytes, stage
from bench.documents.markdown import commit, host
from bench.suite.inputs import prepare
from hmd.base.errors import ConfigError, HmdError
from hmd.base.units import MIB
from hmd.emulate.demo.measure import PROGRAM_CPU, SERVICE_CPU
from hmd.emulate.vm.guest import Command
from hmd.emulate.vm.images import warm_kernels

OUTPUT = ROOT / "build" / "daemon_cost.json"
COMMITTED = ROOT / "docs" / "results" / OUTPUT.name
RATIO = "1:16"


@dataclass(frozen=True, slots=True)
class CostRun:
    """One run: modelled seconds, those of sampling among them, and MiB that CPUs moved.

    ``program_mib`` and ``daemon_mib`` are reads and writes of both nodes by the CPU of the program
    and by that of the daemon, which has all other services.
    """

    daemon: str
    seconds: float
    sampling_seconds: float
    guest_seconds: float
    program_mib: float
    daemon_mib: float


def main() -> int:
    """Run the pairs; write and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", nargs="?", default="memcopy", help="of one thread (memcopy)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("--publish", action="store_true", help=f"write {COMMITTED.name} too")
    args = parser.parse_args()
    if args.pairs < 1:
        parser.error("--pairs: take 1 or more")
    try:
        runs = measured(args.program, args.pairs)
    except HmdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    words = f"python -m bench.compare.daemon_cost {args.program} --pairs {args.pairs}"
    document = summary(args.program, runs) | {"command": words, "commit": commit(), "host": host()}
    for path in (OUTPUT, *([COMMITTED] if args.publish else ())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    print(
        f"{args.program} next to the daemon: {document['cost']:+.2%}, "
        f"samples {document['sampling']:.2%} of its time; written: {OUTPUT}"
    )
    return 0


def measured(name: str, pairs: int) -> list[CostRun]:
    """Return the runs of a program of one thread by turns; HmdError where one fails."""
    case = ComparisonCase(name, RATIO, hmd_with("none").name)
    program = compared_program(name)
    if program.threads > 1:
        raise ConfigError(f"{name} has {program.threads} threads: take a program of one")
    command = prepare(program, SUITE / "inputs")
    footprint = footprint_bytes(name, compared_digest(name), lambda: command, FOLDER)
    fast = case.fast_bytes(footprint)
    runs = []
    warm_kernels()
    with (
        stage([command], FOLDER / "share") as ready,
        running_daemon(ready, "none") as daemon,
    ):
        run_trial(ready, command, FIRST_TOUCH, fast)  # QEMU translates the daemon's code
        for _ in range(pairs):
            runs.append(_run(ready, command, fast, "at work", None))
            runs.append(_run(ready, command, fast, "stopped", daemon))
    return runs


def _run(
    ready: Testbed, command: Command, fast: int | None, label: str, stopped: GuestDaemon | None
) -> CostRun:
    before = [_counted(ready, cpu) for cpu in (PROGRAM_CPU, SERVICE_CPU)]
    with stopped.stopped() if stopped is not None else nullcontext():
        trial: ComparisonTrial = run_trial(ready, command, FIRST_TOUCH, fast)
    program, daemon = (
        [after - earlier for after, earlier in zip(_counted(ready, cpu), counted, strict=True)]
        for cpu, counted in zip((PROGRAM_CPU, SERVICE_CPU), before, strict=True)
    )
    run = CostRun(
        daemon=label,
        seconds=trial.modelled_seconds,
        sampling_seconds=program[1] * 1e-12,
        guest_seconds=trial.guest_seconds,
        program_mib=program[0] / MIB,
        daemon_mib=daemon[0] / MIB,
    )
    print(
        f"{label}: {run.seconds:.4f} s modelled in {run.guest_seconds:.0f} s, "
        f"{run.sampling_seconds * 1e3:.2f} ms of samples, "
        f"{run.program_mib:,.0f} MiB by its CPU, {run.daemon_mib:,.1f} MiB by the daemon's",
        file=sys.stderr,
        flush=True,
    )
    return run


def _counted(ready: Testbed, cpu: int) -> tuple[int, int]:
    """Return the bytes that a CPU has moved, and its picoseconds of sampling, since the boot."""
    counters = ready.machine.shared.counters(cpu)
    return sum(node.read_bytes + node.write_bytes for node in counters.nodes), counters.sampling_ps


def summary(program: str, runs: Sequence[CostRun]) -> dict[str, Any]:
    """Return medians, the cost relative to the program without the daemon, and all runs."""
    seconds = {
        label: median(run.seconds for run in runs if run.daemon == label)
        for label in ("at work", "stopped")
    }
    working = [run for run in runs if run.daemon == "at work"]
    return {
        "program": program,
        "ratio": RATIO,
        "seconds": seconds,
        "cost": seconds["at work"] / seconds["stopped"] - 1,
        "sampling": median(run.sampling_seconds / run.seconds for run in working),
        "daemon_mib": median(run.daemon_mib for run in working),
        "runs": [asdict(run) for run in runs],
    }


if __name__ == "__main__":
    sys.exit(main())
