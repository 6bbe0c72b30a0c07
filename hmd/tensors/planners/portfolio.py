# SPDX-License-Identifier: MIT
"""The planner ``portfolio``: the cheapest of several kinds of plans, with several margins each.

An algorithm portfolio: which plan is the best differs from step to step, and a simulation shows it
(Gomes and Selman, "Algorithm portfolios", Artificial Intelligence 126, 2001).

1. The schedule of a linear program of all bytes over all kernels (``transfer_program``), for steps
   of some hundred kernels; also with its parts booked as below.
2. Belady's choice of what leaves, in bytes, over a step that repeats (``eviction_choice``), with
   transfers booked kernel by kernel (``transfer_draft``). The plan is priced, and planned again
   with the lengths that its kernels had, stalls included, since transfers overlap stalls too.
3. G10's plan where the system has three tiers, then with other shares of the tier and the links.
4. The plans of ``lru-free``, ``lru``, ``sentinel`` and, for short steps, ``autotm`` and ``deeptm``.

A margin that helps one step harms another: how much of the tiers and links a plan may use is
searched in the simulator, for each step. The search ends when a plan is next to the lower
bound, or after so many simulated kernels.

Where kernels compute in place, tensors are split between the tiers by a linear program
(``split_residency``); the cheapest of its plans and those of the other planners is taken. Of long
steps, each tensor has one place instead (``dense_placement``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from hmd.base.errors import MissingError
from hmd.tensors.eviction import step_uses
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.move_plan import MovePlan, MovePlanError, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import g10, planner_named
from hmd.tensors.planners.autotm import split_plans
from hmd.tensors.residency_model import dense_placement
from hmd.tensors.transfers import TransferDraft, schedule_transfers

PricedPlans = Iterator[tuple[MovePlan, float]]

_DRAFTS: Final = ((True, 0.99), (True, 0.95), (False, 0.95), (False, 1.0), (True, 1.0))
"""Further drafts: whether the choice minds the links, and the share of the fastest tier filled."""

_PROGRAM_SHARES: Final = (
    (1.0, 0.998, 1.0),
    (0.99, 0.99, 0.97),
    (0.98, 0.97, 0.95),
    (1.0, 0.9, 0.9),
)
"""Shares of the fastest tier, the second tier and the links that programs use."""

_ROUNDS: Final = 3
_STEP: Final = 1.1
"""Links of G10's plans are booked so many times as much as before, while that helps."""

_LONG_KERNELS: Final = 2_500
"""Of steps with more kernels only the plans that take seconds are made."""

_PROGRAM_KERNELS: Final = 400
"""Linear programs are solved for steps of up to so many kernels."""

_PRICED_KERNELS: Final = 32_000
"""Kernels simulated over all plans tried, after which no further plan is tried."""

_LONG_PRICED: Final = 40_000
"""The same of long steps."""

_SENTINEL_KERNELS: Final = 6_000
"""Sentinel's search, of six plans, is made for steps of up to so many kernels."""

_PROGRAM_S: Final = 10.0
"""CPU time that a program takes at most."""

_SHORT_KERNELS: Final = 120
"""Integer programs are solved for steps of up to so many kernels."""

_ENOUGH: Final = 1.0005
"""A plan this close to the lower bound is not improved further."""

_ENOUGH_IN_PLACE: Final = 1.00001
"""The same where kernels compute in place."""

_IN_PLACE: Final = (
    "lru-free",
    "lru",
    "sentinel",
    "autotm-static",
    "autotm-sync",
    "autotm",
    "deeptm",
)
"""Planners whose plans are tried where kernels compute in place, the quick ones first."""


@dataclass
class FastestPlan:
    """The price of the best plan so far: others are simulated no further than to there."""

    seconds: float = np.inf


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest of the plans tried."""
    best, best_seconds = plan_of([]), np.inf
    share = _ENOUGH_IN_PLACE if problem.system.in_place else _ENOUGH
    enough = share * lower_bound_seconds(problem.trace, problem.system, problem.rules)
    kernels = problem.trace.kernels
    most = _PRICED_KERNELS if kernels <= _LONG_KERNELS else _LONG_PRICED
    fastest = FastestPlan()
    for number, (plan, seconds) in enumerate(_candidates(problem, fastest), 1):
        if seconds < best_seconds:
            best, best_seconds = plan, seconds
            fastest.seconds = seconds
        if best_seconds <= enough or (number * kernels >= most and not problem.system.in_place):
            break
    return best


def _candidates(problem: StepProblem, fastest: FastestPlan) -> PricedPlans:
    """Yield plans with their prices: first one of each kind, then those with other margins."""
    if problem.system.in_place:
        yield from _in_place(problem, fastest)
        return
    variants = _g10_variants(problem)
    if len(problem.system.tiers) > 2:
        yield from _of_others(problem, fastest, "g10")
        yield from islice(variants, 1)
    drafts = _drafts(problem, 0.99, aware=False)
    yield from islice(drafts, 1)
    # Where dead tensors are dropped, lru frees them as lru-free does.
    names = ("lru-free",) if problem.rules.drop_dead else ("lru-free", "lru")
    yield from _of_others(problem, fastest, *names)
    yield from drafts
    if problem.trace.kernels <= _SENTINEL_KERNELS:
        yield from _of_others(problem, fastest, "sentinel")
    if problem.trace.kernels <= _PROGRAM_KERNELS:
        for shares in _PROGRAM_SHARES:
            yield from _programs(problem, fastest, shares)
    if problem.trace.kernels <= _SHORT_KERNELS:
        yield from _of_others(problem, fastest, "autotm", "deeptm")
    if len(problem.system.tiers) > 2:
        yield from variants
    for aware, margin in _DRAFTS:
        yield from _drafts(problem, margin, aware=aware)


def _of_others(problem: StepProblem, fastest: FastestPlan, *names: str) -> PricedPlans:
    """Yield the plans of other planners."""
    for name in names:
        try:
            plan = planner_named(name).plan(problem)
        except (MovePlanError, MissingError, ArithmeticError):
            continue
        yield from _priced(problem, fastest, plan)


def _priced(problem: StepProblem, fastest: FastestPlan, plan: MovePlan) -> PricedPlans:
    """Yield a plan with its price, infinite where it cannot be carried out or is no faster."""
    seconds = np.inf
    with suppress(MovePlanError):
        seconds = problem.price(plan, limit_seconds=fastest.seconds).seconds
    yield plan, seconds


def _programs(
    problem: StepProblem, fastest: FastestPlan, shares: tuple[float, float, float]
) -> PricedPlans:
    """Yield the plans of a linear program's schedule: as it is, and with its parts booked again."""
    try:
        schedule = schedule_transfers(problem, shares, _PROGRAM_S)
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
        plan = g10.plan_to_target(problem, tried[0], exact=True, links=tried[1])
        (priced,) = _priced(problem, FastestPlan(), plan)
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
    yield from _priced(problem, fastest, dense_placement(problem))
    if problem.trace.kernels > _LONG_KERNELS:
        yield from _of_others(problem, fastest, "lru-free", "lru")
        return
    try:
        for plan in split_plans(problem):
            yield from _priced(problem, fastest, plan)
    except (ArithmeticError, MissingError):
        pass
    yield from _of_others(problem, fastest, *_IN_PLACE)
