"""The savings ledger: what each page saves on each tier, and where it is wanted so far.

Takes a page view with the rate of each page, gives wanted tiers. A promotion saves the page's
accesses per second, times the difference in latency, times the seconds that its heat is expected to
last. It costs its own move and, where the tier is full, the loss and the move of the coldest page
there. Candidates and victims are paired from both ends until a pair does not pay
(:mod:`hmd.decide.cost_benefit.paying_pairs`). About 50 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.decide.cost_benefit.move_values import (
    MoveWeights,
    Rivals,
    RowValues,
    ViewRows,
    find_rivals,
    value_rows,
)
from hmd.decide.cost_benefit.paying_pairs import Side, falling, paying_pairs
from hmd.decide.node_arrays import Nodes
from hmd.decide.planning.wanted import Wanted
from hmd.heat.geometry import MOVE_WEAR

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

_LEAST_SUPPORT: Final = 1e-9
# Wear of one move doubles the cost of the next.
_MOVES_OF_WEAR: Final = np.exp2(np.arange(256) / float(MOVE_WEAR))

Values = npt.NDArray[np.float64]
Rates = npt.NDArray[np.float32]


class MoveTerms(NamedTuple):
    """When a move is made: settings of a policy that makes the moves that pay.

    ``move_ns`` is the cost of moving 4 KiB to its program, ``confidence`` how certain a gain must
    be, in standard deviations of a page's heat, ``samples_min`` the samples that a page needs.
    """

    move_ns: float
    confidence: float
    samples_min: float


class ExpectedRates(NamedTuple):
    """Accesses per second and 4 KiB page, and the samples behind them; shape ``(rows,)``."""

    rate: Rates
    support: Rates


class SavingsLedger:
    """The movable pages as columns of shape ``(n,)``, and the tier on which each is wanted so far.

    ``value`` is what a page saves per nanosecond of latency on the tier where it is wanted, until
    its heat ends.
    """

    def __init__(
        self, pages: PageView, expected: ExpectedRates, terms: MoveTerms, weight_s: Values
    ) -> None:
        """Begin with every page wanted where it is.

        ``weight_s`` is how many seconds of its accesses a page saves, by process.
        """
        self._pages = len(pages)
        move_ns = terms.move_ns * _MOVES_OF_WEAR
        columns = RowValues.empty(self._pages)
        count = value_rows(
            ViewRows(pages.tier, pages.size, pages.wear, pages.process, *expected),
            MoveWeights(weight_s, move_ns),
            terms.confidence,
            terms.samples_min,
            columns,
        )
        self._values = values = columns.first(count)
        self.wanted = values.here.copy()
        self._beyond = (pages.beyond.accesses * weight_s[:, None]).sum(axis=0)
        self._all_served = float(values.served.sum() + self._beyond.sum())
        self.value = values.most.copy()
        self._shed = np.zeros(count, np.bool_)

    def shares(self, nodes: Nodes) -> list[float]:
        """Return the share of all accesses that each tier serves."""
        shown = np.bincount(self._values.here, self._values.served, nodes.tiers)
        served = shown + nodes.tier_sums(self._beyond)
        shares: list[float] = (served / max(float(served.sum()), _LEAST_SUPPORT)).tolist()
        return shares

    def fill(self, tier: int, latency: Values, nodes: Nodes, most: float) -> int:
        """Want on a tier the pages that pay there; returns how many.

        Pages of slower tiers are promoted in falling order of what they save, resident pages are
        demoted in rising order of what they lose, as long as the saving exceeds the loss, and until
        the promoted pages have the share ``most`` of all accesses.
        """
        values, rivals = self._values, Rivals.empty(len(self.wanted))
        comes, leaves = find_rivals(tier, self.wanted, values, latency, rivals)
        coming, gain = rivals.coming[:comes], rivals.gain[:comes]
        order = falling(gain)
        coming, gain = coming[order], gain[order]
        share = np.cumsum(values.served[coming])
        fit = np.searchsorted(share, most * self._all_served, side="right")
        coming, gain = coming[:fit], gain[:fit]
        leaving, loss = rivals.leaving[:leaves], rivals.loss[:leaves]
        came, went = paying_pairs(
            Side(gain, values.size[coming]),
            Side(loss, values.size[leaving]),
            int(nodes.by_tier(nodes.room)[tier]),
        )
        came, gone = coming[came], leaving[went]
        self.wanted[came] = tier
        self.wanted[gone] = tier + 1
        self.value[came] = values.least[came]
        return len(came)

    def shed(self, tier: int, latency: Values, share: float) -> int:
        """Want pages with this share of all accesses one tier lower; returns how many.

        The hottest pages take the most load off a tier for the fewest moves. A page is demoted if
        that saves more than its move costs at current latencies.
        """
        if share <= 0:
            return 0
        values = self._values
        there = np.flatnonzero((self.wanted == tier) & (values.here == tier) & values.known)
        saved = values.least[there] * (latency[tier] - latency[tier + 1])
        there = there[saved > values.cost[there]]
        there = there[np.argsort(-values.most[there], kind="stable")]
        served = np.cumsum(values.served[there])
        gone = there[: int(np.searchsorted(served, share * self._all_served, side="right"))]
        self.wanted[gone] = tier + 1
        self._shed[gone] = True
        return len(gone)

    def competitors(self) -> npt.NDArray[np.int64]:
        """Return the rows of the view whose promotion pays; where none does, all that could be."""
        values = self._values
        coming = self.wanted < values.here
        return values.row[coming if coming.any() else (values.here > 0) & values.known]

    def wanted_rows(self) -> Wanted:
        """Return what is wanted by the rows of the view."""
        tier = np.full(self._pages, -1, np.int8)
        key = np.zeros(self._pages, np.float32)
        must = np.zeros(self._pages, np.bool_)
        rows = self._values.row
        tier[rows], key[rows], must[rows] = self.wanted, self.value, self._shed
        return Wanted(tier, key, must)
