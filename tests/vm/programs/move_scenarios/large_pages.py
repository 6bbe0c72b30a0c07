# SPDX-License-Identifier: MIT
"""Scenarios of huge pages, huge pages that were split, and folios of 64 KiB."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from hmd.linux import page_calls
from hmd.linux.huge_pages import huge_pages_in
from tests.vm.programs.move_scenarios.moves import mover, names, names_of_nodes, plan_of, raw
from tests.vm.programs.move_scenarios.target import BLOCK, MIB, PAGE, Target


def huge_pages() -> dict[str, Any]:
    with Target(4 * BLOCK, huge=True) as target:
        before = target.digest
        blocks = target.addresses[:: BLOCK // PAGE]
        found: dict[str, Any] = {"huge_before": huge_in(target)}
        found["raw"] = raw(target.pid, [int(blocks[0]), int(blocks[0]) + PAGE], 1)
        found["along"] = (
            page_calls.query_nodes(target.pid, target.addresses[:512]).tolist() == [1] * 512
        )
        outcome = mover().apply(plan_of(target, 1, blocks[1:], size=512))
        found["status"] = names(outcome.status)
        found["moved_pages"] = int(outcome.moved_pages.sum())
        found["nodes"] = names_of_nodes(target)
        found["huge_after"] = huge_in(target)
        small = mover().apply(plan_of(target, 0, target.addresses[:512]))
        found["by_small_rows"] = names(small.status)
        found["intact"] = target.digest == before
        return found


def huge_in(target: Target) -> int:
    end = target.start + target.length
    huge = huge_pages_in(target.pid, [(target.start, end)])
    return int(((huge >= target.start) & (huge < end)).sum())


def split_all(target: Target) -> int:
    """Have the kernel split a target's huge pages; returns how many are left.

    It passes over those that are locked or referenced at that moment, as by khugepaged.
    """
    for _ in range(20):
        Path("/sys/kernel/debug/split_huge_pages").write_text(
            f"{target.pid},{target.start:#x},{target.start + target.length:#x}"
        )
        left = huge_in(target)
        if not left:
            break
        time.sleep(0.1)
    return left


def split_huge_page() -> dict[str, Any]:
    with Target(2 * BLOCK, huge=True) as target:
        before, blocks = target.digest, target.addresses[::512]
        left = split_all(target)
        moves = mover()
        outcome = moves.apply(plan_of(target, 1, blocks, size=512))
        return {
            "huge": left,
            "status": names(outcome.status),
            "moved_pages": outcome.moved_pages.tolist(),
            "calls": outcome.calls,
            "nodes": names_of_nodes(target),
            "intact": target.digest == before,
        }


def large_folios() -> dict[str, Any]:
    """Folios of 64 KiB: all but the first address of each is EBUSY, and moves along."""
    control = Path("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled")
    before = re.search(r"\[(\w+)\]", control.read_text())[1]  # type: ignore[index]
    control.write_text("always")
    try:
        # Huge pages go first where they may; half a huge page has no room for one.
        with Target(MIB, huge=True) as target:
            first = raw(target.pid, target.addresses[:2].tolist(), 1)
            outcome = mover().apply(plan_of(target, 1))
            return {
                "raw": first,
                "status": names(outcome.status),
                "nodes": names_of_nodes(target),
            }
    finally:
        control.write_text(before)
