"""What moves of pages gain and lose, for the benefit policy: a pass over the rows of a view.

Takes columns of a view, what accesses and moves cost; gives the movable rows with what each saves
per nanosecond of latency, then those whose promotion to a tier gains and those that can leave it.
About 5 ns per row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.kernels import (
    Bools,
    Float32s,
    Float64s,
    Int8s,
    Int32s,
    Int64s,
    Uint8s,
    Uint16s,
    kernel,
)
from hmd.heat.rates.poisson_bounds import ANSCOMBE

_LEAST_SUPPORT: Final = 1e-9


class ViewRows(NamedTuple):
    """The columns of a page view that are read; shape ``(n,)``."""

    tier: Int8s
    size: Uint16s
    wear: Uint8s
    process: Int32s
    rate: Float32s
    support: Float32s


class MoveWeights(NamedTuple):
    """What is saved and spent.

    ``seconds`` of its accesses that a page saves, by process; ``move_ns`` per move, by wear, shape
    ``(256,)``.
    """

    seconds: Float64s
    move_ns: Float64s


class RowValues(NamedTuple):
    """The movable rows; shape ``(n,)``.

    ``row`` of the view, the tier where it is ``here``, and its ``size`` in 4 KiB pages. Each 4 KiB
    saves ``least`` and ``most`` per ns of latency, at either end of what samples allow; all of them
    ``served`` at most. A move costs ``cost`` ns. ``known`` rows have samples enough to be promoted.
    """

    row: Int64s
    here: Int8s
    size: Int64s
    least: Float64s
    most: Float64s
    served: Float64s
    cost: Float64s
    known: Bools

    @classmethod
    def empty(cls, rows: int) -> RowValues:
        """Return columns to be filled."""
        return cls(
            np.empty(rows, np.int64),
            np.empty(rows, np.int8),
            np.empty(rows, np.int64),
            np.empty(rows, np.float64),
            np.empty(rows, np.float64),
            np.empty(rows, np.float64),
            np.empty(rows, np.float64),
            np.empty(rows, np.bool_),
        )

    def first(self, rows: int) -> RowValues:
        """Return the columns of the first rows."""
        return RowValues(
            self.row[:rows],
            self.here[:rows],
            self.size[:rows],
            self.least[:rows],
            self.most[:rows],
            self.served[:rows],
            self.cost[:rows],
            self.known[:rows],
        )


class Rivals(NamedTuple):
    """Rows that compete for a tier, and what each gains or loses in ns; shape ``(n,)``."""

    coming: Int64s
    gain: Float64s
    leaving: Int64s
    loss: Float64s

    @classmethod
    def empty(cls, rows: int) -> Rivals:
        """Return columns to be filled."""
        return cls(
            np.empty(rows, np.int64),
            np.empty(rows, np.float64),
            np.empty(rows, np.int64),
            np.empty(rows, np.float64),
        )


@kernel
def value_rows(
    rows: ViewRows, weights: MoveWeights, confidence: float, samples_min: float, into: RowValues
) -> int:
    """Fill ``into`` with the movable rows; return how many there are.

    ``confidence`` is in standard deviations of a page's heat, ``samples_min`` what a known row has.
    """
    end, half = 0, confidence / 2.0
    for row in range(len(rows.tier)):
        if rows.tier[row] < 0:
            continue
        support, size = np.float64(rows.support[row]), np.int64(rows.size[row])
        root = np.sqrt(support + ANSCOMBE)
        each = np.float64(rows.rate[row]) * weights.seconds[rows.process[row]]
        each = each / max(support, _LEAST_SUPPORT)
        below = max(root - half, 0.0)
        most = each * ((root + half) * (root + half)) if support > 0.0 else 0.0
        into.row[end], into.here[end], into.size[end] = row, rows.tier[row], size
        into.least[end], into.most[end] = each * (below * below), most
        into.served[end], into.cost[end] = most * size, weights.move_ns[rows.wear[row]]
        into.known[end] = support >= samples_min
        end += 1
    return end


@kernel
def find_rivals(
    tier: int, wanted: Int8s, values: RowValues, latency_ns: Float64s, into: Rivals
) -> tuple[int, int]:
    """Fill the rows whose promotion to a tier gains, and all that are wanted there.

    ``wanted`` is the tier of each row so far, ``latency_ns`` that of each tier. Returns how many
    come, and how many can leave.
    """
    coming = leaving = 0
    lost_ns = latency_ns[tier + 1] - latency_ns[tier]
    for at in range(len(wanted)):
        if wanted[at] == tier:
            into.leaving[leaving] = at
            into.loss[leaving] = values.most[at] * lost_ns + values.cost[at]
            leaving += 1
        elif wanted[at] > tier and values.known[at]:
            nearer_ns = latency_ns[values.here[at]] - latency_ns[tier]
            gain = values.least[at] * nearer_ns - values.cost[at]
            if gain > 0.0:
                into.coming[coming], into.gain[coming] = at, gain
                coming += 1
    return coming, leaving
