"""The histogram policy: fill the fast tiers, less headroom, with the hottest pages that fit.

Takes rates per page and the machine, gives a plan; about 12 ns per tracked page and 0.4 µs per
move. The threshold between hot and cold follows from the histogram of heat and the free memory,
never from a setting (as in Lee et al., "MEMTIS", SOSP 2023), so that it suits any program and any
machine. With more than two tiers, pages that do not fit a tier compete for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.planning.wanted import Wanted
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView


@dataclass(frozen=True, slots=True)
class HistogramSettings:
    """How the histogram policy decides."""

    headroom_fraction: float | None = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    hysteresis: float = knob(
        1.5,
        "How many times hotter a page must be than the one that it displaces.",
        least=1,
        search=Search(1, 8, log=True),
    )
    confidence: float = knob(
        1.2,
        "How certain that must be, in standard deviations of each page's heat.",
        most=10,
        search=Search(0, 4),
    )
    samples_min: float = knob(
        2.0,
        "Samples that a page needs before it is promoted.",
        most=1000,
        search=Search(1, 32, log=True),
    )
    worth_fraction: float = knob(
        0.1,
        "A page colder than this share of the faster tier's mean may use free memory there, but"
        " displaces no other page: the swap would cost more than it saves.",
        Unit.SHARE,
        key="worth",
        most=1,
        search=Search(0, 0.5),
    )


class Histogram:
    """Selects the hottest pages that fit, by a histogram of heat."""

    name = "histogram"

    def __init__(self, settings: HistogramSettings | None = None) -> None:
        self.settings = settings or HistogramSettings()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        from hmd.decide.planning.hottest_fit import FitPages, FitResult, FitRule, choose
        from hmd.decide.planning.plan_builder import build_plan

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        resident = pages.pages_by_node(len(nodes.tier))[0].sum(axis=0)
        rule = FitRule(
            float(settings.confidence),
            float(settings.hysteresis),
            float(settings.samples_min),
            float(machine.tick_s),
        )
        columns = FitPages(pages.tier, pages.size, pages.wear, pages.rate, pages.support)
        result = FitResult(
            np.empty(len(pages), np.int8), np.empty(len(pages), np.float32), np.zeros(nodes.tiers)
        )
        promoted = choose(columns, nodes.by_tier(resident + nodes.room), rule, result)
        if not promoted and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(pages.processes)
        accesses, beyond_pages = pages.beyond
        served = result.served + nodes.tier_sums(accesses.sum(axis=0)) * machine.tick_s
        there = nodes.by_tier(resident) + nodes.tier_sums(beyond_pages.sum(axis=0))
        mean = served / np.maximum(there, 1)
        worth = settings.worth_fraction * mean
        wanted = Wanted(result.wanted, result.key, worth=worth, fills=True)
        return build_plan(pages, nodes, wanted, machine.budget_bytes)


ABOUT = About(
    name=Histogram.name,
    does="Fills the fast tiers, less their headroom, with the hottest pages that fit.",
    use="Programs whose hot set is small and stays: it knows no cost of moves.",
    settings=HistogramSettings,
    make=Histogram,
    kernels=("hmd.decide.planning.hottest_fit",),
    guard=True,
)
