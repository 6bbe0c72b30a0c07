"""The planner ``deeptm``: a reconstruction of DeepTM from its abstract (IEEE TPDS 2024).

Published: aggregation of tensors into pages, contiguous migration, an integer program, heat of four
dynamically weighted characteristics, and deep reinforcement learning. Unpublished, and chosen here:
the characteristics (:mod:`hmd.tensors.gap_traits`), the rule of their weights, which part the
program decides, and the learning (:mod:`hmd.tensors.gap_learning`, a table instead of a network).

1. Tensors that the same kernels use become one group, moved as one transaction.
2. The program of ``autotm`` decides on the gaps with the highest heat alone; the weights follow
   from the relief of the last plan.
3. Learning starts from the best of these plans. The plan that the simulator prices lowest is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from hmd.tensors.gap_learning import learned_gaps
from hmd.tensors.gap_traits import TRAITS, gap_traits
from hmd.tensors.gap_windows import ResidencyOptions
from hmd.tensors.move_plan import MovePlan, MovePlanError, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.residency_model import Residency, ResidencyModel
from hmd.tensors.residency_moves import residency_moves
from hmd.tensors.step_simulator import StepResult
from hmd.tensors.tensor_groups import TensorGroups, group_tensors
from hmd.tensors.tensor_trace import Bools

_ROUNDS: Final = 2
_CANDIDATES: Final = 0.6
"""Share of the gaps with relief that the program decides on."""

_LIMIT_S: Final = 20.0


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the cheapest plan of the program's rounds and of the learning."""
    groups = group_tensors(problem.trace)
    search = _CheapestPlan(
        problem, StepProblem(groups.trace, problem.system, problem.rules), groups
    )
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
        residency = ResidencyModel(search.grouped, options, movable).solve(_LIMIT_S)
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
