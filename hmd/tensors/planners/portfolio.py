# SPDX-License-Identifier: MIT
"""The planner ``portfolio``: the cheapest of several kinds of plans, with several margins each.

An algorithm portfolio: which plan is the best differs from step to step, and a simulation shows it
(Gomes and Selman, "Algorithm portfolios", Artificial Intelligence 126, 2001).

1. The plans of the other planners that take little time.
2. Belady's choice of what leaves, in bytes, over a step that repeats (``choose_evictions``), with
   transfers booked kernel by kernel (``TransferDraft``). The plan is priced, and planned again with
   the lengths that its kernels had, stalls included, since transfers overlap stalls too.
3. The schedule of a linear program of all bytes over all kernels (``schedule_transfers``), also
   with its parts booked as above.
4. G10's plans with other shares of the tier and the links, and further drafts.

A margin that helps one step harms another: how much of the tiers and links a plan may use is
searched in the simulator, for each step. The search ends when a plan is next to the lower bound,
or after ``BUDGET_S``. Steps of many pages are simulated in larger ones during the search.

Where kernels compute in place, tensors are split between the tiers by linear programs
(``SplitProgram``), of steps that are not too long for these; the cheapest of their plans and those
of the other planners is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from hmd.base.errors import MissingError
from hmd.tensors.eviction import step_uses
from hmd.tensors.move_plan import MovePlan, MovePlanError, plan_of
from hmd.tensors.planner import PlanningTime, StepProblem, planning_time
from hmd.tensors.planners import g10, planner_named
from hmd.tensors.split_program import SplitProgram
from hmd.tensors.trace import TensorKind
from hmd.tensors.transfers import TransferDraft, schedule_transfers

PricedPlans = Iterator[tuple[MovePlan, float]]

BUDGET_S: Final = 9.5
"""CPU time of the search, without compiling: no plan is begun that would probably exceed it."""

_PROGRAM_S: Final = 1.5
"""CPU time that a linear program takes at least; its solver stops at the budget."""

_COARSE_PAGES: Final = 1 << 20
"""The search simulates in pages so large that the step's peak has at most so many."""

_PROGRAM_SHARES: Final = (
    (1.0, 0.998, 1.0),
    (0.99, 0.99, 0.97),
    (0.98, 0.97, 0.95),
    (1.0, 0.9, 0.9),
)
"""Shares of the fastest tier, the second tier and the links that programs use."""

_VERTEX_KERNELS: Final = 400
"""Programs of longer steps are solved to an interior point, in a tenth of the time."""

_INTERIOR_SHARES: Final = ((1.0, 0.998, 0.85), (1.0, 0.998, 1.0))
"""The same of programs of shorter steps that are solved to an interior point, too."""

_SPLIT_SHARES: Final = (
    (0.88, 0.95, False),
    (0.93, 1.0, True),
    (0.99, 1.0, False),
    (0.96, 1.0, False),
    (0.97, 0.97, True),
)
"""Shares of the fastest tier and the links that programs of split tensors use; deferred or not."""

_ROUNDS: Final = 3
_STEP: Final = 1.1
"""Links of G10's plans are booked so many times as much as before, while that helps."""

_PROGRAM_ROWS: Final = 60_000
"""Linear programs are solved for steps of up to so many rows, which takes some seconds."""

_ENOUGH: Final = 1.0005
"""A plan this close to the lower bound is not improved further."""

_ENOUGH_IN_PLACE: Final = 1.00001
"""The same where kernels compute in place."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest of the plans tried."""
    best = plan_of([])
    in_place = problem.system.in_place
    with planning_time() as spent:
        # Where kernels compute in place, the bound is a program that takes as long as a plan.
        enough = (
            _ENOUGH_IN_PLACE * problem.trace.ideal_seconds
            if in_place
            else _ENOUGH * problem.bound_seconds
        )
        search = _Search(_in_coarse_pages(problem), spent)
        for plan, seconds in search.candidates():
            if seconds < search.fastest_s:
                best, search.fastest_s = plan, seconds
            if search.fastest_s <= enough:
                break
    return best


def _in_coarse_pages(problem: StepProblem) -> StepProblem:
    """Return the problem with pages so large that few are simulated."""
    page, peak = problem.system.granularity_bytes, problem.life.peak_bytes
    while peak > _COARSE_PAGES * page:
        page *= 2
    system = problem.system.model_copy(update={"granularity_bytes": page})
    return replace(problem, system=system)


class _Search:
    """The candidates for one problem; ``fastest_s`` is the price of the best so far, in seconds."""

    def __init__(self, problem: StepProblem, spent: PlanningTime) -> None:
        self.fastest_s = np.inf
        self._problem, self._trace, self._spent = problem, problem.trace, spent
        self._solved_s = 0.0

    def candidates(self) -> PricedPlans:
        """Yield plans with their prices, as long as another one probably fits the budget."""
        kinds = self._kinds_in_place() if self._problem.system.in_place else self._kinds()
        longest, since = _PROGRAM_S, self._spent.elapsed()
        for plans in kinds:
            while longest <= self._left_s():
                found = next(plans, None)
                now = self._spent.elapsed()
                # Solvers stop at the budget, whatever their programs took before.
                longest = max(longest, now - since - self._solved_s)
                self._solved_s, since = 0.0, now
                if found is None:
                    break
                yield found

    def _kinds(self) -> list[PricedPlans]:
        """Return kinds of plans: first one plan of each, then those with other margins."""
        trace, tiers = self._trace, len(self._problem.system.tiers)
        variants, drafts = self._g10_variants(), self._drafts(0.99)
        # Where dead tensors are dropped, lru frees them as lru-free does.
        kinds = [self._others("lru-free", *(() if self._problem.rules.drop_dead else ("lru",)))]
        kinds.append(islice(drafts, 1))
        if (trace.tensor_persistent & (trace.tensor_kind == TensorKind.OPTIMIZER)).any():
            kinds.append(self._others("myelin"))
        if tiers > 2:
            kinds += [self._others("g10"), islice(variants, 1)]
        programs: list[PricedPlans] = []
        if 7 * (tiers - 1) * trace.kernels + len(trace.use_tensor) <= _PROGRAM_ROWS:
            is_long = trace.kernels > _VERTEX_KERNELS
            programs = [self._programs(shares, interior=is_long) for shares in _PROGRAM_SHARES]
            if not is_long:
                programs += [self._programs(shares, interior=True) for shares in _INTERIOR_SHARES]
        kinds += [drafts, self._drafts(0.95), *programs[:1]]
        if tiers > 2:
            kinds.append(variants)
        return [*kinds, self._drafts(1.0), self._others("sentinel"), *programs[1:]]

    def _kinds_in_place(self) -> list[PricedPlans]:
        """Return kinds of plans where kernels compute in place: none is always best."""
        kinds = [self._others("lru-free", "lru"), self._others("sentinel")]
        if 5 * self._trace.kernels + 4 * len(self._trace.use_tensor) <= _PROGRAM_ROWS:
            splits = [self._split(*shares) for shares in _SPLIT_SHARES]
            kinds[1:1] = splits[:2]
            kinds += splits[2:]
        return kinds

    def _priced(self, plan: MovePlan) -> tuple[MovePlan, float]:
        """Return a plan with its price, infinite where it cannot be carried out or is no faster."""
        with suppress(MovePlanError):
            return plan, self._problem.price(plan, limit_seconds=self.fastest_s).seconds
        return plan, np.inf

    def _left_s(self) -> float:
        """Return the CPU time that the search still has, in seconds."""
        return BUDGET_S - self._spent.elapsed()

    @contextmanager
    def _solving(self) -> Iterator[float]:
        """Count a block as a solver's; gives the CPU time that it may take."""
        begin = self._spent.elapsed()
        try:
            yield self._left_s()
        finally:
            self._solved_s += self._spent.elapsed() - begin

    def _others(self, *names: str) -> PricedPlans:
        for name in names:
            with suppress(MovePlanError):
                yield self._priced(planner_named(name).plan(self._problem))

    def _programs(self, shares: tuple[float, float, float], *, interior: bool) -> PricedPlans:
        """Yield plans of a linear program's schedule: as it is, and with its parts booked again."""
        problem = self._problem
        try:
            with self._solving() as limit_s:
                schedule = schedule_transfers(problem, shares, limit_s, interior=interior)
        except (MissingError, ArithmeticError):
            return
        uses = step_uses(problem.trace, problem.life)
        draft = TransferDraft(problem, uses, schedule.seconds, shares[0])
        yield self._priced(draft.scheduled(schedule.parts, schedule.to_last, schedule.fetched))
        yield self._priced(draft.booked(schedule.parts, schedule.to_last))

    def _g10_variants(self) -> PricedPlans:
        """Yield G10's plans that book more of the links, then that fill less of the fastest tier.

        Fetches of these move earlier only where all of them have room.
        """
        best, target, links = np.inf, g10.TARGET, g10.LINKS
        steps = [(0.0, _STEP)] * 6 + [(-0.02, 1.0), (-0.03, 1.0)]
        improves = True
        for less, more in steps:
            if not improves and more > 1:
                continue
            tried = (target + less, links * more)
            plan, seconds = g10.G10Planner(self._problem, *tried, exact=True).plan(), np.inf
            with suppress(MovePlanError):
                seconds = self._problem.price(plan).seconds
            yield plan, seconds
            improves = seconds < best
            if improves:
                best, (target, links) = seconds, tried

    def _drafts(self, margin: float) -> PricedPlans:
        """Yield plans of booked parts; each is planned again with its stalled times."""
        problem, trace = self._problem, self._trace
        uses = step_uses(trace, problem.life)
        seconds, previous = trace.kernel_seconds, np.inf
        for _ in range(_ROUNDS):
            plan = TransferDraft(problem, uses, seconds, margin).plan()
            try:
                result = problem.price(plan)
            except MovePlanError:
                break
            yield plan, result.seconds
            if result.seconds > previous * 0.999:
                break
            previous = result.seconds
            lengths = np.diff(np.append(result.begin, result.end[-1]))
            seconds = np.maximum(lengths / trace.ticks_per_second, 1e-9)

    def _split(self, capacity: float, bandwidth: float, defers: bool) -> PricedPlans:
        """Yield the plan of a program that splits tensors, if it is solved in time."""
        trace, life, system = self._trace, self._problem.life, self._problem.system
        shares = {"capacity": capacity, "bandwidth": bandwidth}
        program = SplitProgram(trace, life, system, repeats=True, defers=defers, **shares)
        with suppress(ArithmeticError, MissingError):
            with self._solving() as limit_s:
                plan = program.plan(limit_s)
            yield self._priced(plan)
