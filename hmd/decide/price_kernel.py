"""The prices of the learned policy: what each promotion gains and each demotion loses.

Takes columns of a view and the prices of a tick, gives the rows that may move with their values.
About 3 ns per row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hmd.heat.kernels import Float32s, Float64s, Int8s, Int64s, Uint8s, kernel


class PricedRows(NamedTuple):
    """Columns of shape ``(n,)``.

    ``tier`` is where a row is to be so far, ``here`` where it is, ``rate`` what it has now;
    ``served`` are its predicted accesses within the horizon, over the parallelism.
    """

    tier: Int8s
    here: Int8s
    wear: Uint8s
    rate: Float32s
    served: Float32s


class MovePrices(NamedTuple):
    """Nanoseconds: per access of each tier, and per move by wear, shape ``(256,)``.

    The second has the margin by which moves have to pay.
    """

    latency: Float64s
    move: Float64s


class PricedMovers(NamedTuple):
    """What the kernel fills: rows, and what each gains or loses; each of shape ``(n,)``."""

    coming: Int64s
    gain: Float64s
    leaving: Int64s
    loss: Float64s


@kernel
def price_moves(
    rows: PricedRows, prices: MovePrices, fast: int, movers: PricedMovers
) -> tuple[int, int]:
    """Fill rows whose promotion to tier ``fast`` gains, and all that can leave it.

    Returns how many come and leave.
    """
    coming = leaving = 0
    lost_ns = prices.latency[fast + 1] - prices.latency[fast]
    for row in range(len(rows.served)):
        served = np.float64(rows.served[row])
        move_ns = prices.move[rows.wear[row]]
        if rows.tier[row] == fast:
            movers.leaving[leaving] = row
            movers.loss[leaving] = served * lost_ns + move_ns
            leaving += 1
        elif rows.tier[row] > fast and rows.rate[row] > 0:
            nearer_ns = prices.latency[rows.here[row]] - prices.latency[fast]
            gain = served * nearer_ns - move_ns
            if gain > 0:
                movers.coming[coming] = row
                movers.gain[coming] = gain
                coming += 1
    return coming, leaving
