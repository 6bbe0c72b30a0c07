"""Checks of a plan before it is priced: that it names what exists, loses no data, fits the tiers.

Times do not matter here. What comes in pushes out other pages where the fastest tier is full, so
that tier is checked for what one kernel needs at once; a lower tier must have room for the
evictions that the plan sends there.
"""

from __future__ import annotations

import numpy as np

from hmd.tensors.memory_system import MemorySystem
from hmd.tensors.move_plan import ANY, MovePlan, MovePlanError
from hmd.tensors.pricing_rules import PricingRules
from hmd.tensors.tensor_trace import READ, TensorTrace
from hmd.tensors.vitality import Vitality


def check_plan(
    trace: TensorTrace,
    life: Vitality,
    system: MemorySystem,
    rules: PricingRules,
    plan: MovePlan,
) -> None:
    """Raise MovePlanError, with kernel and tensor, for a plan that cannot be carried out."""
    tiers = len(system.tiers)
    for column, values, least, most in (
        ("kernel", plan.kernel, 0, trace.kernels - 1),
        ("tensor", plan.tensor, 0, trace.tensors - 1),
        ("source", plan.source, ANY, tiers),
        ("target", plan.target, 0, tiers),
    ):
        wrong = np.flatnonzero((values < least) | (values > most))
        if len(wrong):
            raise MovePlanError(
                f"{trace.name}: {_place(plan, int(wrong[0]))}: no {column} {values[wrong[0]]}"
            )
    wrong = np.flatnonzero(plan.size <= 0)
    if len(wrong):
        raise MovePlanError(f"{trace.name}: {_place(plan, int(wrong[0]))}: no bytes")
    if (np.diff(plan.kernel) < 0).any():
        raise MovePlanError(f"{trace.name}: the moves are not ordered by kernel")
    if not system.in_place:
        _check_working_set(trace, life, system)
    if not rules.allows_loss:
        _check_frees(trace, plan, tiers)
    _check_lower_tiers(trace, life, system, plan)


def _place(plan: MovePlan, move: int) -> str:
    return f"kernel {plan.kernel[move]}, tensor {plan.tensor[move]}"


def _check_working_set(trace: TensorTrace, life: Vitality, system: MemorySystem) -> None:
    kernel = int(np.argmax(life.working_bytes))
    needed, room = int(life.working_bytes[kernel]), system.tiers[0].capacity
    if needed > room:
        tensor = max(trace.uses(kernel).tolist(), key=lambda each: int(trace.tensor_bytes[each]))
        raise MovePlanError(
            f"{trace.name}: kernel {kernel}, tensor {tensor}: the kernel uses {needed} bytes at"
            f" once, and {system.tiers[0].name} has {room}"
        )


def _check_frees(trace: TensorTrace, plan: MovePlan, none: int) -> None:
    """Raise for a free whose tensor is read before it is written again."""
    frees = np.flatnonzero(plan.target == none)
    if not len(frees):
        return
    order = np.lexsort((trace.use_kernel, trace.use_tensor))
    key = trace.use_tensor[order] * trace.kernels + trace.use_kernel[order]
    mode = trace.use_mode[order]
    for move in frees.tolist():
        tensor, kernel = int(plan.tensor[move]), int(plan.kernel[move])
        at = int(np.searchsorted(key, tensor * trace.kernels + kernel))
        used_later = at < len(key) and int(key[at]) // trace.kernels == tensor
        persists = bool(trace.tensor_persistent[tensor])
        if (used_later and mode[at] & READ) or (persists and not used_later):
            raise MovePlanError(
                f"{trace.name}: {_place(plan, move)}: freed, and read later: its data is lost"
            )


def _check_lower_tiers(
    trace: TensorTrace, life: Vitality, system: MemorySystem, plan: MovePlan
) -> None:
    """Raise where evictions put more bytes into a tier than it has, by the plan's own account."""
    tiers = len(system.tiers)
    held = np.zeros((tiers, trace.tensors), np.int64)
    held[tiers - 1, trace.tensor_persistent] = trace.tensor_bytes[trace.tensor_persistent]
    used = held.sum(axis=1)
    deaths: dict[int, list[int]] = {}
    for tensor, death in enumerate(life.death.tolist()):
        deaths.setdefault(death, []).append(tensor)
    last = 0
    columns = (plan.kernel, plan.tensor, plan.target, plan.size)
    for move, (kernel, tensor, target, size) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        for passed in range(last, kernel + 1):
            for dead in deaths.get(passed, ()):
                used -= held[:, dead]
                held[:, dead] = 0
        last = kernel + 1
        part = min(size, int(trace.tensor_bytes[tensor]))
        if target in (0, tiers):
            part = part if target == 0 else 1 << 60
            for tier in range(1, tiers):
                taken = min(part, int(held[tier, tensor]))
                held[tier, tensor] -= taken
                used[tier] -= taken
                part -= taken
            continue
        part = min(part, int(trace.tensor_bytes[tensor] - held[1:, tensor].sum()))
        held[target, tensor] += part
        used[target] += part
        if used[target] > system.tiers[target].capacity:
            raise MovePlanError(
                f"{trace.name}: {_place(plan, move)}: {system.names[target]} is overfilled"
            )
