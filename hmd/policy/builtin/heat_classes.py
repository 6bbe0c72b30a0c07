# SPDX-License-Identifier: MIT
"""The heat-classes policy: pages by classes of heat, the hottest classes to the fastest tier.

Takes rates per page, gives a plan; about 60 ns per page. memtierd has such a policy ("heat"). A
class is an octave of heat about the mean of all pages. A page keeps its class for some time, which
prevents ping-pong caused by sampling noise. Classes are assigned to tiers by capacity, the hottest
first; of the class on the border, resident pages come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hmd.heat.page_state import PageState
from hmd.policy.nodes import Nodes, nodes_of
from hmd.policy.plan import MachineView, Plan, TierRequest
from hmd.policy.planning import build_plan
from hmd.policy.settings import SECONDS, HeadroomSettings, PolicyInfo, Search

if TYPE_CHECKING:
    from hmd.heat.view import PageView

# How many ticks a page keeps a class unless retention is set.
_RETENTION_TICKS: Final = 8.0
_LEAST_RATE: Final = 1e-30


class HeatClassesSettings(HeadroomSettings):
    """How the heat-classes policy decides."""

    classes: Annotated[
        int,
        Field(
            ge=2,
            le=100,
            description="Number of classes, each twice as hot as the one below; the middle one is"
            " the mean.",
        ),
        Search(2, 24),
    ] = 10
    retention: Annotated[
        float | None,
        Field(
            ge=0,
            description="How long a page keeps a class that it has changed to: longer means fewer"
            " and later moves. Default (auto): 8 ticks.",
        ),
        SECONDS.or_auto,
        Search(1, 100, log=True),
    ] = None


class HeatClasses:
    """Assigns tiers by classes of heat, which pages keep for some time."""

    name = "heat-classes"

    def __init__(self, settings: HeatClassesSettings | None = None) -> None:
        self.settings = settings or HeatClassesSettings()
        self._class = PageState(np.int8, -1)
        self._since = PageState(np.int32, 0)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now, the hottest classes first."""
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        mean = _mean_rate(pages)
        level = self._classes(pages, machine, mean)
        tier = _fill(pages, nodes, level)
        # By class, and within a class by rate.
        within = pages.rate / (pages.rate + np.float32(max(mean, _LEAST_RATE)))
        wanted = TierRequest(tier, (1 + level + within).astype(np.float32), fills=True)
        return build_plan(pages, nodes, wanted, machine.budget_bytes)

    def _classes(self, pages: PageView, machine: MachineView, mean: float) -> npt.NDArray[np.int8]:
        """Return the class of each page, and keep it for the next tick."""
        settings, tick = self.settings, pages.tick
        retention_s = settings.retention
        wait = _RETENTION_TICKS if retention_s is None else retention_s / machine.tick_s
        fresh = _classes_of(pages.rate, mean, settings.classes)
        level: npt.NDArray[np.int8] = self._class.read(pages)
        since: npt.NDArray[np.int32] = self._since.read(pages)
        new = level < 0
        change = ~new & (fresh != level) & (tick - since >= wait)
        level[new | change] = fresh[new | change]
        since[change] = tick
        # The first class rests on few samples: it may change at once.
        since[new] = tick - min(int(wait) + 1, tick + 1)
        self._class.write(pages, level)
        self._since.write(pages, since)
        return level


def _mean_rate(pages: PageView) -> float:
    """Return the mean rate of all movable base pages; 0 if there are none."""
    beyond = pages.unshown
    size = pages.size[pages.movable].astype(np.float64)
    count = size.sum() + beyond.pages.sum()
    accesses = (pages.rate[pages.movable] * size).sum() + beyond.accesses.sum()
    return float(accesses / max(count, 1))


def _classes_of(rate: npt.NDArray[np.float32], mean: float, classes: int) -> npt.NDArray[np.int8]:
    """Return the class of each rate: an octave about the mean."""
    if mean <= 0:
        return np.zeros(rate.shape, np.int8)
    octave = np.floor(np.log2(np.maximum(rate / mean, _LEAST_RATE))) + classes // 2
    return np.asarray(np.clip(octave, 0, classes - 1), np.int8)


def _fill(pages: PageView, nodes: Nodes, level: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Return the tier of each page, the hottest classes first; -1 for pages that stay."""
    resident = pages.pages_by_node(len(nodes.tier))[0].sum(axis=0)
    capacity = nodes.by_tier(resident + nodes.room)
    movable = np.flatnonzero(pages.movable)
    size, tier, rate = pages.size[movable], pages.tier[movable], pages.rate[movable]
    falling_level = -level[movable].astype(np.int64)
    wanted = np.full(len(movable), nodes.tiers - 1, np.int8)
    left = np.ones(len(movable), np.bool_)
    for goal in range(nodes.tiers - 1):
        # A page without heat gains nothing from a faster tier.
        rows = np.flatnonzero(left & ((rate > 0) | (tier <= goal)))
        # By class; within a class resident pages first, then by rate.
        rows = rows[np.lexsort((-rate[rows], tier[rows] > goal, falling_level[rows]))]
        fits = rows[np.cumsum(size[rows], dtype=np.int64) <= capacity[goal]]
        wanted[fits], left[fits] = goal, False
    # Pages without heat that are left stay where they are rather than be promoted.
    wanted = np.where(left & (rate <= 0), np.maximum(wanted, tier), wanted)
    everywhere = np.full(len(pages), -1, np.int8)
    everywhere[movable] = wanted
    return everywhere


POLICY = PolicyInfo(
    name=HeatClasses.name,
    summary="Assigns the hottest classes of pages to the fastest tiers; a page keeps its class.",
    suits="Programs of steady heat, and users of memtierd's heat policy.",
    settings_type=HeatClassesSettings,
    create=HeatClasses,
)
