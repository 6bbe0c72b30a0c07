# SPDX-License-Identifier: MIT
"""A placement without a program: tensors that save most time per byte and second are fast.

For steps of many kernels that compute in place. Each tensor stays where it is born; one is fast if
it fits the fastest tier over its whole life, next to those before it in the order.
"""

from __future__ import annotations

import numpy as np

from hmd.tensors.move_plan import ANY, WHOLE, MovePlan, free_moves, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import READ, WRITE, Bools, Floats


def dense_placement(problem: StepProblem) -> MovePlan:
    """Return the plan: places of birth, first fetches of persistent tensors, frees at death."""
    trace, life = problem.trace, problem.life
    fast = _fast_tensors(problem)
    moves = free_moves(life, problem.none)
    for tensor in range(trace.tensors):
        birth = int(life.birth[tensor])
        if birth >= 0 and not fast[tensor]:
            moves.append((birth, tensor, problem.none, 1, WHOLE))
        elif birth < 0 and fast[tensor]:
            moves.append((max(int(life.first[tensor]), 0), tensor, ANY, 0, WHOLE))
    return plan_of(moves)


def _fast_tensors(problem: StepProblem) -> Bools:
    """Return which tensors are fast, (T,)."""
    trace, life, system = problem.trace, problem.life, problem.system
    page = system.granularity_bytes
    size = -(-trace.tensor_bytes // page) * page
    start = np.where(life.birth >= 0, life.birth, 0)
    end = np.where(life.death >= 0, life.death, trace.kernels)
    begins = np.concatenate([[0.0], np.cumsum(trace.kernel_seconds)])
    cost = size * np.maximum(begins[end] - begins[start], 1e-9)
    density = _saved_seconds(problem) / np.maximum(cost, 1e-9)
    fast = np.zeros(trace.tensors, np.bool_)
    free = np.full(trace.kernels, system.tiers[0].capacity, np.int64)
    for tensor in np.argsort(-density, kind="stable").tolist():
        if density[tensor] <= 0:
            break
        inside = slice(int(start[tensor]), int(end[tensor]))
        if free[inside].min(initial=0 if inside.start >= inside.stop else free[0]) < size[tensor]:
            continue
        free[inside] -= size[tensor]
        fast[tensor] = True
    return fast


def _saved_seconds(problem: StepProblem) -> Floats:
    """Return what each tensor's kernels take less when it is in the fastest tier, (T,)."""
    trace = problem.trace
    near, far = problem.system.tiers[:2]
    seconds = np.full(len(trace.use_tensor), far.access_us / 1e6)
    used = trace.tensor_bytes[trace.use_tensor] / 1e9
    for bit, here, there in ((READ, near.read, far.read), (WRITE, near.write, far.write)):
        slower = 1 / (there or 1) - 1 / (here or 1)
        seconds += np.where(trace.use_mode & bit, used * slower, 0.0)
    return np.asarray(np.bincount(trace.use_tensor, seconds, trace.tensors), np.float64)
