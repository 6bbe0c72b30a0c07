"""The default policy: a move is made if it saves more time than it costs.

Takes rates per page, latencies of tiers and the persistence of heat
(:mod:`hmd.decide.cost_benefit.persistence`), gives a plan. A promotion saves the page's accesses
per second, times the difference in latency, divided by the memory-level parallelism of the process,
times the seconds that its heat is expected to last. It costs its own move and, where the tier is
full, the loss and the move of the coldest page there. Candidates and victims are paired from both
ends until a pair does not pay. So nothing moves where nothing pays, and there is no threshold to
set. Latencies are current, from samples: where the bandwidth of a fast tier is the limit, loads
wait longer for it than for the tier below, and hot pages are demoted until they wait alike.

Rates are the expected accesses of pages, whatever their number of samples
(:mod:`hmd.heat.rates.posterior_rates`). With ``confidence``, savings and losses are taken at the
cautious end of what samples allow. About 60 ns per page.

Where samples count no accesses, no time follows from them, and it plans as
:mod:`hmd.decide.policies.histogram` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hmd.decide.cost_benefit.paying_moves import PayingMoves
from hmd.decide.cost_benefit.savings_ledger import MoveTerms
from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.policies.histogram import Histogram, HistogramSettings
from hmd.decide.tunables import About, Search, headroom_bytes, headroom_fraction, knob

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView


@dataclass(frozen=True, slots=True)
class BenefitSettings:
    """How the benefit policy decides."""

    headroom_fraction: float = headroom_fraction()
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
        self._moves = PayingMoves()
        kept = HistogramSettings(self.settings.headroom_fraction, self.settings.headroom_bytes)
        self._ranking = Histogram(kept)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        if not machine.counted:
            return self._ranking.plan(pages, machine)
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        terms = MoveTerms(settings.move_ns, settings.confidence, settings.samples_min)
        return self._moves.plan(pages, machine, nodes, terms)


ABOUT = About(
    name=Benefit.name,
    does="Makes the moves that save more time than they cost.",
    use="All programs: a good first choice.",
    settings=BenefitSettings,
    make=Benefit,
    kernels=("hmd.decide.cost_benefit.move_values", "hmd.decide.planning.hottest_fit"),
    default=True,
)
