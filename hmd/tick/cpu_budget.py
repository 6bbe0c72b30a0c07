# SPDX-License-Identifier: MIT
"""The CPU time of the daemon, held to its quota: what it went to, and what gives way to keep it.

:class:`CostMeter` measures what a tick cost by kind of work, :class:`CpuBudget` adds that up and
sets the limits of the next tick. Where the quota is not exceeded, all of them are those of the
configuration. They give way in this order:

1. samples, down to half of the quota (:mod:`hmd.sample.periods` sets their period); 2. plans, made
in every second to fourth tick, where ticks can then keep their length; 3. the residency sweep, and
then scans for processes, down to a sixteenth of the quota each; 4. ticks, which lengthen as far as
``max_tick_s``; 5. plans again, which wait until the CPU time of the last moves has been repaid.

Steps 1 to 3 follow from running means of costs. Steps 4 and 5 follow from the debt: the CPU time
beyond the quota so far, as a token bucket counts it (RFC 2697), so that errors of the means do not
add up. Over a time t, the daemon thus uses at most 1 + (CREDIT_S + MAX_DEBT_PLANNING_S) / t of its
quota and the cost of one tick, as far as ``max_tick_s`` permits; what exceeds ``MAX_DEBT_S`` is not
made up for.

Without a quota, it is what :class:`CpuAllowance` grants by the machine and by the gain, and what is
owed is paid from the time that moves have saved; what they did not save stays owed. In calm times,
plans wait until they take half of the quota or less, and small gains wait until they add up. Shares
of one CPU are then:

- ``CALM_SHARE`` while nothing changes and nothing pays;
- ``SEARCH_SHARE`` for ``SEARCH_S`` after a change, and after moves that pay;
- for ``FIND_S`` of that more, as far as moves have paid for it: a tenth of the time that samples
  show moves to have saved (``SAVED_SHARE``) fills a bucket, which also pays what moves cost beyond
  the search share. It fills at ``MACHINE_SHARE`` of all CPUs at most, and holds ``BUCKET_S`` of
  that.

Over a time t, that is at most 1 % of the machine's CPUs times t + ``BUCKET_S``, and of what exceeds
the search share at most a tenth of what moves have saved.

CPU time is that of the thread of the tick and of kernel threads that work for it. What answers
clients does not count (``exclude``): a client could make the daemon idle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.linux.topology import Topology
from hmd.metrics.status import BudgetStatus, Work
from hmd.metrics.tick_record import TickRecord
from hmd.policy.latency import min_parallelism
from hmd.residency.sweep import StepLimit
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import CostCounters, PeriodControl, TickCost
from hmd.sample.sampler import Sampler
from hmd.tick.tick import TickLimits

CREDIT_S: Final = 30.0
"""Seconds of quota that can be saved up for a burst of work."""
MAX_DEBT_STEADY_S: Final = 5.0
MAX_DEBT_CHANGING_S: Final = 15.0
"""Seconds of quota that may be owed before ticks lengthen, while little or while much changes."""
MAX_DEBT_PLANNING_S: Final = 20.0
"""Seconds of quota that may be owed when a plan is made."""
MAX_DEBT_S: Final = 300.0
"""Seconds of quota that are owed at most, so that an overload delays plans for minutes at most."""
REPAY_S: Final = 30.0
"""Time in which samples that give way repay the debt."""
MAX_PLAN_TICKS: Final = 4
"""Ticks between two plans at most, to keep the length of ticks."""
MIN_SAMPLES_SHARE: Final = 1 / 2
"""Share of the quota that is left to samples, whatever the other work takes."""
CALM_SAMPLES_SHARE: Final = 1 / 16
"""The same while nothing changes: enough to see that something does."""
MIN_SWEEP_SHARE: Final = 1 / 16
MAX_SWEEP_SHARE: Final = 1 / 2
"""Share of the quota that the sweep may take, and scans for processes: at least and at most."""
WHOLE_CPU: Final = 1.0
"""A quota that the loop cannot exceed, because it is one thread: nothing gives way."""

QUERY_S: Final = 0.25e-6
"""CPU time of one query where a page is."""
MIN_QUERIES, MAX_QUERIES = 1 << 12, 1 << 18
MIN_STEP_S, MAX_STEP_S = 0.001, 0.5
"""CPU time of a tick's sweep at least and at most, whatever the quota: a tick must end."""

_WEIGHT: Final = 0.2
"""Weight of the newest tick in running means."""


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """``quota`` is a share of one CPU, ``tick_s`` to ``max_tick_s`` the length of a tick.

    None: what the gain on a machine of ``cpus`` allows. After a tick whose samples show that the
    hot set has changed, ticks last ``min_tick_s`` (None: ``tick_s``) until few pages move.
    """

    quota: float | None = None
    tick_s: float = 1.0
    max_tick_s: float = 10.0
    min_tick_s: float | None = None
    cpus: int = 1


@dataclass(frozen=True, slots=True)
class TickCosts:
    """What a tick and the wait for it cost: CPU seconds by kind of work, and its samples."""

    cpu_s: Mapping[Work, float]
    samples: TickCost


class CpuBudget:
    """Adds up CPU time, and divides the quota; ``period`` is None where it is set."""

    def __init__(
        self,
        settings: BudgetSettings,
        period: PeriodControl | None = None,
        before: CpuBudget | None = None,
    ) -> None:
        """Start with all credit; with what ``before`` used, owes and expects where it is given."""
        self.settings = settings
        self.tick_s = settings.tick_s
        self.plan_ticks = 1
        self.plans_delayed = 0
        self.overhead = 0.0
        """Share of a CPU that records took in the last tick, of the CPU with most of them."""
        self.spent_s = dict.fromkeys(Work, 0.0)
        self.allowance: CpuAllowance | None = None
        if settings.quota is None:
            self.allowance = CpuAllowance(settings.cpus, before.allowance if before else None)
        self.cpu_debt_s = -CREDIT_S * self.quota
        """CPU seconds beyond the quota so far; negative: credit."""
        self._fixed_s = self._plan_s = self._discovery = 0.0
        if before is not None:
            self.spent_s, self.cpu_debt_s = before.spent_s, before.cpu_debt_s
            self.plans_delayed, self._discovery = before.plans_delayed, before._discovery
            self._fixed_s, self._plan_s = before._fixed_s, before._plan_s
        self._period = period
        self._wanted_period: int | None = None
        self._ticks_since_plan = MAX_PLAN_TICKS
        self._hot_set_changed = False
        self._planned = self._learning = False

    def limits(self) -> TickLimits:
        """Return what the next tick may cost."""
        # The first sweep has half of what was saved up.
        credit_s = max(-self.cpu_debt_s, 0.0) / 2 if self._learning else 0.0
        return TickLimits(
            tick_s=self.tick_s,
            period=self._wanted_period,
            sweep=step_limit(self.sweep_share * self.tick_s + credit_s),
            plan=self._plan_due and not self._plan_delayed,
            min_gain=MIN_PAYING_SHARE if self.is_calm else 0.0,
        )

    @property
    def quota(self) -> float:
        """The share of a CPU that all work may take now."""
        return self.settings.quota or (self.allowance.share if self.allowance else 0.0)

    @property
    def _base_quota(self) -> float:
        """The share that needs no savings: sweeps and scans find none."""
        return self.settings.quota or (self.allowance.base_share if self.allowance else 0.0)

    @property
    def is_calm(self) -> bool:
        """Whether nothing has changed or paid for long."""
        return self.allowance is not None and self.allowance.is_calm

    def update(
        self,
        costs: TickCosts,
        record: TickRecord,
        *,
        load_changed: bool,
        gain: TickGain | None = None,
        learning: bool = False,
    ) -> None:
        """Add what a tick cost that has ended; ``load_changed`` as for :meth:`charge`.

        ``learning``: much memory has not been swept yet. The sweep then has half of the quota,
        whatever the fixed work of ticks takes, and half of what was saved up.
        """
        ratio, sampled, self._learning = self.tick_length_ratio, costs.samples, learning
        if self.allowance is not None and gain is not None:
            self.allowance.update(
                gain,
                sampled.elapsed_s,
                hot_set_changed=record.heat_changes > 0,
                planned=record.planned is not False,
            )
            if learning:
                self.allowance.search()
        self.overhead = sampled.overhead
        # Until the moves that follow a change are few.
        followed = self._hot_set_changed and load_changed
        self._hot_set_changed = record.heat_changes > 0 or followed
        self.charge(
            sampled.elapsed_s,
            costs.cpu_s,
            planned=record.planned,
            load_changed=load_changed,
            hot_set_changed=self._hot_set_changed,
        )
        if self._period is not None:
            sampled = replace(sampled, tick_length_ratio=ratio)
            least = CALM_SAMPLES_SHARE if self.is_calm else MIN_SAMPLES_SHARE
            self._wanted_period = self._period.update(
                sampled, self.samples_share, least * self.quota
            )

    @property
    def tick_length_ratio(self) -> float:
        """The length of a tick over that of the configuration."""
        return self.tick_s / self.settings.tick_s

    @property
    def samples_share(self) -> float:
        """Share of the CPU by which the period is set: the quota, less while CPU time is owed."""
        quota = self.quota
        return max(quota - self._repaid_share(), MIN_SAMPLES_SHARE * quota)

    @property
    def sweep_share(self) -> float:
        """Share of the CPU that the residency sweep may take."""
        if self._learning:
            return MAX_SWEEP_SHARE * self._base_quota
        return self._bounded(self._left_share() - self._discovery)

    @property
    def discovery_share(self) -> float:
        """Share of the CPU that scans for processes may take."""
        return self._bounded(self._left_share())

    @property
    def _plan_due(self) -> bool:
        return self._ticks_since_plan + 1 >= self.plan_ticks

    @property
    def _plan_delayed(self) -> bool:
        return self.cpu_debt_s > MAX_DEBT_PLANNING_S * self.quota

    def charge(
        self,
        elapsed_s: float,
        cpu_s: Mapping[Work, float],
        *,
        planned: bool | None,
        load_changed: bool,
        hot_set_changed: bool = False,
    ) -> None:
        """Add the CPU time of a tick; ``load_changed``: processes changed, or moves were many."""
        if planned is not None:
            self.plans_delayed += self._plan_due and self._plan_delayed and not planned
            self._ticks_since_plan = 0 if planned else self._ticks_since_plan + 1
            self._planned = planned
        for work, seconds in cpu_s.items():
            self.spent_s[work] += seconds
        quota, max_debt_s = self.quota, MAX_DEBT_S * self.quota
        granted, debt_s = quota, self.cpu_debt_s + sum(cpu_s.values())
        if self.allowance is not None:
            granted, max_debt_s = self.allowance.base_share, MAX_DEBT_S * SEARCH_SHARE
        debt_s -= granted * elapsed_s
        if self.allowance is not None:
            debt_s -= self.allowance.pay(debt_s)
        self.cpu_debt_s = min(max(debt_s, -CREDIT_S * granted), max_debt_s)
        if elapsed_s > 0:
            self._update_means(elapsed_s, cpu_s)
        self.plan_ticks = self._choose_plan_ticks()
        allowed_s = MAX_DEBT_CHANGING_S if load_changed else MAX_DEBT_STEADY_S
        beyond_s = self.cpu_debt_s / quota - allowed_s
        longest_s = max(self.settings.max_tick_s, self.settings.tick_s)
        self.tick_s = min(max(beyond_s, self._shortest_s(hot_set_changed)), longest_s)

    def status(self, discovery_s: float) -> BudgetStatus:
        """Return the state for metrics; ``discovery_s`` is the time between two scans."""
        return BudgetStatus(
            dict(self.spent_s),
            self.cpu_debt_s,
            self.tick_length_ratio,
            self.plan_ticks,
            self.plans_delayed,
            self.sweep_share,
            discovery_s,
            self.overhead,
            self.quota,
            self.is_calm,
        )

    def _update_means(self, elapsed_s: float, cpu_s: Mapping[Work, float]) -> None:
        """Update the means: of a plan, of what every tick costs, and of scans per second.

        Moves are in neither: they are no cost that plans at longer intervals would save.
        """
        fixed_s = cpu_s.get(Work.OBSERVE, 0.0) + cpu_s.get(Work.OTHER, 0.0)
        if self._planned:
            self._plan_s += _WEIGHT * (cpu_s.get(Work.DECIDE, 0.0) - self._plan_s)
        else:
            fixed_s += cpu_s.get(Work.DECIDE, 0.0)
        self._fixed_s += _WEIGHT * (fixed_s - self._fixed_s)
        weight = 1 - math.exp(-elapsed_s / CREDIT_S)
        self._discovery += weight * (cpu_s.get(Work.DISCOVERY, 0.0) / elapsed_s - self._discovery)

    def _shortest_s(self, hot_set_changed: bool) -> float:
        settings = self.settings
        if not hot_set_changed or settings.min_tick_s is None or self.cpu_debt_s > 0:
            return settings.tick_s
        return min(settings.min_tick_s, settings.tick_s)

    def _left_share(self) -> float:
        """Return what plans and the fixed work of ticks leave of half of the quota, less debt."""
        quota = self._base_quota
        if quota >= WHOLE_CPU:
            return MAX_SWEEP_SHARE * quota + self._discovery
        per_tick_s = self._fixed_s + self._plan_s / self.plan_ticks
        half = MIN_SAMPLES_SHARE * quota
        return half - per_tick_s / self.tick_s - self._repaid_share()

    def _repaid_share(self) -> float:
        """Return the share of the CPU by which work that depends on time gives way to debt."""
        return max(0.0, self.cpu_debt_s) / REPAY_S

    def _bounded(self, share: float) -> float:
        quota = self._base_quota
        return min(max(share, MIN_SWEEP_SHARE * quota), MAX_SWEEP_SHARE * quota)

    def _choose_plan_ticks(self) -> int:
        """Return the ticks per plan: as few as keep the length of ticks.

        Where none of up to ``MAX_PLAN_TICKS`` does, each tick has its plan: ticks lengthen anyway.
        """
        if self.quota >= WHOLE_CPU:
            return 1
        if self.is_calm:
            return max(1, math.ceil(self._plan_s / (self.quota / 2 * self.tick_s)))
        rest = MIN_SAMPLES_SHARE - 2 * MIN_SWEEP_SHARE
        left_s = rest * self.quota * self.settings.tick_s - self._fixed_s
        if left_s <= 0:
            return 1
        wanted = max(1, math.ceil(self._plan_s / left_s))
        return wanted if wanted <= MAX_PLAN_TICKS else 1


def step_limit(step_s: float) -> StepLimit:
    """Return the limit of a sweep's step of this CPU time, within the bounds of a step."""
    return StepLimit(
        pages=min(max(int(step_s / QUERY_S), MIN_QUERIES), MAX_QUERIES),
        cpu_s=min(max(step_s, MIN_STEP_S), MAX_STEP_S),
    )


class CostMeter:
    """Measures what each tick costs, from the thread of the ticks."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._last: CostCounters | None = None
        self._sampling_cpu_s = self._demotion_cpu_s = self._excluded_s = 0.0
        self._period = 0  # with which the samples of the next tick are taken

    def exclude(self, cpu_s: float) -> None:
        """Do not count so much CPU time of the tick's thread: costs of starting, and of clients."""
        self._excluded_s += cpu_s

    def start(self, now_s: float, demotion_cpu_s: float = 0.0) -> None:
        """Measure from here, if not before; ``demotion_cpu_s`` is that of helpers so far."""
        if self._last is None:
            self._demotion_cpu_s = demotion_cpu_s
            self._last, self._period = self._read(now_s), self._sampler.period

    def measure(
        self, now_s: float, cpu_s: Mapping[Work, float], demotion_cpu_s: float = 0.0
    ) -> TickCosts:
        """Return the costs since the last call; ``cpu_s`` is what the tick's runner measured."""
        self.start(now_s, demotion_cpu_s)
        assert self._last is not None
        demoted_s = demotion_cpu_s - self._demotion_cpu_s
        self._demotion_cpu_s = demotion_cpu_s
        self._sampling_cpu_s += cpu_s.get(Work.SAMPLES, 0.0)
        last, self._last = self._last, self._read(now_s)
        cost = self._last.since(last)
        spent_s = {work: cpu_s.get(work, 0.0) for work in Work}
        spent_s[Work.SAMPLES] = cost.sampling_cpu_s
        spent_s[Work.MIGRATE] += demoted_s
        spent_s[Work.OTHER] = 0.0
        spent_s[Work.OTHER] = max(0.0, cost.cpu_s - sum(spent_s.values()))
        if self._sampler.capabilities.counts_accesses:
            cost = replace(cost, period=self._period)
        else:
            # The period sets how much a tick scans, whatever the scans find.
            cost = replace(cost, units=cost.sampling_cpu_s, period=0)
        self._period = self._sampler.period
        return TickCosts(spent_s, cost)

    def _read(self, now_s: float) -> CostCounters:
        """Return the sums since the start."""
        stats, outside_s = self._sampler.stats, self._sampler.outside_cpu_s
        return CostCounters(
            now_s,
            time.thread_time() - self._excluded_s + outside_s + self._demotion_cpu_s,
            self._sampling_cpu_s + outside_s,
            stats.samples + stats.dropped,
            stats.lost,
            self._sampler.record_time,
        )


CALM_SHARE: Final = 0.001
SEARCH_SHARE: Final = 0.01
MACHINE_SHARE: Final = 0.01
SAVED_SHARE: Final = 0.1
SEARCH_S: Final = 60.0
BUCKET_S: Final = 120.0
FIND_S: Final = 10.0
SPEND_S: Final = 20.0
"""Time over which samples, plans and sweeps may spend what the bucket holds."""
MIN_PAYING_SHARE: Final = 1 / 512
"""Promotions of a tick are a gain where their pages have so much of all accesses. In calm times,
plans with less wait: what they leave adds up, until a later plan has more."""
Nodes: TypeAlias = npt.NDArray[np.int16]

_MIN_SAMPLES: Final = 64
_MIN_DROP: Final = 1 / 16
_DEVIATIONS: Final = 4.0


@dataclass(frozen=True, slots=True)
class AccessSums:
    """Samples of ``elapsed_s`` with a known page, their accesses, and those of the fastest tier."""

    samples: int
    accesses: float
    fast: float
    elapsed_s: float

    @classmethod
    def of(
        cls, batch: AccessBatch, node: Nodes, topology: Topology, elapsed_s: float
    ) -> AccessSums:
        """Add up a batch; ``node`` of each sample's page, -1 where not known."""
        known = node >= 0
        weight = np.where(known, batch.period, 0).astype(np.float64)
        fast = weight[np.isin(node, topology.tiers[0])].sum() if topology.tiers else 0.0
        return cls(int(np.count_nonzero(known)), float(weight.sum()), float(fast), elapsed_s)


@dataclass(frozen=True, slots=True)
class TickGain:
    """A tick's accesses, those per second that its plan promotes, and CPU seconds saved."""

    sums: AccessSums
    promoted_rate: float = 0.0
    saved_s: float = 0.0


def tick_gain(record: TickRecord, topology: Topology, cpus: float, stall_s: float) -> TickGain:
    """Return the gain of a tick in which accesses to moved pages took ``stall_s`` less in all.

    Misses that overlap wait together: their latencies are divided by what the programs' busy
    ``cpus`` cannot have waited one after another (:func:`hmd.policy.latency.min_parallelism`).
    """
    sums = AccessSums.of(record.batch, record.node, topology, record.tick_s)
    known = record.node >= 0
    latency_s = np.array([*topology.latency_ns, 0.0])[record.node] * 1e-9
    waits_s = (latency_s * record.batch.period)[known].sum(keepdims=True)
    overlap = float(min_parallelism(waits_s, np.array([cpus * record.tick_s]))[0])
    plan = record.plan
    up = np.isin(plan.to_node, topology.tiers[0]) if topology.tiers else np.zeros(0, np.intp)
    promoted = float((plan.heat[up].astype(np.float64) * plan.pages[up]).sum())
    return TickGain(sums, promoted, stall_s / overlap)


class AccessWatch:
    """Tells from few samples whether the fastest tier serves fewer accesses than in earlier ticks.

    Fewer by ``_MIN_DROP`` and more than chance is a change; of ``_MIN_SAMPLES`` at least.
    """

    def __init__(self) -> None:
        self._share: float | None = None

    def is_changed(self, sums: AccessSums) -> bool:
        """Return whether samples contradict those of earlier ticks."""
        if self._share is None or sums.samples < _MIN_SAMPLES:
            return False
        drop = _MIN_DROP + _DEVIATIONS * math.sqrt(0.25 / sums.samples)
        return self._share - sums.fast / sums.accesses > drop

    def learn(self, sums: AccessSums) -> bool:
        """Add the samples of a tick; return whether they contradict earlier ones."""
        if sums.samples < _MIN_SAMPLES:
            return False
        changed, now = self.is_changed(sums), sums.fast / sums.accesses
        before = now if changed or self._share is None else self._share
        self._share = before + _WEIGHT * (now - before)
        return changed


class CpuAllowance:
    """Adds up what moves have saved (``bucket_s``, in CPU seconds) and what was used."""

    def __init__(self, cpus: int, before: CpuAllowance | None = None) -> None:
        """Begin searching, with the bucket and the watch of ``before``."""
        self.watch: AccessWatch = AccessWatch() if before is None else before.watch
        self.max_share = max(MACHINE_SHARE * cpus, SEARCH_SHARE)
        held_s: float = 0.0 if before is None else before.bucket_s
        self.bucket_s: float = min(held_s, BUCKET_S * self.max_share)
        self._search_left_s, self._find_left_s = SEARCH_S, FIND_S

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing to search for."""
        return self._search_left_s <= 0

    @property
    def base_share(self) -> float:
        """The share that needs no savings."""
        return CALM_SHARE if self.is_calm else SEARCH_SHARE

    @property
    def share(self) -> float:
        """The share of a CPU by which work is planned: the base, and what the bucket adds."""
        if self._find_left_s <= 0:
            return self.base_share
        return min(SEARCH_SHARE + self.bucket_s / SPEND_S, self.max_share)

    def pay(self, owed_s: float) -> float:
        """Take CPU seconds that are owed from the bucket; return how many it paid."""
        paid_s = 0.0 if self.is_calm else min(max(owed_s, 0.0), self.bucket_s)
        self.bucket_s -= paid_s
        return paid_s

    def update(
        self, gain: TickGain, elapsed_s: float, *, hot_set_changed: bool, planned: bool
    ) -> None:
        """Add a tick that took ``elapsed_s``; a search ends by ticks that have ``planned``."""
        filled_s = min(SAVED_SHARE * max(gain.saved_s, 0.0), self.max_share * elapsed_s)
        self.bucket_s = min(self.bucket_s + filled_s, BUCKET_S * self.max_share)
        sums = gain.sums
        changed = self.watch.learn(sums) or hot_set_changed
        pays = gain.promoted_rate * sums.elapsed_s > MIN_PAYING_SHARE * sums.accesses
        if changed or pays:
            self.search()
        elif planned:
            self._search_left_s -= elapsed_s
            self._find_left_s -= elapsed_s

    def search(self) -> None:
        """Search from now on: something has changed or pays."""
        self._search_left_s, self._find_left_s = SEARCH_S, FIND_S
