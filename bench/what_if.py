# SPDX-License-Identifier: MIT
"""The demand for fast memory that the daemon sees, against runs with that memory, simulated.

    python -m bench.what_if [PROGRAM,...] [--publish]     all recorded programs of the suite

Each program runs under the default policy with a third of its pages in fast memory. What its ticks
say of other sizes (``hmd.metrics.demand``), in the mean of every tenth tick, is compared with runs
under the same policy with memory of that size. Writes build/what_if.json, or docs/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np

from bench.documents.markdown import commit, host
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.metrics.demand import measure_demand
from hmd.metrics.status import FAST_STEPS
from hmd.policy import registry
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings, TickRow, simulate

ROOT: Final = Path(__file__).resolve().parents[1]
STREAMS, OUTPUT = ROOT / "build/suite/streams", ROOT / "build/what_if.json"
PUBLISHED: Final = ROOT / "docs/results/what_if.json"
FAST_SHARE: Final = 1 / 3
EVERY: Final = 10


def compare(path: Path) -> list[dict[str, Any]]:
    """Return a row per size of fast memory: its runtime over that of now, predicted and run."""
    stream, preset = MissStream.read(path), load("dram-pm")
    pages = int(stream.user_pages * FAST_SHARE)
    seen: list[tuple[float, ...]] = []
    with SimulatedMachine(stream, preset, pages) as machine:
        daemon = SimulatedDaemon(machine, registry.create(registry.DEFAULT), SimulationSettings())
        ticks: list[TickRow] = []
        while not machine.done:
            ticks.append(daemon.row(daemon.tick()))
            if len(ticks) % EVERY:
                continue
            fast = sum(tick.fast_misses for tick in ticks[-EVERY:])
            slow = sum(tick.slow_misses for tick in ticks[-EVERY:])
            found = measure_demand(
                daemon.state.heat,
                machine.topology,
                ["program"],
                np.ones(1),
                {"program": fast / max(fast + slow, 1)},
            )
            if found.of_all is not None and found.of_all.runtime:
                seen.append(found.of_all.runtime)
        now_s = machine.program_s
    rows = []
    for at, step in enumerate(FAST_STEPS):
        if not seen or step == 1.0 or step * pages > stream.user_pages:
            continue
        ran = simulate(stream, preset, int(step * pages), registry.create(registry.DEFAULT))
        predicted = mean(each[at] for each in seen)
        actual = ran.runtime_s / now_s
        rows.append(
            {
                "program": path.stem.rpartition("-")[0],
                "fast": step,
                "predicted": round(predicted, 4),
                "run": round(actual, 4),
                "error": round(predicted / actual - 1, 4),
            }
        )
    return rows


def main() -> int:
    """Compare, print and write the rows."""
    parser = argparse.ArgumentParser(description="Predicted and run effects of fast memory.")
    parser.add_argument("programs", nargs="?", default="", help="separated by commas")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    asked = [name for name in args.programs.split(",") if name]
    paths = sorted(STREAMS.glob("*.npz"))
    rows: list[dict[str, Any]] = []
    for path in paths:
        if asked and path.stem.rpartition("-")[0] not in asked:
            continue
        for row in compare(path):
            rows.append(row)
            print(*row.values(), sep="\t", flush=True)
    errors = [abs(row["error"]) for row in rows]
    document = {
        "mean_error": round(mean(errors), 4) if errors else None,
        "worst_error": max(errors, default=None),
        "command": " ".join(["python -m bench.what_if", *sys.argv[1:]]),
        "commit": commit(),
        "host": host(),
        "rows": rows,
    }
    target = PUBLISHED if args.publish else OUTPUT
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")
    print(f"mean error {document['mean_error']}, worst {document['worst_error']}: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
