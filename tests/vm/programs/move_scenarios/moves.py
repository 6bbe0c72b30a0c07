# SPDX-License-Identifier: MIT
"""Moves of a target's pages, by the mover and by move_pages(2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmd.linux import page_calls
from hmd.migrate import Mover, MoverSettings, MoveStatus
from hmd.policy.plan import Plan
from tests.vm.programs.move_scenarios.target import Target


def plan_of(target: Target, node: int, addresses: Sequence[int] | np.ndarray | None = None,
            size: int = 1) -> Plan:  # fmt: skip
    chosen = target.addresses if addresses is None else np.asarray(addresses, np.uint64)
    count = len(chosen)
    return Plan(
        processes=(target.process,),
        process=np.zeros(count, np.int32),
        address=chosen,
        pages=np.full(count, size, np.uint32),
        from_node=np.full(count, 1 - node, np.int16),
        to_node=np.full(count, node, np.int16),
        heat=np.zeros(count, np.float32),
        phase=np.zeros(count, np.int32),
    )


def mover(**settings: Any) -> Mover:
    return Mover(MoverSettings(rate_bytes_per_s=None, **settings))


def names(status: np.ndarray) -> dict[str, int]:
    codes, counts = np.unique(status, return_counts=True)
    return {MoveStatus(c).name: n for c, n in zip(codes.tolist(), counts.tolist(), strict=True)}


def names_of_nodes(target: Target) -> dict[str, int]:
    codes, counts = np.unique(target.nodes, return_counts=True)
    return {str(c): n for c, n in zip(codes.tolist(), counts.tolist(), strict=True)}


def raw(pid: int, addresses: Sequence[int], node: int,
        flags: page_calls.MoveFlags = page_calls.MoveFlags.MOVE) -> dict[str, Any]:  # fmt: skip
    column = np.array(addresses, np.uint64)
    result, status = page_calls.move_pages(pid, column, np.full(len(column), node, np.int32), flags)
    answers = [None if s == page_calls.UNTOUCHED else s for s in status.tolist()]
    return {"result": result, "status": answers}
