"""The guard: moves are made on credit that earlier moves have earned.

Wraps a policy; takes the page view of each tick, gives the policy's plan as far as there is credit.
Samples of the ticks after a move show what it brought: accesses of the page, times the latency that
they save on its tier compared with where it was, negative for pages that were demoted. A move costs
its program time. What moves save adds to the credit, what they cost takes it off, and a small share
of all time is added, so that a program loses at most about that share compared with no moves. This
is the rule of conservative bandits (Wu et al., "Conservative bandits", ICML 2016).

Plans that promise a loss are not made: they keep room for pages that are still to come, by demoting
pages in use. What comes then may be colder, and without moves it would have had no room.

Where the credit is spent, moves did not pay: the guard goes on with the rule policy, and if that
does not pay either, with no moves. Later it tries again, each time after a longer wait. Sooner, it
does where plans that were not made would have paid, several times in a row
(:mod:`hmd.decide.plan_trial`): what a program does while it starts says little of what follows.

Where targets have limits of the fastest tier, nothing is guarded: limits hold at any cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from hmd.decide.cost_benefit.loaded_latency import loaded_latency_ns
from hmd.decide.cost_benefit.parallelism import parallelism
from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan, Policy
from hmd.decide.plan_trial import PlanTrial
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.view.page_state import PageState
    from hmd.heat.view.page_view import PageView

MOVE_NS: Final = 3000.0
"""What moving 4 KiB costs its program, in ns: above what the simulator charges, some 2,000."""

# Credit in ticks of time: at the start, for the rule after the policy, and most of it.
_FIRST: Final = 0.3
_RULE: Final = 0.1
_MOST: Final = 4.0
# Share of time that is added.
_SHARE: Final = 0.004
_PAGES_LEAST: Final = 16
_WAIT_TICKS: Final = 64
_WAIT_MOST: Final = 4096
# Trials in a row that pay before the policy plans again; doubles each time.
_TRIALS: Final = 2
_TRIALS_MOST: Final = 64


class GuardLevel(IntEnum):
    """What makes the plans."""

    POLICY = 0
    RULE = 1
    NONE = 2


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the guard knows, for people and metrics.

    ``saved_s`` and ``cost_s`` are sums since the start, in seconds of the programs' time;
    ``predicted_s`` is what plans promised for the ticks for which moves are followed. ``credit_s``
    is what moves may cost now. ``retry_ticks`` is the time after which the policy is tried again at
    the latest, if there is credit.
    """

    level: GuardLevel
    saved_s: float
    cost_s: float
    predicted_s: float
    credit_s: float
    fallbacks: int
    retry_ticks: int


class MoveGuard:
    """A policy that plans only what it has credit for."""

    def __init__(self, policy: Policy, rule: Policy | None = None) -> None:
        """Guard ``policy``; ``rule`` takes over where it does not pay, None: no moves do."""
        self.name = policy.name
        self.guarded = policy
        self._rule, self._move_s = rule, MOVE_NS * 1e-9
        self._clear()

    def _clear(self) -> None:
        self._kept: PageState | None = None
        self._tick, self._planned, self._until = -1, -1, 0
        self._level, self._wait, self._fallbacks = GuardLevel.POLICY, _WAIT_TICKS, 0
        self._trial: PlanTrial | None = None
        self._paid, self._trials = 0, _TRIALS
        self._credit_s: float | None = None
        self._saved_s = self._cost_s = self._predicted_s = 0.0

    @property
    def state(self) -> GuardState:
        """What the guard knows now."""
        return GuardState(
            self._level,
            self._saved_s,
            self._cost_s,
            self._predicted_s,
            self._credit_s or 0.0,
            self._fallbacks,
            max(self._until - self._tick, 0) if self._level else 0,
        )

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves that there is credit for."""
        nodes = nodes_of(machine, 0.0, 0)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        if machine.limits is not None:  # what targets are promised is no question of profit
            return self.guarded.plan(pages, machine)
        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if pages.tick != self._tick:
            self._account(pages, machine)
            self._follow_trial(pages, machine)
            self._tick = pages.tick
            self._choose_level(machine.tick_s)
        assert self._credit_s is not None
        affordable = int(self._credit_s / self._move_s) * PAGE_BYTES
        budget = max(min(machine.budget_bytes, affordable), 0)
        limited = replace(machine, budget_bytes=budget)
        if self._level == GuardLevel.POLICY:
            plan = self.guarded.plan(pages, limited)
        else:
            plan = self._plan_otherwise(pages, machine, limited)
        promised_s = self._promised_s(plan, pages, machine)
        if promised_s < 0:  # room that is made in advance, at the cost of pages in use
            return Plan.empty(pages.processes)
        if len(plan) and self._planned != self._tick:
            self._planned = self._tick
            self._predicted_s += promised_s
        return plan

    def _plan_otherwise(self, pages: PageView, machine: MachineView, limited: MachineView) -> Plan:
        """Return the rule's moves, or none; where nothing moves, try what the policy plans."""
        starts = self._trial is None
        most = int(_MOST * machine.tick_s / self._move_s) * PAGE_BYTES
        tried = replace(machine, budget_bytes=min(machine.budget_bytes, most))
        # The policy keeps what it learns from each tick, also where another plans.
        policy_plan = self.guarded.plan(pages, tried if starts else limited)
        plan = Plan.empty(pages.processes)
        if self._level == GuardLevel.RULE and self._rule is not None:
            plan = self._rule.plan(pages, limited)
        if len(plan):
            self._trial = None
        elif starts and self._promised_s(policy_plan, pages, machine) > 0:
            self._trial = PlanTrial(policy_plan, self._move_s)
        return plan

    def _promised_s(self, plan: Plan, pages: PageView, machine: MachineView) -> float:
        """Return what a plan's rates promise for the ticks in which its moves are followed."""
        from hmd.decide.guard_kernel import FOLLOWED_TICKS

        if not len(plan):
            return 0.0
        nodes = nodes_of(machine, 0.0, 0)
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        gain_ns = latency[nodes.tier[plan.from_node]] - latency[nodes.tier[plan.to_node]]
        overlap = parallelism(pages, machine)[plan.process]
        promised = plan.heat * plan.pages * gain_ns / overlap
        return float(promised.sum()) * 1e-9 * FOLLOWED_TICKS * machine.tick_s

    def _account(self, pages: PageView, machine: MachineView) -> None:
        """Add what moves saved and cost in the tick to the credit."""
        from hmd.decide.guard_kernel import COLUMNS, GuardedRows, follow_moves
        from hmd.heat.view.page_state import PageState

        # Where plans wait for the CPU quota, the samples of this tick stand for those between.
        ticks = max(pages.tick - self._tick, 1) if self._tick >= 0 else 1
        elapsed_s = ticks * machine.tick_s
        if self._kept is None:
            self._kept = PageState(np.int16, 0, COLUMNS)
        if self._credit_s is None:
            self._credit_s = _FIRST * machine.tick_s
        nodes = nodes_of(machine, 0.0, 0)
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        home, last, age = (np.ascontiguousarray(c) for c in self._kept.read(pages).T)
        tier = nodes.tier[np.clip(pages.node, 0, len(nodes.tier) - 1)]
        samples = pages.tick_samples
        rows = GuardedRows(pages.process, tier, pages.size, samples, home, last, age)
        saved = np.zeros((len(pages.processes), 1))
        moved = follow_moves(rows, latency[:, None] - latency[None, :], saved)
        self._kept.write(pages, np.stack([home, last, age], axis=1))
        counted = np.bincount(pages.process, samples, len(pages.processes))
        each = pages.process_rate * elapsed_s / np.maximum(counted, 1.0)
        saved_s = float((saved[:, 0] * each / parallelism(pages, machine)).sum()) * 1e-9
        cost_s = moved * self._move_s
        self._saved_s += saved_s
        self._cost_s += cost_s
        credit_s = self._credit_s + saved_s - cost_s + _SHARE * elapsed_s
        most = _FIRST if self._level == GuardLevel.NONE else _MOST
        self._credit_s = min(credit_s, most * machine.tick_s)

    def _follow_trial(self, pages: PageView, machine: MachineView) -> None:
        """Count the trials in a row that would have paid."""
        if self._trial is None:
            return
        ticks = max(pages.tick - self._tick, 1)
        self._trial.follow(pages, machine, ticks * machine.tick_s)
        if self._trial.ended:
            self._paid = self._paid + 1 if self._trial.net_s > 0 else 0
            self._trial = None

    def _choose_level(self, tick_s: float) -> None:
        """Fall back where the credit is spent; try the policy again when its time has come."""
        assert self._credit_s is not None
        least_s = _PAGES_LEAST * self._move_s
        if self._level != GuardLevel.NONE and self._credit_s < least_s:
            self._fallbacks += 1
            self._until = self._tick + self._wait
            if self._level == GuardLevel.POLICY and self._rule is not None:
                self._level = GuardLevel.RULE
                self._credit_s = max(self._credit_s, _RULE * tick_s)
            else:
                self._level = GuardLevel.NONE
            self._trial, self._paid = None, 0
        elif self._level != GuardLevel.POLICY and self._paid >= self._trials:
            self._resume()
            self._credit_s = max(self._credit_s, _FIRST * tick_s)
        elif self._level != GuardLevel.POLICY and self._tick >= self._until:
            if self._credit_s >= _FIRST / 2 * tick_s:
                self._resume()
        elif self._level == GuardLevel.POLICY and self._credit_s > 2 * _FIRST * tick_s:
            self._wait, self._trials = _WAIT_TICKS, _TRIALS

    def _resume(self) -> None:
        """Let the policy plan again; the next time takes longer."""
        self._level, self._trial = GuardLevel.POLICY, None
        self._wait = min(2 * self._wait, _WAIT_MOST)
        self._trials = min(2 * self._trials, _TRIALS_MOST)
