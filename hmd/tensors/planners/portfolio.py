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
(``SplitProgram``); the cheapest of their plans and those of the other planners is taken. Of steps
too long for these, each tensor has one place instead (``dense_placement``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from hmd.base.errors import MissingError
from hmd.tensors.dense_placement import dense_placement
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

_DRAFTS: Final = ((True, 0.99), (True, 0.95), (False, 1.0), (True, 1.0))
"""Further drafts: whether the choice minds the links, and the share of the fastest tier filled."""

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


@dataclass
class FastestPlan:
    """The price of the best plan so far: others are simulated no further than to there.

    ``spent`` is the time since the search began, ``solved_s`` what solvers took for the last plan.
    """

    spent: PlanningTime
    seconds: float = np.inf
    solved_s: float = 0.0

    @property
    def left_s(self) -> float:
        """CPU time that the search still has, in seconds."""
        return BUDGET_S - self.spent.elapsed()

    @contextmanager
    def solving(self) -> Iterator[float]:
        """Count a block as a solver's; gives the CPU time that it may take."""
        begin = self.spent.elapsed()
        try:
            yield self.left_s
        finally:
            self.solved_s += self.spent.elapsed() - begin


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest of the plans tried."""
    best = plan_of([])
    with planning_time() as spent:
        fastest = FastestPlan(spent)
        coarse = _in_coarse_pages(problem)
        share = _ENOUGH_IN_PLACE if problem.system.in_place else _ENOUGH
        # Where kernels compute in place, the bound is a program that takes as long as a plan.
        ideal = problem.trace.ideal_seconds
        enough = share * (ideal if problem.system.in_place else problem.bound_seconds)
        for plan, seconds in _candidates(coarse, fastest):
            if seconds < fastest.seconds:
                best, fastest.seconds = plan, seconds
            if fastest.seconds <= enough or fastest.left_s <= 0:
                break
    return best


def _in_coarse_pages(problem: StepProblem) -> StepProblem:
    """Return the problem with pages so large that few are simulated."""
    page, peak = problem.system.granularity_bytes, problem.life.peak_bytes
    while peak > _COARSE_PAGES * page:
        page *= 2
    system = problem.system.model_copy(update={"granularity_bytes": page})
    return replace(problem, system=system)


def _candidates(problem: StepProblem, fastest: FastestPlan) -> PricedPlans:
    """Yield plans with their prices: first one of each kind, then those with other margins."""
    if problem.system.in_place:
        yield from _in_place(problem, fastest)
        return
    trace, tiers = problem.trace, len(problem.system.tiers)
    variants = _g10_variants(problem)
    drafts = _drafts(problem, 0.99, aware=False)
    kinds: list[Callable[[], PricedPlans]] = [
        # Where dead tensors are dropped, lru frees them as lru-free does.
        lambda: _of_others(problem, fastest, *("lru-free", "lru")[: 2 - problem.rules.drop_dead]),
        lambda: islice(drafts, 1),
    ]
    if (trace.tensor_persistent & (trace.tensor_kind == TensorKind.OPTIMIZER)).any():
        kinds.append(lambda: _of_others(problem, fastest, "myelin"))
    if tiers > 2:
        kinds.append(lambda: _of_others(problem, fastest, "g10"))
        kinds.append(lambda: islice(variants, 1))
    programs: list[Callable[[], PricedPlans]] = []
    if 7 * (tiers - 1) * trace.kernels + len(trace.use_tensor) <= _PROGRAM_ROWS:
        is_long = trace.kernels > _VERTEX_KERNELS
        programs = [
            partial(_programs, problem, fastest, shares, interior=is_long)
            for shares in _PROGRAM_SHARES
        ]
        programs += [
            partial(_programs, problem, fastest, shares, interior=True)
            for shares in (() if is_long else _INTERIOR_SHARES)
        ]
    kinds += [lambda: drafts, partial(_drafts, problem, 0.95, aware=False), *programs[:1]]
    if tiers > 2:
        kinds.append(lambda: variants)
    kinds += [partial(_drafts, problem, margin, aware=aware) for aware, margin in _DRAFTS]
    kinds += [lambda: _of_others(problem, fastest, "sentinel"), *programs[1:]]
    yield from _while_time_is_left(kinds, fastest)


def _while_time_is_left(
    kinds: list[Callable[[], PricedPlans]], fastest: FastestPlan
) -> PricedPlans:
    """Yield the plans of each kind, as long as another one probably fits the budget."""
    longest, since = _PROGRAM_S, fastest.spent.elapsed()
    for kind in kinds:
        plans = kind()
        while longest <= fastest.left_s:
            found = next(plans, None)
            now = fastest.spent.elapsed()
            # Solvers stop at the budget, whatever their programs took before.
            longest = max(longest, now - since - fastest.solved_s)
            fastest.solved_s, since = 0.0, now
            if found is None:
                break
            yield found


def _of_others(problem: StepProblem, fastest: FastestPlan, *names: str) -> PricedPlans:
    """Yield the plans of other planners."""
    for name in names:
        try:
            plan = planner_named(name).plan(problem)
        except MovePlanError:
            continue
        yield from _priced(problem, fastest, plan)


def _priced(problem: StepProblem, fastest: FastestPlan | None, plan: MovePlan) -> PricedPlans:
    """Yield a plan with its price, infinite where it cannot be carried out or is no faster."""
    seconds = np.inf
    with suppress(MovePlanError):
        limit = fastest.seconds if fastest else np.inf
        seconds = problem.price(plan, limit_seconds=limit).seconds
    yield plan, seconds


def _programs(
    problem: StepProblem,
    fastest: FastestPlan,
    shares: tuple[float, float, float],
    *,
    interior: bool,
) -> PricedPlans:
    """Yield the plans of a linear program's schedule: as it is, and with its parts booked again."""
    try:
        with fastest.solving() as limit_s:
            schedule = schedule_transfers(problem, shares, limit_s, interior=interior)
    except (MissingError, ArithmeticError):
        return
    uses = step_uses(problem.trace, problem.life)
    draft = TransferDraft(problem, uses, schedule.seconds, shares[0], aware=False)
    for plan in (
        draft.scheduled(schedule.parts, schedule.to_last, schedule.fetched),
        draft.booked(schedule.parts, schedule.to_last),
    ):
        yield from _priced(problem, fastest, plan)


def _g10_variants(problem: StepProblem) -> PricedPlans:
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
        plan = g10.G10Planner(problem, *tried, exact=True).plan()
        (priced,) = _priced(problem, None, plan)
        yield priced
        seconds = priced[1]
        improves = seconds < best
        if improves:
            best, (target, links) = seconds, tried


def _drafts(problem: StepProblem, margin: float, *, aware: bool) -> PricedPlans:
    """Yield plans of booked parts; each is planned again with its stalled times."""
    uses = step_uses(problem.trace, problem.life)
    seconds = problem.trace.kernel_seconds
    previous = np.inf
    for _ in range(_ROUNDS):
        plan = TransferDraft(problem, uses, seconds, margin, aware).plan()
        try:
            result = problem.price(plan)
        except MovePlanError:
            break
        yield plan, result.seconds
        if result.seconds > previous * 0.999:
            break
        previous = result.seconds
        lengths = np.diff(np.append(result.begin, result.end[-1]))
        seconds = np.maximum(lengths / problem.trace.ticks_per_second, 1e-9)


def _in_place(problem: StepProblem, fastest: FastestPlan) -> PricedPlans:
    """Yield plans that split tensors, then those of the other planners: none is always best."""
    kinds: list[Callable[[], PricedPlans]] = [
        lambda: _priced(problem, fastest, dense_placement(problem)),
        lambda: _of_others(problem, fastest, "lru-free", "lru"),
    ]
    trace = problem.trace
    if 5 * trace.kernels + 4 * len(trace.use_tensor) <= _PROGRAM_ROWS:
        kinds += [
            lambda: _split(problem, fastest, *_SPLIT_SHARES[0]),
            lambda: _split(problem, fastest, *_SPLIT_SHARES[1]),
            lambda: _of_others(problem, fastest, "sentinel"),
            lambda: _split(problem, fastest, *_SPLIT_SHARES[2]),
            lambda: _split(problem, fastest, *_SPLIT_SHARES[3]),
        ]
    yield from _while_time_is_left(kinds, fastest)


def _split(
    problem: StepProblem, fastest: FastestPlan, capacity: float, bandwidth: float, defers: bool
) -> PricedPlans:
    """Yield the plan of a program that splits tensors, if it is solved in time."""
    program = SplitProgram(
        problem.trace,
        problem.life,
        problem.system,
        repeats=True,
        capacity=capacity,
        bandwidth=bandwidth,
        defers=defers,
    )
    with suppress(ArithmeticError, MissingError):
        with fastest.solving() as limit_s:
            plan = program.plan(limit_s)
        yield from _priced(problem, fastest, plan)
