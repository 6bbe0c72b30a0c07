# SPDX-License-Identifier: MIT
"""The default policy: a move is made if it saves more time than it costs.

Moves pay as :mod:`hmd.policy.saving` says, by the expected accesses of pages whatever their number
of samples (:mod:`hmd.heat.rates`), mixed with the mean of many ticks where what was hot comes back
(:mod:`hmd.policy.long_run`), for as long as heat is expected to last (:mod:`hmd.policy.horizon`),
divided by how many misses of a process overlap. So there is no threshold to set. Latencies are
current, from samples: where the bandwidth of a fast tier is the limit, loads wait longer for it
than for the tier below, and hot pages are demoted until they wait alike
(:mod:`hmd.policy.latency`). With ``confidence``, savings and losses are taken at the cautious end
of what samples allow.

Where samples count no accesses, no time follows from them, and it plans as
:mod:`hmd.policy.builtin.histogram` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hmd.base.units import MOVE_NS
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.former_runs import FormerRunMoves
from hmd.policy.horizon import Cohorts, Persistence
from hmd.policy.latency import BandwidthBalance, loaded_latency_ns, parallelism
from hmd.policy.long_run import LongRun
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView, Plan
from hmd.policy.planning import build_plan
from hmd.policy.saving import MoveTerms, SavingsLedger, ValueColumns, Values
from hmd.policy.settings import HeadroomSettings, PolicyInfo, Search

if TYPE_CHECKING:
    from hmd.heat.view import PageView

_NO_LIMIT: Final = 2.0
_MIN_HORIZON_S: Final = 1e-6

Rates = npt.NDArray[np.float32]


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
    ] = MOVE_NS
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
    """Makes the moves that save more time than they cost; keeps what it learns between ticks."""

    name = "benefit"

    def __init__(self, settings: BenefitSettings | None = None) -> None:
        self.settings = settings or BenefitSettings()
        cohorts = Cohorts()
        self.long_run, self.persistence = LongRun(cohorts), Persistence(cohorts)
        self._balance, self._former = BandwidthBalance(), FormerRunMoves()
        kept = HistogramSettings(
            headroom=self.settings.headroom, headroom_min=self.settings.headroom_min
        )
        self._ranking = Histogram(kept)

    def expected_rates(self, pages: PageView, rate: Rates, horizon_ticks: Values) -> Rates:
        """Return the accesses per second and base page by which moves have to pay, ``(n,)``.

        ``rate`` are those of the view mixed with the long run, ``horizon_ticks`` for how long moves
        have to pay, by process.
        """
        del pages, horizon_ticks
        return rate

    def value_columns(
        self, pages: PageView, machine: MachineView, rate: Rates, horizon_s: Values
    ) -> ValueColumns:
        """Return what the rows are valued by, with the expected rates, for ``horizon_s``."""
        del machine, horizon_s
        return ValueColumns(
            pages.tier, pages.size, pages.wear, pages.process, rate, pages.effective_samples
        )

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        if not machine.counted:
            return self._ranking.plan(pages, machine)
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        rate = self.long_run.mix_rates(pages)
        ticks = self.persistence.horizons(pages)
        rate = self.expected_rates(pages, rate, ticks)
        # Until they have moved, pages save nothing.
        horizon_s = np.maximum(ticks * machine.tick_s - machine.move_delay_s, _MIN_HORIZON_S)
        overlap = parallelism(pages, machine)
        terms = MoveTerms(settings.move_ns, settings.confidence, settings.samples_min)
        columns = self.value_columns(pages, machine, rate, horizon_s)
        ledger = SavingsLedger(pages, columns, terms, horizon_s / overlap)
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        moves, room = 0, nodes.by_tier(nodes.room)
        for tier, share in enumerate(ledger.tier_shares(nodes)[:-1]):
            limit = self._balance.max_share(tier, share, latency[tier], latency[tier + 1])
            more = limit - share if limit < 1 else _NO_LIMIT
            moves += ledger.promote_paying(tier, latency, int(room[tier]), more)
            moves += ledger.demote_for_bandwidth(tier, latency, share - limit)
        self.persistence.follow_hottest(pages, ledger.competing_rows(), rate)
        request = ledger.request()
        if machine.priors:
            found = request, pages, machine, terms, latency, overlap
            moves += self._former.add(*found, int(room[0]))
        if not moves and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(pages.processes)
        return build_plan(pages, nodes, request, machine.budget_bytes)


POLICY = PolicyInfo(
    name=Benefit.name,
    summary="Makes the moves that save more time than they cost.",
    suits="All programs: a good first choice.",
    settings_type=BenefitSettings,
    create=Benefit,
    kernels=("hmd.policy.saving", "hmd.policy.long_run", "hmd.policy.builtin.histogram"),
)
