# SPDX-License-Identifier: MIT
"""The default policy: a move is made if it saves more time than it costs.

Takes rates per page, latencies of tiers and the persistence of heat
(:mod:`hmd.policy.horizon`), gives a plan. A promotion saves the page's accesses
per second, times the difference in latency, divided by the memory-level parallelism of the process,
times the seconds that its heat is expected to last. It costs its own move and, where the tier is
full, the loss and the move of the coldest page there. Candidates and victims are paired from both
ends until a pair does not pay. So nothing moves where nothing pays, and there is no threshold to
set. Latencies are current, from samples: where the bandwidth of a fast tier is the limit, loads
wait longer for it than for the tier below, and hot pages are demoted until they wait alike.

Rates are the expected accesses of pages, whatever their number of samples (:mod:`hmd.heat.rates`),
and, as far as what was hot comes back, the mean of many ticks (:mod:`hmd.policy.long_run`). With
``confidence``, savings and losses are taken at the cautious end of what samples allow. About 60 ns
per page.

Where samples count no accesses, no time follows from them, and it plans as
:mod:`hmd.policy.builtin.histogram` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView, Plan
from hmd.policy.saving import MoveTerms, PayingMoves, RateCorrection
from hmd.policy.settings import HeadroomSettings, PolicyInfo, Search

if TYPE_CHECKING:
    from hmd.heat.view import PageView


class BenefitSettings(HeadroomSettings):
    """How the benefit policy decides."""

    move_ns: Annotated[
        float,
        Field(
            ge=1,
            description="Cost of moving 4 KiB to its program, in nanoseconds: a higher cost means"
            " fewer moves.",
        ),
        Search(200, 50000, log=True),
    ] = 3000.0
    confidence: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="How certain a gain must be, in standard deviations of each page's heat.",
        ),
        Search(0, 4),
    ] = 0.6
    samples_min: Annotated[
        float,
        Field(ge=0, le=1000, description="Samples that a page needs before it is promoted."),
        Search(1, 32, log=True),
    ] = 1.0


class Benefit:
    """Makes the moves that save more time than they cost."""

    name = "benefit"

    def __init__(
        self, settings: BenefitSettings | None = None, correct: RateCorrection | None = None
    ) -> None:
        """Decide with rates as they are, or as ``correct`` returns them."""
        self.settings = settings or BenefitSettings()
        self.moves = PayingMoves(correct)
        kept = HistogramSettings(
            headroom=self.settings.headroom, headroom_min=self.settings.headroom_min
        )
        self._ranking = Histogram(kept)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        if not machine.counted:
            return self._ranking.plan(pages, machine)
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        terms = MoveTerms(settings.move_ns, settings.confidence, settings.samples_min)
        return self.moves.plan(pages, machine, nodes, terms)


POLICY = PolicyInfo(
    name=Benefit.name,
    summary="Makes the moves that save more time than they cost.",
    suits="All programs: a good first choice.",
    settings_type=BenefitSettings,
    create=Benefit,
    kernels=("hmd.policy.saving", "hmd.policy.long_run", "hmd.policy.builtin.histogram"),
)
