# SPDX-License-Identifier: MIT
"""Plans: the moves of a step, their JSON (docs: plans), their checks, and what they make fast.

A move belongs to a kernel and acts when the kernel begins, on the pages of one tensor that are at
rest. A plan is checked before it is priced: that it names what exists, loses no data, fits the
tiers. Times do not matter for that. What comes in pushes out other pages where the fastest tier is
full, so that tier is checked for what one kernel needs at once; a lower tier must have room for the
evictions that the plan sends there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from hmd.base.errors import HmdError
from hmd.base.untrusted_files import parse_json, reason_of
from hmd.tensors.lifetimes import Vitality
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.trace import READ, WRITE, Ints, TensorTrace

ANY: Final = -1
"""``source`` of a move that takes pages from wherever they are."""

WHOLE: Final = 1 << 60
"""``size`` of a move of all pages of a tensor."""


class MovePlanError(HmdError):
    """A plan loses data, overfills a tier or names what does not exist."""


@dataclass(frozen=True)
class MovePlan:
    """M moves in the order in which they act; tier numbers, the number of tiers is ``none``."""

    kernel: Ints
    tensor: Ints
    source: Ints
    target: Ints
    size: Ints

    def __len__(self) -> int:
        return len(self.kernel)


Move = tuple[int, int, int, int, int]
"""Kernel, tensor, source, target, bytes."""


def plan_of(moves: Iterable[Move]) -> MovePlan:
    """Return the plan of some moves, ordered by kernel; moves of one kernel keep their order."""
    rows = np.array(sorted(moves, key=lambda move: move[0]), np.int64).reshape(-1, 5)
    kernel, tensor, source, target, size = rows.T.copy()
    return MovePlan(kernel, tensor, source, target, size)


def free_moves(life: Vitality, none: int) -> list[Move]:
    """Return the moves that free each tensor that dies before the last kernel ends."""
    kernels = len(life.live_bytes)
    return [
        (death, tensor, ANY, none, WHOLE)
        for tensor, death in enumerate(life.death.tolist())
        if 0 <= death < kernels
    ]


def plan_document(plan: MovePlan, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON form of a plan; ``names`` are those of the tiers."""
    tiers = [*names, "none", "any"]
    moves = []
    for kernel, tensor, source, target, size in zip(
        plan.kernel.tolist(),
        plan.tensor.tolist(),
        plan.source.tolist(),
        plan.target.tolist(),
        plan.size.tolist(),
        strict=True,
    ):
        row: list[Any] = [kernel, tensor, tiers[source], tiers[target]]
        moves.append(row if size >= WHOLE else [*row, size])
    return {"moves": moves}


def read_plan(path: Path, names: tuple[str, ...]) -> MovePlan:
    """Return the plan in a JSON file; raises MovePlanError for one that is not of the format."""
    try:
        document = parse_json(path.read_text())
        rows = document["moves"]
        recomputes = bool(document.get("recompute"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MovePlanError(f"{path}: no plan: {reason_of(error)}") from None
    if not isinstance(rows, list):
        raise MovePlanError(f"{path}: no plan: moves is a list")
    if recomputes:
        raise MovePlanError(f"{path}: plans that recompute tensors are not read")
    numbers = {name: number for number, name in enumerate([*names, "none"])} | {"any": ANY}
    moves: list[Move] = []
    for at, row in enumerate(rows):
        if not isinstance(row, list) or len(row) not in (4, 5):
            raise MovePlanError(f"{path}: move {at}: write [kernel, tensor, from, to(, bytes)]")
        for name in row[2:4]:
            if not isinstance(name, str) or name not in numbers:
                raise MovePlanError(f"{path}: move {at}: no tier {name!r}")
        whole = [row[0], row[1], *row[4:]]
        if not all(type(value) is int and abs(value) <= WHOLE for value in whole):
            raise MovePlanError(f"{path}: move {at}: kernel, tensor and bytes are whole numbers")
        size = row[4] if len(row) == 5 else WHOLE
        moves.append((row[0], row[1], numbers[row[2]], numbers[row[3]], size))
    return plan_of(moves)


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


@dataclass(slots=True)
class UseRun:
    """Uses of a tensor between two moves: ``fast_bytes`` of it are in the fastest tier.

    ``uses`` has the kernel of each, and how often it passes over the tensor: once to read, once to
    write.
    """

    tensor: int
    fast_bytes: int
    uses: list[tuple[int, int]] = field(default_factory=list)


def use_runs(trace: TensorTrace, plan: MovePlan) -> list[UseRun]:
    """Return the runs of the second of two steps, by their first kernel.

    For memory systems that kernels compute in place from. A tensor that is allocated in the step
    begins in the fastest tier, one that persists where the plan left it in the step before.
    """
    size = trace.tensor_bytes
    fast = np.where(trace.tensor_persistent, 0, size)
    start = np.searchsorted(plan.kernel, np.arange(trace.kernels + 1))
    runs: list[UseRun] = []
    for _ in range(2):
        fast[~trace.tensor_persistent] = size[~trace.tensor_persistent]
        runs, current = [], dict[int, UseRun]()
        for kernel in range(trace.kernels):
            for move in range(start[kernel], start[kernel + 1]):
                tensor = int(plan.tensor[move])
                moved = plan.size[move] if plan.target[move] == 0 else -plan.size[move]
                fast[tensor] = np.clip(fast[tensor] + moved, 0, size[tensor])
                current.pop(tensor, None)
            rows = slice(trace.use_start[kernel], trace.use_start[kernel + 1])
            for tensor, mode in zip(
                trace.use_tensor[rows].tolist(), trace.use_mode[rows].tolist(), strict=True
            ):
                run = current.get(tensor)
                if run is None:
                    run = current[tensor] = UseRun(tensor, int(fast[tensor]))
                    runs.append(run)
                run.uses.append((kernel, (mode & READ > 0) + (mode & WRITE > 0)))
    return runs
