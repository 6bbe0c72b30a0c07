"""Moves that pay: the decision that the policies ``benefit`` and ``learned`` share.

Takes a page view with a rate per page, gives a plan. Rates differ between the policies; latencies,
persistence of heat, balance of bandwidth and prices of moves do not. About 60 ns per page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hmd.decide.cost_benefit.bandwidth_balance import Balance
from hmd.decide.cost_benefit.loaded_latency import loaded_latency_ns
from hmd.decide.cost_benefit.parallelism import parallelism
from hmd.decide.cost_benefit.persistence import Persistence
from hmd.decide.cost_benefit.savings_ledger import ExpectedRates, MoveTerms, Rates, SavingsLedger
from hmd.decide.node_arrays import Nodes
from hmd.decide.plan import MachineView, Plan

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

_NO_LIMIT: Final = 2.0
_LEAST_TICKS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Prediction:
    """The ``rate`` of each page in the next ``ticks``, and its rate ``beyond`` them, by row.

    Rates are accesses per second and 4 KiB; ``support`` has the samples behind them.
    """

    rate: Rates
    ticks: int
    beyond: Rates
    support: Rates


class PayingMoves:
    """Plans the moves that save more time than they cost; keeps what it learns between ticks."""

    def __init__(self) -> None:
        self._persistence = Persistence()
        self._balance = Balance()

    def plan(
        self,
        pages: PageView,
        machine: MachineView,
        nodes: Nodes,
        terms: MoveTerms,
        prediction: Prediction | None = None,
    ) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays.

        Pages are expected to have the rates of the view, but for a ``prediction``.
        """
        from hmd.decide.planning.plan_builder import build_plan

        ticks = self._persistence.horizon(pages)
        # Until they have moved, pages save nothing.
        horizon_s = np.maximum(ticks * machine.tick_s - machine.move_delay_s, 0.0)
        rate, support = pages.rate, pages.support
        if prediction is not None:
            # The mean over the horizon, which may be longer than the next ticks.
            part = np.minimum(prediction.ticks / np.maximum(ticks, _LEAST_TICKS), 1.0)
            near, rate, support = prediction.rate, prediction.beyond, prediction.support
            rate = rate + part.astype(np.float32)[pages.process] * (near - rate)
        expected = ExpectedRates(rate, support)
        weight_s = horizon_s / parallelism(pages, machine)
        ledger = SavingsLedger(pages, expected, terms, weight_s)
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        movers = 0
        for tier, share in enumerate(ledger.shares(nodes)[:-1]):
            most = self._balance.ceiling(tier, share, latency[tier], latency[tier + 1])
            limit = most - share if most < 1 else _NO_LIMIT
            movers += ledger.fill(tier, latency, nodes, limit)
            movers += ledger.shed(tier, latency, share - most)
        self._persistence.follow(pages, ledger.competitors(), rate)
        if not movers and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(pages.processes)
        return build_plan(pages, nodes, ledger.wanted_rows(), machine.budget_bytes)
