"""Moves that pay: the time that each saves until its page cools again, less what moving costs.

Takes rates per page, latencies of tiers, and how long heat has lasted so far
(:mod:`hmd.decide.persistence`); gives a plan. A page's accesses a tick, times what one of them
would be faster on the tier above, divided by how many overlap, times the ticks that its heat is
expected to last, is what a promotion saves; against it stand its own move and, where the tier is
full, the coldest page's: that one's loss and its move. Pairs are made from both ends until one does
not pay. So nothing moves where nothing pays, and no threshold is set by anyone. Latencies are those
of now, as samples tell them: where the bandwidth of a fast tier is the limit, loads wait longer for
it than for the tier below, and hot pages go down until they wait alike.

Both are taken at the cautious end of what a page's samples allow. About 60 ns a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.bandwidth_balance import Balance
from hmd.decide.loaded_latency import loaded_latency_ns
from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.persistence import Persistence
from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About, Search, headroom_bytes, headroom_fraction, knob
from hmd.heat.geometry import CHUNK_PAGES
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable, PageRates

# Anscombe's transform of a Poisson count n has standard deviation 1/2: sqrt(n + 3/8).
_ANSCOMBE: Final = 0.375
# Wear of one move doubles the cost of the next.
_WEAR_OCTAVE: Final = 64.0
_MORE_THAN_ALL: Final = 2.0
_LEAST_SUPPORT: Final = 1e-9

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BenefitSettings:
    """How the benefit policy decides."""

    headroom_fraction: float = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    move_ns: float = knob(
        5000.0,
        "Nanoseconds that moving a page of 4 KiB takes from its program: more of it moves less.",
        least=1,
        search=Search(200, 50_000, log=True),
    )
    confidence: float = knob(
        2.0,
        "How sure of a gain, in standard deviations of each page's heat.",
        most=10,
        search=Search(0, 4),
    )
    samples_min: float = knob(
        2.0,
        "Samples that a page must rest on before it is promoted.",
        most=1000,
        search=Search(1, 32, log=True),
    )


class Benefit:
    """Promotes what saves more than it costs."""

    name = "benefit"

    def __init__(self, settings: BenefitSettings | None = None) -> None:
        self.settings = settings or BenefitSettings()
        self._persistence = Persistence()
        self._balance = Balance()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        from hmd.decide.plan_builder import placing

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not heat.chunks.used or machine.budget_bytes < PAGE_BYTES:
            return Plan.empty(heat.processes)
        rates = heat.rates()
        horizon = self._persistence.horizon(heat, rates)
        pages = _BenefitPages(
            heat, nodes, rates, settings, horizon / _overlap(heat, machine, rates)
        )
        latency = loaded_latency_ns(heat, machine.topology, nodes)
        movers = 0
        for tier, share in enumerate(pages.shares(nodes.tiers)[:-1]):
            most = self._balance.ceiling(tier, share, latency[tier], latency[tier + 1])
            movers += pages.fill(tier, latency, nodes, most - share if most < 1 else _MORE_THAN_ALL)
            movers += pages.shed(tier, latency, share - most)
        if not movers and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(heat.processes)
        plan = placing(
            heat,
            nodes,
            pages.tiers(),
            pages.values(),
            np.zeros(nodes.tiers),
            rates.rate,
            machine.budget_bytes,
            must=pages.must(),
        )
        up = nodes.tier[plan.to_node] < nodes.tier[plan.from_node]
        self._persistence.planned(plan.take(np.flatnonzero(up)), heat, rates)
        return plan


class _BenefitPages:
    """The movable pages as columns of shape ``(n,)``, and where they are wanted so far.

    ``value`` is what a page on the tier where it is wanted saves a nanosecond of latency, until it
    cools.
    """

    def __init__(
        self,
        heat: HeatTable,
        nodes: Nodes,
        rates: PageRates,
        settings: BenefitSettings,
        weight: Values,
    ) -> None:
        columns, used = heat.chunks.columns, heat.chunks.used
        here = nodes.of_pages(columns.node[:used])
        counts = here >= 0
        counts[:, 1:] &= ~columns.huge[:used, None]
        self._shape = counts.shape
        self._at = np.flatnonzero(counts)
        chunk = self._at // CHUNK_PAGES
        self._size = np.where(columns.huge[chunk], CHUNK_PAGES, 1)
        process = columns.process[chunk]
        rate, self._support = _shrunk(
            rates.rate.reshape(-1)[self._at].astype(np.float64),
            rates.support.reshape(-1)[self._at].astype(np.float64),
            process,
        )
        self._here = here.reshape(-1)[self._at]
        self.wanted = self._here.copy()
        root = np.sqrt(self._support + _ANSCOMBE)
        each = rate * weight[process] / np.maximum(self._support, _LEAST_SUPPORT)
        half = settings.confidence / 2
        self._least = each * np.maximum(root - half, 0.0) ** 2
        self._most = np.where(self._support > 0, each * (root + half) ** 2, 0.0)
        worn = np.exp2(columns.wear[:used].reshape(-1)[self._at] / _WEAR_OCTAVE)
        self._cost = settings.move_ns * worn
        self._known = rates.support.reshape(-1)[self._at] >= settings.samples_min
        self.value = self._most.copy()
        self._shed = np.zeros(len(self._at), np.bool_)

    def shares(self, tiers: int) -> list[float]:
        """Return the share of all accesses that each tier serves."""
        served = np.bincount(self._here, self._most, tiers)
        shares: list[float] = (served / max(float(served.sum()), _LEAST_SUPPORT)).tolist()
        return shares

    def fill(self, tier: int, latency: Values, nodes: Nodes, most: float) -> int:
        """Want on a tier what pays there, and a tier lower what makes room; returns how many come.

        Pages of slower tiers come in falling order of what they save, those that are there leave
        in rising order of what they lose, as long as the one is more than the other, and until what
        comes has ``most`` of all accesses.
        """
        coming = np.flatnonzero((self.wanted > tier) & self._known)
        nearer = latency[self._here[coming]] - latency[tier]
        gain = self._least[coming] * nearer - self._cost[coming]
        coming, gain = coming[gain > 0], gain[gain > 0]
        order = np.argsort(-gain, kind="stable")
        coming, gain = coming[order], gain[order]
        fit = np.searchsorted(np.cumsum(self._most[coming]), most * self._most.sum(), side="right")
        coming, gain = coming[:fit], gain[:fit]
        room = int(nodes.by_tier(nodes.room)[tier])
        leaving = np.flatnonzero(self.wanted == tier)
        loss = self._most[leaving] * (latency[tier + 1] - latency[tier]) + self._cost[leaving]
        order = np.argsort(loss, kind="stable")
        leaving, loss = leaving[order], loss[order]
        made = np.cumsum(self._size[leaving])
        needed = np.cumsum(self._size[coming]) - max(room, 0)
        last = np.searchsorted(made, needed)
        price = np.where(needed > 0, np.append(loss, np.inf)[last], 0.0)
        stop = np.flatnonzero(gain <= price)
        count = int(stop[0]) if len(stop) else len(coming)
        needs = max(-room, 0) + (max(int(needed[count - 1]), 0) if count else 0)
        gone = leaving[: int(np.searchsorted(made, needs)) + 1] if needs else leaving[:0]
        self.wanted[coming[:count]] = tier
        self.wanted[gone] = tier + 1
        self.value[coming[:count]] = self._least[coming[:count]]
        return count

    def shed(self, tier: int, latency: Values, share: float) -> int:
        """Want pages with this share of all accesses a tier lower; returns how many go.

        The hottest take most of the load off a tier for the fewest moves. Those go that save more
        on the other tier than their move takes, as long as loads wait as they do now.
        """
        if share <= 0:
            return 0
        there = np.flatnonzero((self.wanted == tier) & (self._here == tier) & self._known)
        saved = self._least[there] * (latency[tier] - latency[tier + 1])
        there = there[saved > self._cost[there]]
        there = there[np.argsort(-self._most[there], kind="stable")]
        served = np.cumsum(self._most[there])
        gone = there[: int(np.searchsorted(served, share * self._most.sum(), side="right"))]
        self.wanted[gone] = tier + 1
        self._shed[gone] = True
        return len(gone)

    def must(self) -> npt.NDArray[np.bool_]:
        """Tell which pages leave their tier whether room is needed or not, ``(chunks, 512)``."""
        table = np.zeros(self._shape, np.bool_)
        table.reshape(-1)[self._at] = self._shed
        return table

    def tiers(self) -> npt.NDArray[np.int8]:
        """Return the tiers where pages are wanted, shape ``(chunks, 512)``; -1 for what stays."""
        table = np.full(self._shape, -1, np.int8)
        table.reshape(-1)[self._at] = self.wanted
        return table

    def values(self) -> npt.NDArray[np.float32]:
        """Return the values of pages, shape ``(chunks, 512)``; 0 for what stays."""
        table = np.zeros(self._shape, np.float32)
        table.reshape(-1)[self._at] = self.value
        return table


def _shrunk(rate: Values, support: Values, process: npt.NDArray[np.int32]) -> tuple[Values, Values]:
    """Return rates and supports drawn towards the mean of their process, as far as chance goes.

    Of many pages that are all alike the hottest looks hot, and swaps would never end. How much
    pages differ beyond chance, by the method of moments, is the prior of a Gamma-Poisson model, as
    :mod:`hmd.heat.rates` has it within blocks. All columns have shape ``(n,)``.
    """
    seen = support > 0
    slots = int(process.max(initial=-1)) + 1
    count = np.maximum(np.bincount(process[seen], minlength=slots), 1)
    mean = np.bincount(process[seen], rate[seen], slots) / count
    unit = rate / np.maximum(support, _LEAST_SUPPORT)
    gap = (rate - mean[process]) ** 2 - mean[process] * unit
    beyond = np.maximum(np.bincount(process[seen], gap[seen], slots) / count, 0.0)
    alike = (mean**2 / np.maximum(beyond, _LEAST_SUPPORT * np.maximum(mean**2, 1e-30)))[process]
    own = np.maximum(mean[process], 1e-30)
    exposed = support / np.maximum(rate, 1e-30) + alike / own
    drawn = np.divide(support + alike, exposed, out=rate.copy(), where=seen)
    return drawn, np.where(seen, support + alike, support)


def _overlap(heat: HeatTable, machine: MachineView, rates: PageRates) -> Values:
    """Return how many misses of each process are under way at once at least, by process.

    If waiting for them one after another would take longer than all CPUs had time for, they were
    not waited for one after another.
    """
    columns, used = heat.chunks.columns, heat.chunks.used
    known = np.array([*machine.topology.latency_ns, 0.0])
    node = columns.node[:used]
    told = (node >= 0) & (node < len(known))
    waited = rates.rate * known[np.where(told, node, len(known) - 1)]
    per_process = np.bincount(
        columns.process[:used], weights=waited.sum(axis=1), minlength=len(heat.processes)
    )
    cpus = sum(len(each.cpus) for each in machine.topology.nodes)
    return np.maximum(per_process / (machine.tick_s * 1e9 * max(cpus, 1)), 1.0)


ABOUT = About(
    name=Benefit.name,
    does="Makes the moves that save more time than they cost, by latency, overlap and persistence.",
    use="Everything: it fills the fast tiers like histogram, and keeps still where that is best.",
    settings=BenefitSettings,
    make=Benefit,
)
