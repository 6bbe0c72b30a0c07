# SPDX-License-Identifier: MIT
"""What samples of the kernel's accesses bring, on programs for which the kernel copies much.

    python -m bench.compare.kernel_mode [PROGRAM,...] [--runs 2] [-o docs/results/kernel_mode.json]

In the emulated machine, hmd with its policy ``benefit`` and ``sample.kernel_mode`` off and on, in
turn in one boot, next to first touch in the same boot; after the first run, DAMON in a boot of its
own. Another boot for each run. Runs are added to those in the file of ``-o``. Fast memory is a
ninth of the program. Programs: the suite's redis, and those of bench/compare/kernel_programs, a
cache that answers with what it stores, and a reader of a file.

``seconds`` are modelled. Of hmd's: ``record_share`` of the program's time that its records took,
``kernel_share`` of the records that were of the kernel's own memory, and dropped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison_case import ComparisonCase, ComparisonTrial, run_trial
from bench.compare.guest_services import Pace, running_daemon, running_damon
from bench.compare.systems import DAMON, FIRST
from bench.compare.testbed import FIRST_TOUCH, Testbed, footprint_bytes, stage
from bench.documents.markdown import measured_with, table
from bench.suite.ground_truth import program_digest
from bench.suite.inputs import prepare
from bench.suite.program import load_program, parse
from hmd.base.errors import HmdError
from hmd.emulate.demo.measure import PROGRAM_CPU
from hmd.emulate.vm.guest import Command
from hmd.emulate.vm.images import warm_kernels

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PROGRAMS = Path(__file__).with_name("kernel_programs")
NAMES = ("redis", *sorted(path.stem for path in PROGRAMS.glob("*.yaml")))
RATIO = "1:8"
POLICY = "benefit"
TICK_S = 0.25
MODES: Final[Mapping[str, Pace]] = {
    "user": Pace(TICK_S, kernel_mode=False),
    "user and kernel": Pace(TICK_S),
}


def main() -> int:
    """Run the programs; print a table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="?", default=",".join(NAMES))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=BUILD / "kernel_mode.json")
    args = parser.parse_args()
    warm_kernels()
    programs: dict[str, Any] = {}
    if args.output.exists():
        programs = json.loads(args.output.read_text())["programs"]
    try:
        for name in args.programs.split(","):
            runs = programs.get(name, {"runs": []})["runs"]
            for _ in range(args.runs):
                runs = [*runs, run(name, len(runs))]
                programs[name] = {"runs": runs, **summary(runs)}
                _write(args.output, programs)
                if len(runs) == 1:
                    runs[0]["seconds"][DAMON.name] = damon_seconds(name)
                    programs[name] = {"runs": runs, **summary(runs)}
                    _write(args.output, programs)
    except HmdError as error:
        print(f"kernel_mode: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(speeds_table(programs))
    return 0


def _write(path: Path, programs: Mapping[str, Any]) -> None:
    document = {
        **measured_with(),
        "policy": POLICY,
        "ratio": RATIO,
        "programs": programs,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def run(name: str, number: int) -> dict[str, Any]:
    """Return the seconds and figures of first touch and of hmd in both modes."""
    command, fast_bytes = _prepared(name)
    modes = list(MODES.items())[:: 1 if number % 2 == 0 else -1]
    with (
        stage([command], BUILD / "compare/share") as ready,
        running_daemon(ready, POLICY, modes[0][1]) as daemon,
    ):
        run_trial(ready, command, FIRST_TOUCH, fast_bytes, service=daemon.moving())  # warms up
        with daemon.stopped():
            seconds = {FIRST.name: _trial(ready, command, fast_bytes).modelled_seconds}
        found: dict[str, Any] = {"seconds": seconds}
        for mode, pace in modes:
            daemon.use(POLICY, pace=pace)
            before = daemon.progress()
            with _sampling_share(ready) as taken:
                trial = _trial(ready, command, fast_bytes, daemon.moving)
            after = daemon.progress()
            seconds[mode] = trial.modelled_seconds
            records = after.records - before.records
            found[mode] = {
                "moved_mib": round(trial.migrated_bytes / 2**20, 1),
                "fast_share": round(trial.fast_share, 3),
                "samples": after.samples - before.samples,
                "records": records,
                "kernel_share": round(
                    (after.kernel_addresses - before.kernel_addresses) / max(records, 1), 3
                ),
                "record_share": round(taken["s"] / trial.modelled_seconds, 4),
                "period": after.period,
            }
            print(f"{name} {mode}: {seconds[mode]:.3f} s, {found[mode]}", flush=True)
    print(f"{name}: {seconds}", flush=True)
    return found


def damon_seconds(name: str) -> float:
    """Return the seconds next to DAMON, in a boot of its own."""
    command, fast_bytes = _prepared(name)
    with stage([command], BUILD / "compare/share") as ready:
        trial = _trial(ready, command, fast_bytes, partial(running_damon, ready))
    print(f"{name} next to DAMON: {trial.modelled_seconds:.3f} s", flush=True)
    return trial.modelled_seconds


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over runs of first touch's time over each system's."""
    over = {
        name: [
            run["seconds"][FIRST.name] / run["seconds"][name]
            for run in runs
            if name in run["seconds"]
        ]
        for name in (*MODES, DAMON.name)
        if name in runs[0]["seconds"]
    }
    return {"times_first_touch": {name: round(sum(x) / len(x), 3) for name, x in over.items()}}


def _trial(
    ready: Testbed, command: Command, fast_bytes: int | None, service: Any = None
) -> ComparisonTrial:
    return run_trial(
        ready, command, FIRST_TOUCH, fast_bytes, service=service() if service else None
    )


@contextmanager
def _sampling_share(ready: Testbed) -> Iterator[dict[str, float]]:
    """Measure the seconds that records took of the program's CPU."""
    shared, taken = ready.machine.shared, {"s": 0.0}
    before = shared.counters(PROGRAM_CPU).sampling_ps
    yield taken
    taken["s"] = (shared.counters(PROGRAM_CPU).sampling_ps - before) * 1e-12


def _prepared(name: str) -> tuple[Command, int | None]:
    path = PROGRAMS / f"{name}.yaml"
    inputs = BUILD / "suite/inputs"
    if path.exists():
        program, digest = parse(path.read_bytes(), path.name), "kernel"
    else:
        program, digest = load_program(name), program_digest(name)
    make = partial(prepare, program, inputs)
    footprint = footprint_bytes(name, digest, make, BUILD / "compare")
    return make(), ComparisonCase(name, RATIO, FIRST.name).fast_bytes(footprint)


def speeds_table(programs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return speeds relative to first touch, by program and mode, next to DAMON, as Markdown."""
    systems = (*MODES, DAMON.name)
    return table(
        ["program", *systems],
        [
            [name, *(f"{found['times_first_touch'].get(system, 0):.3f}" for system in systems)]
            for name, found in programs.items()
        ],
        text=1,
    )


if __name__ == "__main__":
    sys.exit(main())
