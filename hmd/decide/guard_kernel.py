"""The kernel of the guard: what the moves of recent ticks saved in this one, by its samples.

Takes the samples, tiers and sizes of all rows, gives accesses that moves brought to other tiers and
pages that moved. About 5 ns per row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hmd.heat.kernels import (
    Float32s,
    Float64Plane,
    Int16s,
    Int32s,
    Int64s,
    Uint16s,
    kernel,
)

#: Columns of what the guard keeps per page: the tier before its recent moves, the tier at the last
#: tick, both plus 1 (0: not seen yet), and the ticks since it last moved.
HOME, LAST, AGE = 0, 1, 2
COLUMNS: Final = 3
FOLLOWED_TICKS: Final = 32
"""Ticks for which a move is followed; from then on the page belongs where it is."""


class GuardedRows(NamedTuple):
    """Columns of a view, shape ``(n,)``, and what the guard keeps: ``home``, ``last``, ``age``."""

    process: Int32s
    tier: Int64s
    size: Uint16s
    samples: Float32s
    home: Int16s
    last: Int16s
    age: Int16s


@kernel
def follow_moves(rows: GuardedRows, latency_saved: Float64Plane, saved: Float64Plane) -> int:
    """Add to ``saved``, by process, what samples times ``latency_saved`` give; return moved pages.

    ``latency_saved[a, b]`` is what an access saves on tier b instead of a. ``saved`` has shape
    ``(processes, 1)``.
    """
    moved = 0
    for row in range(len(rows.tier)):
        tier, code = rows.tier[row], rows.tier[row] + 1
        if tier < 0:
            continue
        if rows.last[row] == 0:
            rows.home[row], rows.last[row], rows.age[row] = code, code, FOLLOWED_TICKS
            continue
        if rows.last[row] != code:
            if rows.age[row] >= FOLLOWED_TICKS:
                rows.home[row] = rows.last[row]
            rows.last[row], rows.age[row] = code, 0
            moved += rows.size[row]
        if rows.age[row] < FOLLOWED_TICKS:
            home = rows.home[row] - 1
            saved[rows.process[row], 0] += rows.samples[row] * latency_saved[home, tier]
            rows.age[row] += 1
    return moved
