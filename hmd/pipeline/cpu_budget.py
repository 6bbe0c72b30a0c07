"""The CPU time of the daemon, held to its quota: what it went to, and what gives way to keep it.

Takes the CPU time of a tick by kind of work; gives the sampling's share, the interval of plans, the
shares of the sweep and of scans for processes, and the length of the next tick. Where the quota is
not exceeded, all of them are those of the configuration. They give way in this order:

1. samples, down to half of the quota (:mod:`hmd.sample.period_control` sets their period);
2. plans, made in every second to fourth tick, where ticks can then keep their length;
3. the residency sweep, and then scans for processes, down to a sixteenth of the quota each;
4. ticks, which lengthen as far as ``tick_most_s``;
5. plans again, which wait until the CPU time of the last moves has been repaid.

Steps 1 to 3 follow from running means of costs. Steps 4 and 5 follow from what is owed: the CPU
time beyond the quota so far, as a token bucket counts it (RFC 2697), so that errors of the means do
not add up. ``CREDIT_S`` seconds of quota that were not used may be used later, and ``CHANGE_S``
seconds may be owed while processes come or moves are many; what exceeds ``OWED_MOST_S``, as where
ticks of ``tick_most_s`` cost more than the quota, is not made up for. Else, over a time t, the
daemon thus uses at most 1 + (CREDIT_S + PLAN_S) / t of its quota and the cost of one tick, as far
as ``tick_most_s`` permits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hmd.observe.budget_numbers import BudgetNumbers, Work

CREDIT_S: Final = 30.0
"""Seconds of quota that can be saved up for a burst of work."""
CALM_S: Final = 5.0
CHANGE_S: Final = 15.0
"""Seconds of quota that may be owed before ticks lengthen, while little or while much changes."""
PLAN_S: Final = 20.0
"""Seconds of quota that may be owed when a plan is made."""
REPAY_S: Final = 30.0
"""Time in which samples that give way repay what is owed."""
OWED_MOST_S: Final = 300.0
"""Seconds of quota that are owed at most, so that an overload delays plans for minutes at most."""
PLAN_TICKS_MOST: Final = 4
"""Ticks between two plans at most, to keep the length of ticks."""
SAMPLES_LEAST: Final = 1 / 2
"""Share of the quota that is left to samples, whatever the other work takes."""
REST_LEAST: Final = 1 / 16
"""Share of the quota that is left to the sweep, and to scans."""
WHOLE_CPU: Final = 1.0
"""A quota that the loop cannot exceed, because it is one thread: nothing gives way."""
SHARE_MOST: Final = 1 / 2
"""Share of the quota that the sweep, or scans, may take at most."""

_WEIGHT: Final = 0.2
"""Weight of the newest tick in running means."""


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """``quota`` is a share of one CPU, ``tick_s`` to ``tick_most_s`` the length of a tick.

    The tick after one in which a hot set moves lasts ``tick_least_s``; ``tick_s`` if None.
    """

    quota: float = 0.01
    tick_s: float = 1.0
    tick_most_s: float = 10.0
    tick_least_s: float | None = None


class CpuBudget:
    """Adds up CPU time, and divides the quota; no clock of its own."""

    def __init__(self, settings: BudgetSettings, before: CpuBudget | None = None) -> None:
        """Start with all credit; with what ``before`` used, owes and expects where it is given."""
        self.settings = settings
        self.tick_s = settings.tick_s
        self.plan_ticks = 1
        self.plans_delayed = 0
        self.spent_s = dict.fromkeys(Work, 0.0)
        self._owed_s = -CREDIT_S * settings.quota
        self._fixed_s = self._plan_s = self._discovery = 0.0
        if before is not None:
            self.spent_s, self._owed_s = before.spent_s, before._owed_s
            self.plans_delayed, self._discovery = before.plans_delayed, before._discovery
            self._fixed_s, self._plan_s = before._fixed_s, before._plan_s
        self._since_plan = PLAN_TICKS_MOST
        self.planned = False
        """Whether the last tick made a plan."""

    @property
    def owed_s(self) -> float:
        """CPU seconds beyond the quota so far; negative: credit."""
        return self._owed_s

    @property
    def stretch(self) -> float:
        """The length of a tick over that of the configuration."""
        return self.tick_s / self.settings.tick_s

    @property
    def samples_share(self) -> float:
        """Share of the CPU by which the period is set: the quota, less while CPU time is owed."""
        quota = self.settings.quota
        return max(quota - self._repaid(), SAMPLES_LEAST * quota)

    @property
    def sweep_share(self) -> float:
        """Share of the CPU that the residency sweep may take."""
        return self._bounded(self._left() - self._discovery)

    @property
    def discovery_share(self) -> float:
        """Share of the CPU that scans for processes may take."""
        return self._bounded(self._left())

    def plan_due(self, *, requested: bool = False) -> bool:
        """Return whether this tick makes a plan; call it once per tick.

        Moves that an administrator has ``requested`` do not wait.
        """
        self._since_plan += 1
        due = self._since_plan >= self.plan_ticks
        if due and self._owed_s > PLAN_S * self.settings.quota:
            due = False
            self.plans_delayed += not requested
        self.planned = due or requested
        if self.planned:
            self._since_plan = 0
        return self.planned

    def ticked(
        self,
        elapsed_s: float,
        cpu_s: Mapping[Work, float],
        *,
        changing: bool,
        unsettled: bool = False,
    ) -> None:
        """Add the CPU time of a tick that took ``elapsed_s`` with the wait for it.

        ``changing``: processes have come or gone, or moves were many. ``unsettled``: a hot set
        moves (:mod:`hmd.pipeline.hot_set_watch`). The first tick has waited for nothing: it is
        owed, and says nothing of what ticks cost.
        """
        for work, seconds in cpu_s.items():
            self.spent_s[work] += seconds
        quota = self.settings.quota
        owed_s = self._owed_s + sum(cpu_s.values()) - quota * elapsed_s
        self._owed_s = min(max(owed_s, -CREDIT_S * quota), OWED_MOST_S * quota)
        if elapsed_s > 0:
            self._learn(elapsed_s, cpu_s)
        self.plan_ticks = self._plan_ticks()
        beyond_s = self._owed_s / quota - (CHANGE_S if changing else CALM_S)
        most_s = max(self.settings.tick_most_s, self.settings.tick_s)
        hurried = unsettled and self._owed_s <= 0
        self.tick_s = min(max(beyond_s, self._least_s(hurried=hurried)), most_s)

    def numbers(self, discovery_s: float, overhead: float) -> BudgetNumbers:
        """Return the state for metrics; ``discovery_s`` is the time between two scans.

        ``overhead`` is the share of a CPU that records of samples take.
        """
        return BudgetNumbers(
            dict(self.spent_s),
            self._owed_s,
            self.stretch,
            self.plan_ticks,
            self.plans_delayed,
            self.sweep_share,
            discovery_s,
            overhead,
        )

    def _learn(self, elapsed_s: float, cpu_s: Mapping[Work, float]) -> None:
        """Update the means: of a plan, of what every tick costs, and of scans per second.

        Moves are in neither: they are no cost that plans at longer intervals would save.
        """
        fixed_s = cpu_s.get(Work.OBSERVE, 0.0) + cpu_s.get(Work.OTHER, 0.0)
        if self.planned:
            self._plan_s += _WEIGHT * (cpu_s.get(Work.DECIDE, 0.0) - self._plan_s)
        else:
            fixed_s += cpu_s.get(Work.DECIDE, 0.0)
        self._fixed_s += _WEIGHT * (fixed_s - self._fixed_s)
        weight = 1 - math.exp(-elapsed_s / CREDIT_S)
        self._discovery += weight * (cpu_s.get(Work.DISCOVERY, 0.0) / elapsed_s - self._discovery)

    def _least_s(self, *, hurried: bool) -> float:
        settings = self.settings
        if not hurried or settings.tick_least_s is None:
            return settings.tick_s
        return min(settings.tick_least_s, settings.tick_s)

    def _left(self) -> float:
        """Return the share of the CPU that plans and the fixed work of ticks leave, of half.

        Less while CPU time is owed, as where a period that is set leaves no half.
        """
        if self.settings.quota >= WHOLE_CPU:
            return SHARE_MOST * self.settings.quota + self._discovery
        per_tick_s = self._fixed_s + self._plan_s / self.plan_ticks
        half = SAMPLES_LEAST * self.settings.quota
        return half - per_tick_s / self.tick_s - self._repaid()

    def _repaid(self) -> float:
        """Return the share of the CPU by which work that depends on time gives way to debt."""
        return max(0.0, self._owed_s) / REPAY_S

    def _bounded(self, share: float) -> float:
        quota = self.settings.quota
        return min(max(share, REST_LEAST * quota), SHARE_MOST * quota)

    def _plan_ticks(self) -> int:
        """Return the ticks per plan: as few as keep the length of ticks.

        Where none of up to ``PLAN_TICKS_MOST`` does, each tick has its plan: ticks lengthen anyway,
        and n of them with one plan take longer than one tick with a plan.
        """
        if self.settings.quota >= WHOLE_CPU:
            return 1
        rest = SAMPLES_LEAST - 2 * REST_LEAST
        left_s = rest * self.settings.quota * self.settings.tick_s - self._fixed_s
        if left_s <= 0:
            return 1
        wanted = max(1, math.ceil(self._plan_s / left_s))
        return wanted if wanted <= PLAN_TICKS_MOST else 1
