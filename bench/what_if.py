# SPDX-License-Identifier: MIT
"""The demand for fast memory that the daemon sees, against runs with that memory, simulated.

    python -m bench.what_if [PROGRAM,...] [--publish]     all recorded programs of the suite

Each program runs under the default policy with a third of its pages in fast memory. What its ticks
say of other sizes (``hmd.metrics.demand``), in the mean of every fifth tick, is compared with runs
under the same policy with memory of that size; ``uncounted`` is what they say without a count of
how long the CPU waits. Programs recorded on several CPUs cannot be simulated, and nothing is said
of those that end before the fifth tick. ``HELD_OUT`` are programs that the model was not made with.

Writes build/what_if.json, or docs/results. Runs are kept in build/what_if: after a change of the
simulator or of the policy it is to be removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np

from bench.documents.markdown import measured_with
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.metrics.counters import Counters
from hmd.metrics.demand import Waited, measure_demand
from hmd.metrics.status import FAST_STEPS
from hmd.policy import registry
from hmd.simulate.machine import FAST, SimulatedMachine
from hmd.simulate.simulation import TARGET, SimulatedDaemon, SimulationSettings, simulate

ROOT: Final = Path(__file__).resolve().parents[1]
STREAMS, OUTPUT = ROOT / "build/suite/streams", ROOT / "build/what_if.json"
KEPT: Final = ROOT / "build/what_if"
PUBLISHED: Final = ROOT / "docs/results/what_if.json"
FAST_SHARE: Final = 1 / 3
EVERY: Final = 5
HELD_OUT: Final = (
    *("digest", "index_smaller", "ranks", "spawn", "align", "cg_smaller", "redis", "orders"),
    *("histogram", "transpose", "words", "updates_moving", "hydro", "unfold"),
)

Runtimes = tuple[float, ...]


def predict(stream: MissStream, pages: int) -> tuple[list[Runtimes], list[Runtimes]]:
    """Return what ticks say of the runtime: with waits counted, and without."""
    counted: list[Runtimes] = []
    uncounted: list[Runtimes] = []
    with SimulatedMachine(stream, load("dram-pm"), pages) as machine:
        daemon = SimulatedDaemon(machine, registry.create(registry.DEFAULT), SimulationSettings())
        counters, before, before_s = Counters(machine.topology), machine.executed, machine.now_s
        while not machine.done:
            counters.add(daemon.tick())
            if counters.ticks % EVERY:
                continue
            now, elapsed_ns = machine.executed, (machine.now_s - before_s) * 1e9
            ran_ns = now.ran_ns - before.ran_ns
            waited = Waited(ran_ns / elapsed_ns, (now.stalled_ns - before.stalled_ns) / ran_ns)
            before, before_s = now, machine.now_s
            for known, seen in (({TARGET: waited}, counted), ({}, uncounted)):
                found = measure_demand(
                    daemon.state.heat,
                    machine.topology,
                    [TARGET],
                    np.ones(1),
                    counters.target_uses(),
                    machine.free_pages(FAST),
                    known,
                ).of_all
                if found is not None and found.runtime:
                    seen.append(found.runtime)
        return counted, uncounted


def run(path: Path, stream: MissStream, pages: int) -> dict[float, float]:
    """Return the runtime by size of fast memory over ``pages``; kept from an earlier call."""
    kept = KEPT / f"{path.stem}.json"
    if kept.exists():
        return {float(step): seconds for step, seconds in json.loads(kept.read_text()).items()}
    found = {
        step: simulate(
            stream, load("dram-pm"), int(step * pages), registry.create(registry.DEFAULT)
        ).runtime_s
        for step in FAST_STEPS
        if step * pages <= stream.user_pages
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def compare(path: Path) -> list[dict[str, Any]]:
    """Return a row per size of fast memory: its runtime over that of now, predicted and run."""
    stream = MissStream.read(path)
    if stream.cpus > 1:
        return []
    pages = int(stream.user_pages * FAST_SHARE)
    counted, uncounted = predict(stream, pages)
    runs = run(path, stream, pages)
    rows = []
    for at, step in enumerate(FAST_STEPS):
        if not counted or step == 1.0 or step not in runs:
            continue
        actual = runs[step] / runs[1.0]
        predicted, without = (mean(each[at] for each in seen) for seen in (counted, uncounted))
        rows.append(
            {
                "program": path.stem.rpartition("-")[0],
                "fast": step,
                "predicted": round(predicted, 4),
                "uncounted": round(without, 4),
                "run": round(actual, 4),
                "error": round(predicted / actual - 1, 4),
            }
        )
    return rows


def errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean and the worst error of rows, and of how many programs they are."""
    found = [abs(row["error"]) for row in rows] or [0.0]
    programs = len({row["program"] for row in rows})
    return {
        "programs": programs,
        "mean_error": round(mean(found), 4),
        "worst_error": round(max(found), 4),
    }


def main() -> int:
    """Compare, print and write the rows."""
    parser = argparse.ArgumentParser(description="Predicted and run effects of fast memory.")
    parser.add_argument("programs", nargs="?", default="", help="separated by commas")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    asked = [name for name in args.programs.split(",") if name]
    rows: list[dict[str, Any]] = []
    target = PUBLISHED if args.publish else OUTPUT
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in sorted(STREAMS.glob("*.npz"), key=lambda path: path.stat().st_size):
        if asked and path.stem.rpartition("-")[0] not in asked:
            continue
        for row in compare(path):
            rows.append(row)
            print(*row.values(), sep="\t", flush=True)
        document = {
            **errors(rows),
            "held_out": errors([row for row in rows if row["program"] in HELD_OUT]),
            "uncounted": errors(
                [{**row, "error": row["uncounted"] / row["run"] - 1} for row in rows]
            ),
            **measured_with(),
            "rows": rows,
        }
        target.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{errors(rows)}: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
