# SPDX-License-Identifier: MIT
"""Scenarios of pages that the kernel holds in place: pinned, or mapped by other processes."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable
from typing import Any

from hmd.migrate import MoveStatus
from tests.vm.programs.move_scenarios.moves import mover, names, names_of_nodes, plan_of, raw
from tests.vm.programs.move_scenarios.target import PAGE, Target, checked, digest, libc


def pin(start: int, *offsets: int) -> None:
    """Put pages into a pipe by reference (vmsplice(2)): the kernel cannot move them then."""
    vector = ctypes.c_uint64 * 2
    for offset in offsets:
        _, write = os.pipe()
        checked(libc.vmsplice(write, ctypes.byref(vector(start + offset, PAGE)), 1, 0))


def share_with_child(touch: Callable[[int], object], start: int) -> None:
    """Fork a child that touches the memory and then stays."""
    ready, write = os.pipe()
    if os.fork() == 0:
        touch(start)
        os.write(write, b"x")
        signal.pause()
    os.read(ready, 1)


def busy() -> dict[str, Any]:
    def prepare(start: int) -> None:
        pin(start, 0)

    with Target(64 * PAGE, prepare=prepare) as target:
        first = raw(target.pid, target.addresses[:3].tolist(), 1)
        after = target.nodes[:3].tolist()
        moves = mover()
        outcome = moves.apply(plan_of(target, 1), now_s=0.0)
        soon = moves.apply(plan_of(target, 1), now_s=1.0)
        return {
            "raw": first,
            "nodes": after,
            "status": names(outcome.status),
            "first": MoveStatus(outcome.status[0]).name,
            "soon": MoveStatus(soon.status[0]).name,
        }


def tail() -> dict[str, Any]:
    """A failed run before an absent page: the kernel does not come to what follows."""

    def prepare(start: int) -> None:
        pin(start, 0)
        checked(libc.madvise(start + 2 * PAGE, PAGE, mmap.MADV_DONTNEED))

    with Target(16 * PAGE, prepare=prepare) as target:
        answers = raw(target.pid, target.addresses[:5].tolist(), 1)
        after = target.nodes[:5].tolist()
        outcome = mover().apply(plan_of(target, 1))
        return {"raw": answers, "nodes": after, "status": names(outcome.status)}


def pinned_everywhere() -> dict[str, Any]:
    """Failed runs and pages that others share by turns: every call ends early."""

    def copy_most(start: int) -> None:
        for i in range(60):
            if i % 4 != 2:
                ctypes.c_char.from_address(start + i * PAGE).value = b"x"

    def prepare(start: int) -> None:
        pin(start, *(i * PAGE for i in range(0, 60, 4)))
        share_with_child(copy_most, start)

    with Target(60 * PAGE, prepare=prepare) as target:
        outcome = mover().apply(plan_of(target, 1))
        found = [MoveStatus(s).name for s in outcome.status]
        return {"status": [found[i::4] for i in range(4)], "calls": outcome.calls}


def shared() -> dict[str, Any]:
    def prepare(start: int) -> None:
        share_with_child(lambda start: digest(start, 32 * PAGE), start)

    with Target(32 * PAGE, shared=True, prepare=prepare) as target:
        before = target.digest
        answers = raw(target.pid, target.addresses[:2].tolist(), 1)
        kept = mover().apply(plan_of(target, 1))
        moved = mover(move_shared=True).apply(plan_of(target, 1))
        nodes, intact = names_of_nodes(target), target.digest == before
        return {
            "raw": answers,
            "without": names(kept.status),
            "with": names(moved.status),
            "nodes": nodes,
            "intact": intact,
        }
