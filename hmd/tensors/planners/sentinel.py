# SPDX-License-Identifier: MIT
"""The planner ``sentinel``: migration in intervals of kernels whose length is searched.

After Sentinel (Ren et al., HPCA 2021). During each interval the tensors that the next one uses are
fetched, and those that neither uses are evicted when it begins. Tensors that live within one
interval stay in the fastest tier. Sentinel counts layers of the network; traces have kernels only,
so intervals are of kernels here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlan, free_moves, plan_of
from hmd.tensors.planner import StepProblem

INTERVALS: Final = (4, 8, 16, 32, 64, 128)
"""Lengths of an interval that are tried, in kernels."""


def plan_step(problem: StepProblem) -> MovePlan:
    """Return the moves of the interval length that the simulator prices lowest."""
    lengths = [each for each in INTERVALS if each <= problem.trace.kernels] or [1]
    return problem.cheapest(plan_of(_moves(problem, length)) for length in lengths)


def _moves(problem: StepProblem, length: int) -> Iterator[Move]:
    """Yield the moves of one interval length, interval by interval."""
    trace = problem.trace
    count = -(-trace.kernels // length)
    uses = np.unique(np.stack([trace.use_kernel // length, trace.use_tensor]), axis=1)
    used = [set(uses[1, uses[0] == interval].tolist()) for interval in range(count)]
    lower = _LowerTiers(problem)
    yield from free_moves(problem.life, problem.none)
    for interval in range(count):
        start = interval * length
        here, ahead = used[interval], used[(interval + 1) % count]
        lower.drop_dead(start)
        for tensor in sorted(used[interval - 1] - here - ahead):
            if _needed_later(problem, tensor, start):
                yield start, tensor, 0, lower.put(tensor), WHOLE
        for tensor in sorted(ahead - here):
            if lower.take(tensor):
                yield start, tensor, ANY, 0, WHOLE


def _needed_later(problem: StepProblem, tensor: int, kernel: int) -> bool:
    life = problem.life
    death, birth = int(life.death[tensor]), int(life.birth[tensor])
    return death < 0 or birth < kernel < death


class _LowerTiers:
    """Where evicted tensors are: in the first tier below the fastest that has room."""

    def __init__(self, problem: StepProblem) -> None:
        self._problem = problem
        tiers = problem.system.tiers
        self._room = [tier.capacity for tier in tiers]
        self._where = np.full(problem.trace.tensors, -1, np.int64)
        for tensor in np.flatnonzero(problem.trace.tensor_persistent).tolist():
            self._place(tensor, len(tiers) - 1)

    def _place(self, tensor: int, tier: int) -> None:
        self._where[tensor] = tier
        self._room[tier] -= int(self._problem.trace.tensor_bytes[tensor])

    def put(self, tensor: int) -> int:
        """Return the tier that an evicted tensor goes to."""
        size = int(self._problem.trace.tensor_bytes[tensor])
        tiers = range(1, len(self._room))
        tier = next((each for each in tiers if self._room[each] >= size), len(self._room) - 1)
        self.take(tensor)
        self._place(tensor, tier)
        return tier

    def take(self, tensor: int) -> bool:
        """Forget an evicted tensor; returns whether it was in a lower tier."""
        tier = int(self._where[tensor])
        if tier < 0:
            return False
        self._room[tier] += int(self._problem.trace.tensor_bytes[tensor])
        self._where[tensor] = -1
        return True

    def drop_dead(self, kernel: int) -> None:
        """Forget the tensors that are dead when a kernel begins."""
        death = self._problem.life.death
        for tensor in np.flatnonzero((self._where > 0) & (death >= 0) & (death <= kernel)).tolist():
            self.take(tensor)
