"""The policy of heat classes: pages by classes of heat, the hottest to the fastest tier.

Takes rates per page, gives a plan; about 60 ns a page. Known from memtierd's heat policy. A class
is an octave of heat about the mean of all pages, and a page keeps its class for a while, so that
noise of sampling does not move it to and fro. Which class goes to which tier follows from the
room there is: whole classes, the hottest first, and of the class on the border those pages that
are there already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.page_state import Aligned
from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob
from hmd.heat.geometry import CHUNK_PAGES
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable


@dataclass(frozen=True, slots=True)
class HeatClassesSettings:
    """How the policy of heat classes decides."""

    headroom_fraction: float = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    classes: int = knob(
        10,
        "Number of classes, each twice as hot as the one below; the middle one is the mean.",
        Unit.COUNT,
        least=2,
        most=100,
        search=Search(2, 24),
    )
    retention_s: float | None = knob(
        None,
        "For how long a page keeps a class that it has changed to: longer moves less, and later."
        " By itself 8 ticks.",
        Unit.SECONDS,
        key="retention",
        search=Search(1, 100, log=True),
    )


class HeatClasses:
    """Pages by classes of heat that they keep for a while."""

    name = "heat-classes"

    def __init__(self, settings: HeatClassesSettings | None = None) -> None:
        self.settings = settings or HeatClassesSettings()
        self._class = Aligned(np.int8, -1)
        self._since = Aligned(np.int32, 0)

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return the moves to make now, the hottest classes first."""
        from hmd.decide.plan_builder import placing

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not heat.chunks.used or machine.budget_bytes < PAGE_BYTES:
            return Plan.empty(heat.processes)
        here = nodes.of_pages(heat.chunks.columns.node[: heat.chunks.used])
        rate = heat.rates().rate
        held = self._classes(heat, machine, here, rate)
        movable, _ = heat.resident_pages(len(nodes.tier))
        capacity = nodes.by_tier(movable.sum(axis=0) + nodes.room)
        wanted = _fill(heat, nodes, here, held, rate, capacity)
        mean = max(float(rate[here >= 0].mean()) if (here >= 0).any() else 0.0, 1e-30)
        # By class, and within one by heat.
        key = (1 + held + rate / (rate + np.float32(mean))).astype(np.float32)
        worth = np.zeros(nodes.tiers)
        return placing(heat, nodes, wanted, key, worth, rate, machine.budget_bytes, fills=True)

    def _classes(
        self,
        heat: HeatTable,
        machine: MachineView,
        here: npt.NDArray[np.int8],
        rate: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.int8]:
        """Return each page's class, shape ``(chunks, 512)``, and keep it."""
        settings, tick = self.settings, heat.clocks.tick
        wait = 8.0 if settings.retention_s is None else settings.retention_s / machine.tick_s
        fresh = _classes_of(rate, here, settings.classes)
        held: npt.NDArray[np.int8] = self._class.of(heat)
        since: npt.NDArray[np.int32] = self._since.of(heat)
        new = held < 0
        change = ~new & (fresh != held) & (tick - since >= wait)
        held[new | change] = fresh[new | change]
        since[change] = tick
        # The first class rests on few samples: it may change at once.
        since[new] = tick - min(int(wait) + 1, tick + 1)
        return held


def _classes_of(
    rate: npt.NDArray[np.float32], here: npt.NDArray[np.int8], classes: int
) -> npt.NDArray[np.int8]:
    """Return the class of each rate: octaves about the mean of all movable pages."""
    mean = float(rate[here >= 0].mean()) if (here >= 0).any() else 0.0
    if mean <= 0:
        return np.zeros(rate.shape, np.int8)
    octave = np.floor(np.log2(np.maximum(rate / mean, 1e-30))) + classes // 2
    return np.asarray(np.clip(octave, 0, classes - 1), np.int8)


def _fill(
    heat: HeatTable,
    nodes: Nodes,
    here: npt.NDArray[np.int8],
    held: npt.NDArray[np.int8],
    rate: npt.NDArray[np.float32],
    capacity: npt.NDArray[np.int64],
) -> npt.NDArray[np.int8]:
    """Return the tier of each page, the hottest classes first; -1 for pages that stay."""
    counts = here >= 0
    counts[:, 1:] &= ~heat.chunks.columns.huge[: heat.chunks.used, None]
    at = np.flatnonzero(counts)
    huge = heat.chunks.columns.huge[at // CHUNK_PAGES]
    size = np.where(huge, CHUNK_PAGES, 1)
    tier = here.reshape(-1)[at]
    heats, level = rate.reshape(-1)[at], held.reshape(-1)[at].astype(np.int64)
    wanted = np.full(len(at), nodes.tiers - 1, np.int8)
    left = np.ones(len(at), np.bool_)
    for goal in range(nodes.tiers - 1):
        # A page without heat gains nothing from a faster tier.
        rows = np.flatnonzero(left & ((heats > 0) | (tier <= goal)))
        # Class by class; in each first those that are there, then by heat.
        order = np.lexsort((-heats[rows], tier[rows] > goal, -level[rows]))
        rows = rows[order]
        fits = rows[np.cumsum(size[rows]) <= capacity[goal]]
        wanted[fits], left[fits] = goal, False
    # What is left without heat stays where it is rather than rise.
    wanted = np.where(left & (heats <= 0), np.maximum(wanted, tier), wanted)
    everywhere = np.full(here.shape, -1, np.int8).reshape(-1)
    everywhere[at] = wanted
    return everywhere.reshape(here.shape)


ABOUT = About(
    name=HeatClasses.name,
    does="Gives the hottest classes of pages the fastest tiers; a page keeps its class for a time.",
    use="Programs of steady heat, and for those who know memtierd's policy of heat.",
    settings=HeatClassesSettings,
    make=HeatClasses,
)
