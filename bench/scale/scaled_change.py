# SPDX-License-Identifier: MIT
"""Ticks until a hot set of 1 GiB that moves is found again, in 4 GiB and in 1 TiB of memory.

The change of bench/stages/policy.py at the sizes of bench/scale/tick_cost.py: 90 % of 100,000
samples per tick go to 1 GiB of 4 KiB pages that lies together, which changes once to other pages.
The fast node holds 1.25 GiB at both sizes, and a tick may move 256 MiB, of which half is demotions,
so that the hot set takes eight ticks at least. Prints a table, writes build/scaled_change.json;
``--publish`` adds ``moved_hot_set`` to docs/results/scale.json. ``python -m
bench.scale.scaled_change 4`` runs one size (GiB) alone.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.scale.tick_cost import ScaleCase, ScaledRun, publish
from hmd.base.units import GIB, HUGE_PAGE_BYTES
from hmd.policy import registry

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "scaled_change.json"
SIZES = (4, 1024)
"""GiB of memory."""
FAST_CHUNKS = 5 * GIB // 4 // HUGE_PAGE_BYTES
SETTLE_TICKS, FOLLOW_TICKS = 20, 12
FOUND = 0.9
"""The part of what the fast node had of the old hot set, at which it has found the new one."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A measured size: the part of the hot set on the fast node, settled and after the change.

    ``after`` is by tick. ``ticks`` is the first tick with ``FOUND`` of the settled part, None if
    there was none.
    """

    tracked_gib: int
    settled: float
    after: list[float]
    ticks: int | None


def measure(gib: int) -> ChangeRow:
    """Settle, move the hot set, and measure the following ticks."""
    run = ScaledRun(ScaleCase(gib, 1, 4, "gibibyte", registry.DEFAULT), FAST_CHUNKS)
    for _ in range(SETTLE_TICKS):
        run.tick()
    settled = run.fast_share(run.samples.hot_addresses())
    # To the next 1 GiB, of which no page was hot.
    run.samples.shift = 1.0 / gib
    address = run.samples.hot_addresses()
    after = [run.fast_share(address)]
    for _ in range(FOLLOW_TICKS):
        run.tick()
        after.append(run.fast_share(address))
    found = [tick for tick, share in enumerate(after) if share >= FOUND * settled]
    shares = [round(share, 3) for share in after]
    return ChangeRow(gib, round(settled, 3), shares, found[0] if found else None)


def main(arguments: list[str]) -> int:
    """Measure, print and write the rows."""
    sizes = [int(each) for each in arguments if each != "--publish"] or SIZES
    rows = []
    for gib in sizes:
        row = measure(gib)
        rows.append(asdict(row))
        print(f"{gib:5} GiB  settled {row.settled:.3f}  found after {row.ticks} ticks")
        print("  ".join(f"{share:.3f}" for share in row.after), flush=True)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    if "--publish" in arguments:
        publish({"moved_hot_set": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
