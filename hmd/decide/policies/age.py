"""The age policy: recently sampled pages are promoted, long idle pages are demoted.

Takes the idle time of each page, gives a plan; about 20 ns per page. memtierd has this policy with
an idle and an active duration to configure. Here both follow from the machine unless they are set:
a page is idle when as many pages as the faster tiers hold were sampled after it (least recently
used), and active when it was sampled within half of that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.planning.wanted import Wanted
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

_NEVER: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class AgeSettings:
    """How the age policy decides."""

    headroom_fraction: float | None = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    active_s: float | None = knob(
        None,
        "A page that was sampled within this time goes to the fastest tier; within twice this"
        " time at least to the second, and so on. Default (auto): half of idle.",
        Unit.SECONDS,
        key="active",
        search=Search(1, 100, log=True),
    )
    idle_s: float | None = knob(
        None,
        "A page that was not sampled for this time leaves the fastest tier, for twice this time"
        " the second, and so on, whether its memory is needed or not. Default (auto): the age at"
        " which younger pages fill the tier, and then only as memory is needed.",
        Unit.SECONDS,
        key="idle",
        search=Search(2, 200, log=True),
    )


class Age:
    """Ranks pages by the time of their last sample."""

    name = "age"

    def __init__(self, settings: AgeSettings | None = None) -> None:
        self.settings = settings or AgeSettings()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; the most recently sampled pages are promoted first."""
        from hmd.decide.planning.plan_builder import build_plan

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        idle, here = pages.idle_ticks, pages.tier
        idle_at = self._idle_ticks(pages, nodes, machine)
        active_at = self._active_ticks(machine, idle_at)
        # The first tier whose age limit the page keeps.
        up = np.searchsorted(active_at, idle).astype(np.int8)
        down = np.searchsorted(idle_at, idle).astype(np.int8)
        tier = np.where(pages.sampled & (up < here), up, np.maximum(here, down))
        tier[~pages.movable] = -1
        key = (1 / (1 + idle)).astype(np.float32)
        must = None if settings.idle_s is None else tier > here
        return build_plan(pages, nodes, Wanted(tier, key, must), machine.budget_bytes)

    def _idle_ticks(
        self, pages: PageView, nodes: Nodes, machine: MachineView
    ) -> npt.NDArray[np.int64]:
        """Return the longest idle time of a page on each tier but the last, in ticks."""
        if self.settings.idle_s is not None:
            return _doubling(self.settings.idle_s / machine.tick_s, nodes.tiers - 1)
        resident = pages.pages_by_node(len(nodes.tier))[0].sum(axis=0)
        capacity = np.cumsum(nodes.by_tier(resident + nodes.room))[:-1]
        ages, group = np.unique(pages.idle_ticks[pages.movable], return_inverse=True)
        counts = np.bincount(group, pages.size[pages.movable], len(ages))
        # The pages of this many ages, the youngest, fit.
        fit = np.searchsorted(np.cumsum(counts), capacity, side="right")
        oldest = np.append(ages, _NEVER).astype(np.int64)
        return np.where(fit == len(ages), _NEVER, np.maximum(oldest[np.maximum(fit - 1, 0)], 1))

    def _active_ticks(
        self, machine: MachineView, idle_at: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the age limit for promotion to each tier but the last, in ticks."""
        if self.settings.active_s is None:
            return idle_at // 2
        return np.minimum(_doubling(self.settings.active_s / machine.tick_s, len(idle_at)), idle_at)


def _doubling(first: float, count: int) -> npt.NDArray[np.int64]:
    """Return ``first``, twice that, and so on, in whole ticks."""
    ticks = first * 2.0 ** np.arange(count, dtype=np.float64)
    return np.asarray(np.minimum(ticks, _NEVER), np.int64)


ABOUT = About(
    name=Age.name,
    does="Promotes recently sampled pages, and demotes pages that were idle for long.",
    use="Programs whose working set changes slowly, and users of memtierd's age policy.",
    settings=AgeSettings,
    make=Age,
)
