# SPDX-License-Identifier: MIT
"""The age policy: recently sampled pages are promoted, long idle pages are demoted.

Takes the idle time of each page, gives a plan; about 20 ns per page. memtierd has this policy with
an idle and an active duration to configure. Here both follow from the machine unless they are set:
a page is idle when as many pages as the faster tiers hold were sampled after it (least recently
used), and active when it was sampled within half of that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
from pydantic import Field

from hmd.base.numba_kernels import Int64s
from hmd.policy.nodes import Nodes, nodes_of
from hmd.policy.plan import MachineView, Plan, TierRequest
from hmd.policy.planning import build_plan
from hmd.policy.settings import SECONDS, HeadroomSettings, PolicyInfo, Search

if TYPE_CHECKING:
    from hmd.heat.view import PageView

_NEVER: Final = 1 << 30


class AgeSettings(HeadroomSettings):
    """How the age policy decides."""

    active: Annotated[
        float | None,
        Field(
            ge=0,
            description="A page that was sampled within this time goes to the fastest tier;"
            " within twice this time at least to the second, and so on. Default (auto): half of"
            " idle.",
        ),
        SECONDS.or_auto,
        Search(1, 100, log=True),
    ] = None
    idle: Annotated[
        float | None,
        Field(
            ge=0,
            description="A page that was not sampled for this time leaves the fastest tier, for"
            " twice this time the second, and so on, whether its memory is needed or not. Default"
            " (auto): the age at which younger pages fill the tier, and then only as memory is"
            " needed.",
        ),
        SECONDS.or_auto,
        Search(2, 200, log=True),
    ] = None


class Age:
    """Ranks pages by the time of their last sample."""

    name = "age"

    def __init__(self, settings: AgeSettings | None = None) -> None:
        self.settings = settings or AgeSettings()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; the most recently sampled pages are promoted first."""
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
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
        must = None if settings.idle is None else tier > here
        return build_plan(pages, nodes, TierRequest(tier, key, must), machine.budget_bytes)

    def _idle_ticks(self, pages: PageView, nodes: Nodes, machine: MachineView) -> Int64s:
        """Return the longest idle time of a page on each tier but the last, in ticks."""
        if self.settings.idle is not None:
            return _doubling(self.settings.idle / machine.tick_s, nodes.tiers - 1)
        resident = pages.pages_by_node(len(nodes.tier))[0].sum(axis=0)
        capacity = np.cumsum(nodes.by_tier(resident + nodes.room))[:-1]
        ages, group = np.unique(pages.idle_ticks[pages.movable], return_inverse=True)
        counts = np.bincount(group, pages.size[pages.movable], len(ages))
        # The pages of this many ages, the youngest, fit.
        fit = np.searchsorted(np.cumsum(counts), capacity, side="right")
        oldest = np.append(ages, _NEVER).astype(np.int64)
        return np.where(fit == len(ages), _NEVER, np.maximum(oldest[np.maximum(fit - 1, 0)], 1))

    def _active_ticks(self, machine: MachineView, idle_at: Int64s) -> Int64s:
        """Return the age limit for promotion to each tier but the last, in ticks."""
        if self.settings.active is None:
            return idle_at // 2
        return np.minimum(_doubling(self.settings.active / machine.tick_s, len(idle_at)), idle_at)


def _doubling(first: float, count: int) -> Int64s:
    """Return ``first``, twice that, and so on, in whole ticks."""
    ticks = first * 2.0 ** np.arange(count, dtype=np.float64)
    return np.asarray(np.minimum(ticks, _NEVER), np.int64)


POLICY = PolicyInfo(
    name=Age.name,
    summary="Promotes recently sampled pages, and demotes pages that were idle for long.",
    suits="Programs whose working set changes slowly, and users of memtierd's age policy.",
    settings_type=AgeSettings,
    create=Age,
)
