# SPDX-License-Identifier: MIT
"""Share of accesses on the fast tier over ticks, where most of memory is counted by chunk.

Prints a table, writes build/scaled_quality.json. A tenth of memory is fast, and holds none of the
hot pages in particular at the start; the tick is the daemon's, over simulated address spaces
(:mod:`bench.scale.tick_cost`). Shares are those of accesses drawn apart from the samples. ``python
-m bench.scale.scaled_quality 1024:zipf`` runs one case (GiB:pattern) alone.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.documents.markdown import measured_with
from bench.scale.scaled_memory import ScaledSamples
from bench.scale.tick_cost import ScaleCase, ScaledRun
from hmd.base.units import GIB, PAGE_BYTES
from hmd.policy import registry

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "scaled_quality.json"
CASES = ("1024:zipf", "1024:scattered", "1024:sparse")
"""GiB and pattern of the cases."""
TICKS = (0, 20, 50, 100)
"""Ticks after which shares are measured."""
_DRAWN = 200_000
# The share of accesses that the hottest tenth of pages has.
_TENTH = 0.1


@dataclass(frozen=True, slots=True)
class QualityRow:
    """A measured case: shares of accesses on the fast tier, and the best share of that size."""

    tracked_gib: int
    pattern: str
    best: float
    fast_share: dict[int, float]


def measure(gib: int, pattern: str) -> QualityRow:
    """Run a case."""
    run = ScaledRun(ScaleCase(gib, 1, 4, pattern, registry.DEFAULT))
    drawn = ScaledSamples(pattern, 1, gib * GIB // PAGE_BYTES, _DRAWN, seed=2)
    address = np.sort(drawn.read().address)
    shares = {0: round(run.fast_share(address), 3)}
    for tick in range(1, TICKS[-1] + 1):
        run.tick()
        if tick in TICKS:
            shares[tick] = round(run.fast_share(address), 3)
    return QualityRow(gib, pattern, round(drawn.hottest(_TENTH), 3), shares)


def main(arguments: list[str]) -> int:
    """Measure, print and write the rows."""
    rows = []
    print("  GiB    pattern   best" + "".join(f"  tick {tick:3}" for tick in TICKS))
    for case in arguments or CASES:
        gib, pattern = case.split(":")
        row = measure(int(gib), pattern)
        rows.append(row)
        shares = "".join(f"{share:10.3f}" for share in row.fast_share.values())
        print(f"{row.tracked_gib:5} {row.pattern:>10} {row.best:6.3f}{shares}", flush=True)
    OUTPUT.parent.mkdir(exist_ok=True)
    result = {
        **measured_with(),
        "rows": [asdict(row) for row in rows],
    }
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
