"""Keeps a tick's stages within the CPU quota: measures their CPU time, sets what gives way.

Takes the stages after each tick; sets the sampling period, the share of the sweep and the length of
the next tick. CPU time is that of the thread of the tick and of kernel threads that work for it.
What answers clients does not count (``exclude``): a client could make the daemon idle. Costs about
10 µs per tick.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hmd.observe.budget_numbers import Work
from hmd.observe.tick_record import Stage
from hmd.pipeline.cpu_budget import CpuBudget
from hmd.pipeline.tick_stages import TickStages
from hmd.residency.residency_sweep import SweepSettings
from hmd.sample.period_control import CostCounters, PeriodControl, TickCost
from hmd.sample.sampler import Sampler

QUERY_S: Final = 0.25e-6
"""CPU time of one query where a page is."""
LEAST_QUERIES, MOST_QUERIES = 1 << 12, 1 << 18
LEAST_STEP_S, MOST_STEP_S = 0.001, 0.5
"""CPU time of a tick's sweep at least and at most, whatever the quota: a tick must end."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Sums since the start after a tick: of all CPU time, and by work as far as it is known."""

    cost: CostCounters
    sweep_cpu_s: float
    discovery_cpu_s: float
    demotion_cpu_s: float


class QuotaControl:
    """Divides the quota of a ``CpuBudget``; ``period`` is None where the sampling period is set."""

    def __init__(self, budget: CpuBudget, period: PeriodControl | None) -> None:
        self.budget, self.period = budget, period
        self._last: _Reading | None = None
        self._cost: TickCost | None = None
        self._taken = 0  # the period of the samples that a tick reads
        self._excluded_s = 0.0
        self.overhead = 0.0
        """Share of a CPU that records took in the last tick, of the CPU with most of them."""

    def exclude(self, cpu_s: float) -> None:
        """Do not count so much CPU time of the tick's thread: costs of starting, and of clients."""
        self._excluded_s += cpu_s

    def update(
        self,
        stages: TickStages,
        sampler: Sampler,
        now_s: float,
        stage_cpu_s: Mapping[Stage, float],
        *,
        changing: bool,
        unsettled: bool = False,
    ) -> None:
        """Take the costs of a tick that has ended; the thread of the tick calls it.

        ``stage_cpu_s`` is the CPU time of its stages; ``changing`` and ``unsettled`` are those of
        ``CpuBudget.ticked``.
        """
        now = self._reading(stages, sampler, now_s)
        if self._last is not None:
            tick = now.cost.since(self._last.cost)
            sweep_s = now.sweep_cpu_s - self._last.sweep_cpu_s
            discovery_s = now.discovery_cpu_s - self._last.discovery_cpu_s
            demotion_s = now.demotion_cpu_s - self._last.demotion_cpu_s
            spent_s = {
                Work.SAMPLES: tick.sampling_cpu_s,
                Work.SWEEP: sweep_s,
                Work.DISCOVERY: discovery_s,
                Work.DECIDE: stage_cpu_s.get(Stage.DECIDE, 0.0),
                Work.MIGRATE: stage_cpu_s.get(Stage.MIGRATE, 0.0) + demotion_s,
                Work.OBSERVE: stage_cpu_s.get(Stage.OBSERVE, 0.0),
            }
            spent_s[Work.OTHER] = max(0.0, tick.cpu_s - sum(spent_s.values()))
            stretch = self.budget.stretch
            self.budget.ticked(tick.elapsed_s, spent_s, changing=changing, unsettled=unsettled)
            self._cost = replace(tick, stretch=stretch, period=self._taken)
            self.overhead = tick.overhead
            step_s = self.budget.sweep_share * self.budget.tick_s
            stages.sweep.settings = swept_within(stages.sweep.settings, step_s)
        stages.tick_s = self.budget.tick_s
        self._last = now

    def start(self, stages: TickStages, sampler: Sampler, now_s: float) -> None:
        """Count CPU time from here, if none has been counted; in the thread of the tick."""
        if self._last is None:
            self._last = self._reading(stages, sampler, now_s)

    def begin(self, stages: TickStages, sampler: Sampler, now_s: float) -> None:
        """Set the sampling period that follows from the last tick; raises what the sampler does."""
        self.start(stages, sampler, now_s)
        self._taken = sampler.period
        tick, self._cost = self._cost, None
        if tick is None or self.period is None:
            return
        if not sampler.capabilities.counts_accesses:
            # The period sets how much a tick scans, whatever the scans find.
            tick = replace(tick, units=tick.sampling_cpu_s, period=0)
        wanted = self.period.update(tick, self.budget.samples_share)
        if wanted != sampler.period:
            sampler.set_period(wanted)

    def _reading(self, stages: TickStages, sampler: Sampler, now_s: float) -> _Reading:
        stats, outside_s = sampler.stats, sampler.outside_cpu_s
        cost = CostCounters(
            now_s,
            time.thread_time() - self._excluded_s + outside_s + stages.demotion_cpu_s,
            stages.sampling_cpu_s + outside_s,
            stats.samples + stats.dropped,
            stats.lost,
            sampler.record_time,
        )
        return _Reading(cost, stages.sweep_cpu_s, stages.discovery_cpu_s, stages.demotion_cpu_s)


def swept_within(settings: SweepSettings, step_s: float) -> SweepSettings:
    """Return settings of a sweep whose steps take this CPU time, within the bounds of a step."""
    return replace(
        settings,
        pages_per_step=min(max(int(step_s / QUERY_S), LEAST_QUERIES), MOST_QUERIES),
        step_s=min(max(step_s, LEAST_STEP_S), MOST_STEP_S),
    )
