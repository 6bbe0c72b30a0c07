"""The default policy: a move is made if it saves more time than it costs.

Takes rates per page, latencies of tiers and the persistence of heat
(:mod:`hmd.decide.persistence`), gives a plan. A promotion saves the page's accesses per second,
times the difference in latency, divided by the memory-level parallelism of the process, times the
seconds that its heat is expected to last. It costs its own move and, where the tier is full, the
loss and the move of the coldest page there. Candidates and victims are paired from both ends until
a pair does not pay. So nothing moves where nothing pays, and there is no threshold to set.
Latencies are current, from samples: where the bandwidth of a fast tier is the limit, loads wait
longer for it than for the tier below, and hot pages are demoted until they wait alike.

Rates are the expected accesses of pages, whatever their number of samples (:mod:`hmd.heat.rates`).
With ``confidence``, savings and losses are taken at the cautious end of what samples allow. About
25 ns per row.

Where samples count no accesses, no time follows from them, and it plans as
:mod:`hmd.decide.policies.histogram` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.bandwidth_balance import Balance
from hmd.decide.loaded_latency import loaded_latency_ns
from hmd.decide.move_values import (
    MoveWeights,
    Rivals,
    RowValues,
    ViewRows,
    find_rivals,
    value_rows,
)
from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.parallelism import parallelism
from hmd.decide.paying_pairs import Side, falling, paying_pairs
from hmd.decide.persistence import Persistence
from hmd.decide.plan import MachineView, Plan
from hmd.decide.policies.histogram import Histogram, HistogramSettings
from hmd.decide.tunables import About, Search, headroom_bytes, headroom_fraction, knob
from hmd.decide.wanted import Wanted
from hmd.heat.geometry import MOVE_WEAR

if TYPE_CHECKING:
    from hmd.heat.page_view import PageView

_NO_LIMIT: Final = 2.0
_LEAST_SUPPORT: Final = 1e-9
# Wear of one move doubles the cost of the next.
_MOVES_OF_WEAR: Final = np.exp2(np.arange(256) / float(MOVE_WEAR))

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BenefitSettings:
    """How the benefit policy decides."""

    headroom_fraction: float | None = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    move_ns: float = knob(
        3000.0,
        "Cost of moving 4 KiB to its program, in nanoseconds: a higher cost means fewer moves.",
        least=1,
        search=Search(200, 50_000, log=True),
    )
    confidence: float = knob(
        0.6,
        "How certain a gain must be, in standard deviations of each page's heat.",
        most=10,
        search=Search(0, 4),
    )
    samples_min: float = knob(
        1.0,
        "Samples that a page needs before it is promoted.",
        most=1000,
        search=Search(1, 32, log=True),
    )


class Benefit:
    """Makes the moves that save more time than they cost."""

    name = "benefit"

    def __init__(self, settings: BenefitSettings | None = None) -> None:
        self.settings = settings or BenefitSettings()
        self._persistence = Persistence()
        self._balance = Balance()
        kept = HistogramSettings(self.settings.headroom_fraction, self.settings.headroom_bytes)
        self._ranking = Histogram(kept)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        from hmd.decide.plan_builder import build_plan

        if not machine.counted:
            return self._ranking.plan(pages, machine)
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        horizon_s = self._persistence.horizon(pages) * machine.tick_s
        ledger = _Ledger(pages, settings, horizon_s / parallelism(pages, machine))
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        movers = 0
        for tier, share in enumerate(ledger.shares(nodes)[:-1]):
            most = self._balance.ceiling(tier, share, latency[tier], latency[tier + 1])
            limit = most - share if most < 1 else _NO_LIMIT
            movers += ledger.fill(tier, latency, nodes, limit)
            movers += ledger.shed(tier, latency, share - most)
        self._persistence.follow(pages, ledger.competitors())
        if not movers and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(pages.processes)
        return build_plan(pages, nodes, ledger.wanted_rows(), machine.budget_bytes)


class _Ledger:
    """The movable pages as columns of shape ``(n,)``, and the tier on which each is wanted so far.

    ``value`` is what a page saves per nanosecond of latency on the tier where it is wanted, until
    its heat ends.
    """

    def __init__(self, pages: PageView, settings: BenefitSettings, weight_s: Values) -> None:
        """``weight_s`` is how many seconds of its accesses a page saves, by process."""
        self._pages = len(pages)
        move_ns = settings.move_ns * _MOVES_OF_WEAR
        columns = RowValues.empty(self._pages)
        count = value_rows(
            ViewRows(pages.tier, pages.size, pages.wear, pages.process, pages.rate, pages.support),
            MoveWeights(weight_s, move_ns),
            settings.confidence,
            settings.samples_min,
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
        """Return the rows of the view that could be promoted."""
        return self._values.row[(self._values.here > 0) & self._values.known]

    def wanted_rows(self) -> Wanted:
        """Return what is wanted by the rows of the view."""
        tier = np.full(self._pages, -1, np.int8)
        key = np.zeros(self._pages, np.float32)
        must = np.zeros(self._pages, np.bool_)
        rows = self._values.row
        tier[rows], key[rows], must[rows] = self.wanted, self.value, self._shed
        return Wanted(tier, key, must)


ABOUT = About(
    name=Benefit.name,
    does="Makes the moves that save more time than they cost.",
    use="All programs: a good first choice.",
    settings=BenefitSettings,
    make=Benefit,
    default=True,
    kernels=("hmd.decide.move_values", "hmd.decide.hottest_fit"),
)
