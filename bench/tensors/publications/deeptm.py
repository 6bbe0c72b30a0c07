# SPDX-License-Identifier: MIT
"""The planner ``deeptm``: a reconstruction of DeepTM from its abstract (IEEE TPDS 2024).

Published: aggregation of tensors into pages, contiguous migration, an integer program, heat of four
dynamically weighted characteristics, and deep reinforcement learning. Unpublished, and chosen here:
the characteristics (accesses, size, remaining life and reuse distance, as ranks), the rule of their
weights, which part the program decides, and the learning.

1. Tensors that the same kernels use become one group, moved as one transaction.
2. The program of ``autotm`` decides on the gaps with the highest heat alone; the weights follow
   from the relief of the last plan.
3. Learning starts from the best of these plans. It has a table of action values (Watkins and Dayan,
   1992) over states of a gap: ranks of size and reuse distance, and whether memory is short
   meanwhile. A gap's reward is the stall of the kernels that its action concerns, and less for more
   memory kept. The plan that the simulator prices lowest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from bench.tensors.publications.residency_model import (
    Residency,
    ResidencyModel,
    ResidencyOptions,
    gap_kernels,
    residency_moves,
)
from hmd.tensors.lifetimes import TensorSpans
from hmd.tensors.move_plan import WHOLE, Move, MovePlan, MovePlanError, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.simulator import StepResult
from hmd.tensors.trace import Bools, Floats, Ints, TensorTrace

TRAITS: Final = ("accesses", "size", "life", "reuse")
_RATE: Final = 1.0


@dataclass(frozen=True, slots=True)
class GapTraits:
    """Ranks of gaps, (G, 4), from 0 to 1; more of each speaks for leaving the fastest tier.

    ``relief`` (G,) is what leaving frees: bytes times the seconds in which more is alive than the
    fastest tier takes.
    """

    ranks: Floats
    relief: Floats

    def scores(self, weights: Floats) -> Floats:
        """Return the weighted sum of the ranks, (G,)."""
        return np.asarray(self.ranks @ weights, np.float64)

    def reweighed(self, weights: Floats, away: Floats) -> Floats:
        """Return the weights after a plan in which ``away`` (G,) of each gap's tensor left.

        A weight grows with the correlation between its characteristic and the relief achieved.
        """
        achieved = self.relief * away
        if not achieved.any():
            return weights
        centred = self.ranks - self.ranks.mean(axis=0)
        spread = centred.std(axis=0) * achieved.std() + 1e-30
        correlation = (centred * (achieved - achieved.mean())[:, None]).mean(axis=0) / spread
        grown = weights * np.exp(_RATE * correlation)
        return np.asarray(grown / grown.sum(), np.float64)


def gap_traits(problem: StepProblem, spans: TensorSpans) -> GapTraits:
    """Return the traits of the gaps of a step."""
    trace, life = problem.trace, problem.life
    tensor = spans.tensor[spans.before]
    seconds = trace.kernel_seconds
    before = np.concatenate([[0.0], np.cumsum(seconds)])
    start, end = (spans.last[spans.before] + 1) % trace.kernels, spans.first[spans.after]
    reuse = _span(before, start, end)
    death = np.where(life.death[tensor] < 0, trace.kernels, life.death[tensor])
    accesses = np.bincount(trace.use_tensor, minlength=trace.tensors)[tensor]
    full = life.live_bytes > problem.system.tiers[0].capacity
    over = np.concatenate([[0.0], np.cumsum(seconds * full)])
    remaining = np.maximum(before[death] - before[start], 0.0)
    columns = (-accesses, trace.tensor_bytes[tensor], remaining, reuse)
    ranks = np.stack([_rank(np.asarray(column, np.float64)) for column in columns], axis=1)
    return GapTraits(ranks, trace.tensor_bytes[tensor] * _span(over, start, end))


def _span(total: Floats, start: Ints, end: Ints) -> Floats:
    """Return the part of a running total between kernels, around the end of the step."""
    between = total[end] - total[start]
    return np.asarray(np.where(start > end, between + total[-1], between), np.float64)


def _rank(column: Floats) -> Floats:
    """Return the rank of each value among all, from 0 to 1; equal values have equal ranks."""
    values, place = np.unique(column, return_inverse=True)
    return np.asarray(place / max(len(values) - 1, 1), np.float64)


EPISODES: Final = 8
_LEVELS: Final = 4
_STEP: Final = 0.5
_EXPLORE: Final = 0.1
_SEED: Final = 1

Price = Callable[[Bools], StepResult | None]
"""Prices the plan in which the marked gaps' tensors leave; None where it cannot be carried out."""


def learned_gaps(
    spans: TensorSpans, traits: GapTraits, start: Bools, price: Price
) -> Iterator[Bools]:
    """Yield the gaps whose tensors leave, (G,), episode by episode; ``start`` is the first."""
    random = np.random.default_rng(_SEED)
    state = _states(traits)
    values = np.zeros((state.max(initial=0) + 1, 2))
    # The first plan is the prior of the table: its choice per state is worth a little more.
    for action, marked in ((1, start), (0, ~start)):
        values[:, action] = np.bincount(state[marked], minlength=len(values))
    values /= np.maximum(values.sum(axis=1, keepdims=True), 1)
    leaves = start
    for _ in range(EPISODES):
        found = price(leaves)
        if found is not None:
            reward = _rewards(spans, leaves, found)
            for action, marked in ((1, leaves), (0, ~leaves)):
                count = np.bincount(state[marked], minlength=len(values))
                total = np.bincount(state[marked], reward[marked], len(values))
                seen = count > 0
                values[seen, action] += _STEP * (total[seen] / count[seen] - values[seen, action])
            yield leaves
        greedy = values[state, 1] > values[state, 0]
        explore = random.random(len(state)) < _EXPLORE
        leaves = np.where(explore, start, greedy) & (traits.relief > 0)


def _states(traits: GapTraits) -> Ints:
    size, reuse = traits.ranks[:, 1], traits.ranks[:, 3]
    level = [np.minimum(each * _LEVELS, _LEVELS - 1).astype(np.int64) for each in (size, reuse)]
    short = (traits.relief > 0).astype(np.int64)
    return np.asarray((level[0] * _LEVELS + level[1]) * 2 + short, np.int64)


def _rewards(spans: TensorSpans, leaves: Bools, found: StepResult) -> Floats:
    """Return the reward of each gap: minus the stall of its fetch, or of the gap it filled."""
    stall = found.stall.astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(stall)])
    start, end = spans.last[spans.before] + 1, spans.first[spans.after]
    inside = np.where(start > end, total[-1] - total[start] + total[end], total[end] - total[start])
    length = gap_kernels(spans, len(stall))
    reward = np.where(leaves, -stall[end], -inside / np.maximum(length, 1))
    return np.asarray(reward / max(stall.mean(), 1.0), np.float64)


@dataclass(frozen=True)
class TensorGroups:
    """A grouped step: ``trace``, and the members of each of its tensors, in order of bytes."""

    trace: TensorTrace
    members: tuple[tuple[int, ...], ...]
    member_bytes: Ints

    def expand(self, moves: Iterable[Move], page_bytes: int) -> Iterator[Move]:
        """Yield the moves of members for moves of groups, in pieces of pages."""
        taken: dict[tuple[int, int, int], int] = {}
        for kernel, group, source, target, size in moves:
            members = self.members[group]
            if size >= WHOLE:
                for tensor in members:
                    yield kernel, tensor, source, target, WHOLE
                continue
            # Pieces of one transaction follow each other through the members.
            key = (group, source, target)
            low = taken.get(key, 0)
            total = int(self.member_bytes[list(members)].sum())
            high = min(low + size, total)
            taken[key] = 0 if high + page_bytes > total else high
            yield from self._slice(kernel, members, (source, target), (low, high))

    def _slice(
        self, kernel: int, members: tuple[int, ...], ends: tuple[int, int], part: tuple[int, int]
    ) -> Iterator[Move]:
        """Yield the moves of the bytes ``part`` of some members that lie one after the other."""
        start = 0
        for tensor in members:
            end = start + int(self.member_bytes[tensor])
            size = min(end, part[1]) - max(start, part[0])
            if size > 0:
                yield kernel, tensor, *ends, size
            start = end


def group_tensors(trace: TensorTrace) -> TensorGroups:
    """Return the step with tensors grouped by kernels of use, modes, and persistence."""
    order = np.lexsort((trace.use_mode, trace.use_kernel, trace.use_tensor))
    owner = trace.use_tensor[order]
    uses = np.stack([trace.use_kernel[order], trace.use_mode[order]], axis=1)
    edges = np.searchsorted(owner, np.arange(trace.tensors + 1))
    found: dict[tuple[bytes, bool], list[int]] = {}
    for tensor in range(trace.tensors):
        key = (
            uses[edges[tensor] : edges[tensor + 1]].tobytes(),
            bool(trace.tensor_persistent[tensor]),
        )
        found.setdefault(key, []).append(tensor)
    members = tuple(tuple(each) for each in found.values())
    group = np.empty(trace.tensors, np.int64)
    for number, each in enumerate(members):
        group[list(each)] = number
    first = np.array([each[0] for each in members])
    kept = np.isin(trace.use_tensor, first)
    counts = np.bincount(trace.use_kernel[kept], minlength=trace.kernels)
    grouped = replace(
        trace,
        tensor_bytes=np.bincount(group, trace.tensor_bytes).astype(np.int64),
        tensor_kind=trace.tensor_kind[first],
        tensor_storage=np.arange(len(members)),
        tensor_names=(),
        tensor_persistent=trace.tensor_persistent[first],
        use_start=np.concatenate([[0], np.cumsum(counts)]),
        use_tensor=group[trace.use_tensor[kept]],
        use_mode=trace.use_mode[kept],
    )
    return TensorGroups(grouped, members, trace.tensor_bytes)


_ROUNDS: Final = 2
_CANDIDATES: Final = 0.6
"""Share of the gaps with relief that the program decides on."""

_SOLVER_S: Final = 20.0
"""CPU time that each round's solver takes at most, in seconds."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest plan of the program's rounds and of the learning."""
    groups = group_tensors(problem.trace)
    search = _CheapestPlan(problem, replace(problem, trace=groups.trace), groups)
    residency = _program_rounds(search)
    traits = gap_traits(search.grouped, residency.spans)

    def price(leaves: Bools) -> StepResult | None:
        return search.try_residency(_with_gaps(search.grouped, residency, leaves))

    for _ in learned_gaps(residency.spans, traits, residency.away.sum(axis=1) > 0.5, price):
        pass
    if search.best is None:
        raise MovePlanError(f"{problem.trace.name}: no plan of deeptm can be carried out")
    return search.best


@dataclass
class _CheapestPlan:
    """The cheapest plan so far."""

    problem: StepProblem
    grouped: StepProblem
    groups: TensorGroups
    best: MovePlan | None = None
    seconds: float = field(default=np.inf)

    def try_residency(self, residency: Residency) -> StepResult | None:
        """Price a residency of groups; None where its plan cannot be carried out."""
        moves = residency_moves(residency, self.grouped)
        page = self.problem.system.granularity_bytes
        plan = plan_of(self.groups.expand(moves, page))
        try:
            found = self.problem.price(plan)
        except MovePlanError:
            return None
        if found.seconds < self.seconds:
            self.best, self.seconds = plan, found.seconds
        return found


def _program_rounds(search: _CheapestPlan) -> Residency:
    """Solve the program, weigh the characteristics by its plan, and solve it again."""
    options = ResidencyOptions(capacity=0.98)
    spans = ResidencyModel(search.grouped, options).spans
    traits = gap_traits(search.grouped, spans)
    weights = np.full(len(TRAITS), 1 / len(TRAITS))
    best: Residency | None = None
    for _ in range(_ROUNDS):
        scores = np.where(traits.relief > 0, traits.scores(weights), -np.inf)
        relevant = int(np.isfinite(scores).sum())
        count = int(np.ceil(_CANDIDATES * relevant))
        movable = np.zeros(len(scores), np.bool_)
        movable[np.argsort(-scores, kind="stable")[:count]] = True
        residency = ResidencyModel(search.grouped, options, movable).solve(_SOLVER_S)
        before = search.seconds
        search.try_residency(residency)
        if best is None or search.seconds < before:
            best = residency
        weights = traits.reweighed(weights, residency.away.sum(axis=1))
    assert best is not None
    return best


def _with_gaps(problem: StepProblem, residency: Residency, leaves: Bools) -> Residency:
    """Return the residency in which the tensors of the marked gaps leave, if they are fast."""
    spans, trace = residency.spans, problem.trace
    size = trace.tensor_bytes[spans.tensor[spans.before]]
    both = np.minimum(residency.fast[spans.before], residency.fast[spans.after]) > 0.5
    away = np.zeros_like(residency.away)
    if problem.system.in_place:
        # What is slow on one side of a gap moves there; the gaps between two fast spans are free.
        away[:, 0] = np.where(both, leaves, residency.fast[spans.before])
        return replace(residency, away=away)
    tiers = problem.system.tiers
    used = np.zeros((len(tiers), trace.kernels))
    for gap in np.flatnonzero(leaves).tolist():
        start, end = int(spans.last[spans.before[gap]]) + 1, int(spans.first[spans.after[gap]])
        inside = np.zeros(trace.kernels, np.bool_)
        if spans.wraps[gap]:
            inside[start:], inside[:end] = True, True
        else:
            inside[start:end] = True
        tier = next(
            (
                each
                for each in range(1, len(tiers))
                if used[each, inside].max(initial=0) + size[gap] <= tiers[each].capacity
            ),
            len(tiers) - 1,
        )
        used[tier, inside] += size[gap]
        away[gap, tier - 1] = 1.0
    return replace(residency, away=away)
