"""The default policy: fill the fast tiers, less headroom, with the hottest pages that fit.

Takes rates per page and the machine, gives a plan; about 30 ns a tracked page and 0.3 µs a move.
The threshold between hot and cold comes from the histogram of heat and the room there is, never
from a setting (as in Lee et al., "MEMTIS", SOSP 2023), so that it holds for any program and any
machine. Any number of tiers: what does not fit a tier competes for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob
from hmd.heat.geometry import CHUNK_PAGES
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable


@dataclass(frozen=True, slots=True)
class HistogramSettings:
    """How the histogram policy decides."""

    headroom_fraction: float = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    hysteresis: float = knob(
        1.5,
        "How many times hotter a page must be than the one that it displaces.",
        least=1,
        search=Search(1, 8, log=True),
    )
    confidence: float = knob(
        1.25,
        "How sure of that, in standard deviations of each page's heat.",
        most=10,
        search=Search(0, 4),
    )
    samples_min: float = knob(
        2.0,
        "Samples that a page must rest on before it is promoted.",
        most=1000,
        search=Search(1, 32, log=True),
    )
    worth_fraction: float = knob(
        0.1,
        "A page colder than this share of the faster tier's mean may fill free room there, but"
        " displaces none: the swap would cost more than it brings.",
        Unit.SHARE,
        key="worth",
        most=1,
        search=Search(0, 0.5),
    )


class Histogram:
    """The hottest set that fits, by histogram."""

    name = "histogram"

    def __init__(self, settings: HistogramSettings | None = None) -> None:
        self.settings = settings or HistogramSettings()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        from hmd.decide.hottest_fit import choose
        from hmd.decide.plan_builder import placing

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not heat.chunks.used or machine.budget_bytes < PAGE_BYTES:
            return Plan.empty(heat.processes)
        movable, _ = heat.resident_pages(len(nodes.tier))
        holds = movable.sum(axis=0) + nodes.room
        capacity = nodes.by_tier(holds)
        rates = heat.rates()
        wanted = np.empty((heat.chunks.used, CHUNK_PAGES), np.int8)
        key = np.empty((heat.chunks.used, CHUNK_PAGES), np.float32)
        served = np.zeros(nodes.tiers, np.float64)
        columns = heat.chunks.columns
        risers = choose(
            heat.chunks.used,
            columns.huge,
            columns.node,
            columns.wear,
            rates.rate,
            rates.support,
            nodes.tier,
            capacity,
            settings.confidence,
            settings.hysteresis,
            settings.samples_min,
            wanted,
            key,
            served,
        )
        if not risers and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(heat.processes)
        held = np.maximum(nodes.by_tier(movable.sum(axis=0)), 1)
        worth = settings.worth_fraction * served / held
        return placing(
            heat, nodes, wanted, key, worth, rates.rate, machine.budget_bytes, fills=True
        )


ABOUT = About(
    name=Histogram.name,
    does="Fills the fast tiers, less their headroom, with the hottest pages that fit.",
    use="Programs whose hot memory is told by counting accesses: a good choice where in doubt.",
    settings=HistogramSettings,
    make=Histogram,
)
