"""The policy of ages: pages seen in use of late go up, pages that were idle for long go down.

Takes for how long each page was not seen in use, gives a plan; about 20 ns a page. Known from
memtierd, whose users name an idle and an active duration. Here both follow from the machine if
not given: a page is idle when as many pages as the faster tiers hold were seen after it (least
recently used), active when it was seen within half of that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes, nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable

_NEVER: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class AgeSettings:
    """How the age policy decides."""

    headroom_fraction: float = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    active_s: float | None = knob(
        None,
        "A page that was sampled within this time goes to the fastest tier; within twice this"
        " time at least to the second, and so on. By itself half of what idle then is.",
        Unit.SECONDS,
        key="active",
        search=Search(1, 100, log=True),
    )
    idle_s: float | None = knob(
        None,
        "A page that was not sampled for this time leaves the fastest tier, for twice this time"
        " the second, and so on, whether its room is needed or not. By itself the age at which"
        " younger pages fill the tier, and then only as room is needed.",
        Unit.SECONDS,
        key="idle",
        search=Search(2, 200, log=True),
    )


class Age:
    """Pages by when they were last seen in use."""

    name = "age"

    def __init__(self, settings: AgeSettings | None = None) -> None:
        self.settings = settings or AgeSettings()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return the moves to make now; the most recently used pages rise first."""
        from hmd.decide.plan_builder import placing

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not heat.chunks.used or machine.budget_bytes < PAGE_BYTES:
            return Plan.empty(heat.processes)
        here = nodes.of_pages(heat.chunks.columns.node[: heat.chunks.used])
        idle = heat.idle()
        idle_at = self._idle_ticks(heat, nodes, machine, here, idle.ticks)
        active_at = self._active_ticks(machine, idle_at)
        # The first tier whose limit the page's age keeps to.
        up = np.searchsorted(active_at, idle.ticks).astype(np.int8)
        down = np.searchsorted(idle_at, idle.ticks).astype(np.int8)
        wanted = np.where(idle.sampled & (up < here), up, np.maximum(here, down))
        wanted[here < 0] = -1
        key = (1 / (1 + idle.ticks)).astype(np.float32)
        return placing(
            heat,
            nodes,
            wanted,
            key,
            np.zeros(nodes.tiers),
            heat.rates().rate,
            machine.budget_bytes,
            must=None if settings.idle_s is None else wanted > here,
        )

    def _idle_ticks(
        self,
        heat: HeatTable,
        nodes: Nodes,
        machine: MachineView,
        here: npt.NDArray[np.int8],
        ticks: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int64]:
        """Return by tier but the last for how many ticks its pages may at most be idle."""
        if self.settings.idle_s is not None:
            return _doubling(self.settings.idle_s / machine.tick_s, nodes.tiers - 1)
        movable, _ = heat.resident_pages(len(nodes.tier))
        capacity = np.cumsum(nodes.by_tier(movable.sum(axis=0) + nodes.room))[:-1]
        ages, pages = np.unique(ticks[here >= 0], return_counts=True)
        # With this many ages, those of all younger pages fit.
        fit = np.searchsorted(np.cumsum(pages), capacity, side="right")
        oldest = np.append(ages, _NEVER).astype(np.int64)
        return np.where(fit == len(ages), _NEVER, np.maximum(oldest[np.maximum(fit - 1, 0)], 1))

    def _active_ticks(
        self, machine: MachineView, idle_at: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return by tier but the last how many ticks ago a page that goes there was sampled."""
        if self.settings.active_s is None:
            return idle_at // 2
        return np.minimum(_doubling(self.settings.active_s / machine.tick_s, len(idle_at)), idle_at)


def _doubling(first: float, count: int) -> npt.NDArray[np.int64]:
    """Return ``first``, twice that, and so on, in whole ticks."""
    ticks = first * 2.0 ** np.arange(count, dtype=np.float64)
    return np.asarray(np.minimum(ticks, _NEVER), np.int64)


ABOUT = About(
    name=Age.name,
    does="Moves pages seen in use of late up, and pages idle for long down.",
    use="Programs whose working set changes slowly, and for those who know memtierd's policy.",
    settings=AgeSettings,
    make=Age,
)
