"""Plans: the moves of a step, and their JSON.

A move belongs to a kernel and acts when the kernel begins, on the pages of one tensor that are at
rest. JSON: ``{"moves": [[kernel, tensor, from, to], ...]}`` with the names of tiers, ``none`` for
"not allocated" and ``any`` for "wherever it is"; a fifth element limits the move to so many bytes.
``"recompute": [[kernel, tensor], ...]`` runs the tensor's producer again before a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from hmd.errors import HmdError
from hmd.json_text import parse_json
from hmd.numpy_archive import reason_of
from hmd.tensors.tensor_trace import Ints

ANY: Final = -1
"""``source`` of a move that takes pages from wherever they are."""

WHOLE: Final = 1 << 60
"""``size`` of a move of all pages of a tensor."""


class MovePlanError(HmdError):
    """A plan loses data, overfills a tier or names what does not exist."""


@dataclass(frozen=True)
class MovePlan:
    """M moves in the order in which they act; tier numbers, the number of tiers is ``none``.

    ``synchronous``: a kernel waits until the moves that begin with it are done. ``recompute`` has
    kernels and tensors of the traced step; moves number those of the step with recomputations
    (:mod:`hmd.tensors.recomputation`). A plan of an integer program has ``objective_seconds``, the
    program's own price of the step, and ``gap``, by how much of it a better solution could be
    cheaper.
    """

    kernel: Ints
    tensor: Ints
    source: Ints
    target: Ints
    size: Ints
    synchronous: bool = field(default=False)
    recompute: tuple[tuple[int, int], ...] = field(default=())
    objective_seconds: float | None = field(default=None)
    gap: float | None = field(default=None)

    def __len__(self) -> int:
        return len(self.kernel)


Move = tuple[int, int, int, int, int]
"""Kernel, tensor, source, target, bytes."""


def plan_of(moves: Iterable[Move], *, synchronous: bool = False) -> MovePlan:
    """Return the plan of some moves, ordered by kernel; moves of one kernel keep their order."""
    rows = np.array(sorted(moves, key=lambda move: move[0]), np.int64).reshape(-1, 5)
    kernel, tensor, source, target, size = rows.T.copy()
    return MovePlan(kernel, tensor, source, target, size, synchronous)


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
    document: dict[str, Any] = {"moves": moves}
    if plan.recompute:
        document["recompute"] = [list(each) for each in plan.recompute]
    return document


def read_plan(path: Path, names: tuple[str, ...]) -> MovePlan:
    """Return the plan in a JSON file; raises MovePlanError for one that is not of the format."""
    try:
        document = parse_json(path.read_text())
        rows = document["moves"]
        recompute = document.get("recompute", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MovePlanError(f"{path}: no plan: {reason_of(error)}") from None
    for key, value in (("moves", rows), ("recompute", recompute)):
        if not isinstance(value, list):
            raise MovePlanError(f"{path}: no plan: {key} is a list")
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
    for at, row in enumerate(recompute):
        numbered = isinstance(row, list) and [type(value) for value in row] == [int, int]
        if not numbered or not all(abs(value) <= WHOLE for value in row):
            raise MovePlanError(f"{path}: recompute {at}: write [kernel, tensor]")
    return replace(plan_of(moves), recompute=tuple((row[0], row[1]) for row in recompute))
