"""The default policy: fill the fast tiers, less headroom, with the hottest pages that fit.

Takes rates per page and the machine, gives a plan; about 30 ns a tracked page and 0.3 µs a move.
The threshold between hot and cold comes from the histogram of heat and the room there is, never
from a setting (as in Lee et al., "MEMTIS", SOSP 2023), so that it holds for any program and any
machine. Any number of tiers: what does not fit a tier competes for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmd.decide.choice import choose
from hmd.decide.nodes import nodes_of
from hmd.decide.placing import placing
from hmd.decide.plan import MachineView, Plan
from hmd.heat.layout import CHUNK_PAGES, PAGE_BYTES
from hmd.heat.table import HeatTable


@dataclass(frozen=True, slots=True)
class Settings:
    """How the histogram policy decides.

    ``headroom_fraction`` of a node's memory, but at least ``headroom_bytes``, stays free on every
    tier but the last, where only ``headroom_bytes`` do, beside what the kernel keeps for itself:
    for new pages of the programs. Pages are demoted for it once less than half is left.
    ``hysteresis``: how many times hotter a page must be than the one that it displaces.
    ``confidence``: how sure of that, in standard deviations of each page's heat.
    ``samples_min``: samples that a page must rest on before it is promoted.
    ``worth_fraction``: a page colder than this fraction of the mean of the faster tier's pages may
    fill free room there, but displaces none: it would cost a swap and bring next to nothing.
    """

    headroom_fraction: float = 0.02
    headroom_bytes: int = 4 << 20
    hysteresis: float = 1.5
    confidence: float = 1.0
    samples_min: float = 2.0
    worth_fraction: float = 0.1


class Histogram:
    """The hottest set that fits, by histogram."""

    name = "histogram"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
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
        if not risers and not nodes.relieve[:-1].any():
            return Plan.empty(heat.processes)
        held = np.maximum(nodes.by_tier(movable.sum(axis=0)), 1)
        worth = settings.worth_fraction * served / held
        return placing(heat, nodes, wanted, key, worth, rates.rate, machine.budget_bytes)
