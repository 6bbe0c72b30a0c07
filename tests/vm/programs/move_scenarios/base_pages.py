# SPDX-License-Identifier: MIT
"""Scenarios of base pages: to the other node and back, a dry run, absent pages, code."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from hmd.linux import page_calls
from hmd.linux.mappings import read_mappings
from hmd.migrate import MoveStatus
from tests.vm.programs.move_scenarios.moves import mover, names, names_of_nodes, plan_of, raw
from tests.vm.programs.move_scenarios.target import MIB, PAGE, Target, checked, libc


def there_and_back() -> dict[str, Any]:
    with Target(8 * MIB) as target:
        before, moves = target.digest, mover()
        found: dict[str, Any] = {"before": names_of_nodes(target)}
        calls = 0
        for round_, node in enumerate((1, 0, 1)):
            outcome = moves.apply(plan_of(target, node))
            found[f"round{round_}"] = {
                "status": names(outcome.status),
                "moved": list(map(list, outcome.moved.items())),
                "nodes": names_of_nodes(target),
                "intact": target.digest == before,
            }
            calls += outcome.calls
        found["again"] = names(moves.apply(plan_of(target, 1)).status)
        found["calls"] = calls
        return found


def dry_run() -> dict[str, Any]:
    with Target(1 * MIB) as target:
        outcome = mover(dry_run=True).apply(plan_of(target, 1))
        return {"status": names(outcome.status), "nodes": names_of_nodes(target)}


def punch(start: int) -> None:
    """Page 1 is given back and read (the zero page), page 2 given back, page 3 unmapped."""
    checked(libc.madvise(start + PAGE, 3 * PAGE, mmap.MADV_DONTNEED))
    ctypes.c_char.from_address(start + PAGE).value  # noqa: B018
    checked(libc.munmap(ctypes.c_void_p(start + 3 * PAGE), PAGE))


def absent() -> dict[str, Any]:
    with Target(16 * PAGE, prepare=punch) as target:
        chosen = target.addresses[:5]
        answers = raw(target.pid, chosen.tolist(), 1)
        outcome = mover().apply(plan_of(target, 1, chosen))
        return {"raw": answers, "status": [MoveStatus(s).name for s in outcome.status]}


def code() -> dict[str, Any]:
    with Target(16 * PAGE) as target:
        mappings = read_mappings(target.pid)
        assert mappings is not None
        row = int(np.flatnonzero(mappings.executable_file)[0])
        rows = np.arange(mappings.start[row], mappings.end[row], PAGE, dtype=np.uint64)
        before = page_calls.query_nodes(target.pid, rows)
        outcome = mover(move_shared=True).apply(plan_of(target, 1, rows))
        after = page_calls.query_nodes(target.pid, rows)
        return {"status": names(outcome.status), "stayed": (before == after).all().item()}
