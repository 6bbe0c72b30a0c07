# SPDX-License-Identifier: MIT
"""Scenarios of moves that the kernel refuses: to a full or offline node, or not permitted."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hmd.linux import page_calls
from hmd.linux.procfs import identify
from hmd.policy.plan import Plan
from tests.vm.programs.move_scenarios.command_line import command
from tests.vm.programs.move_scenarios.moves import mover, names, plan_of, raw
from tests.vm.programs.move_scenarios.target import MIB, PAGE, Target

CGROUP = Path("/sys/fs/cgroup")


def ones(start: int, length: int) -> None:
    ctypes.memset(start, 1, length)


@contextlib.contextmanager
def full_node(node: int, left: int) -> Iterator[None]:
    """Fill a node with memory that stays there, but for about ``left`` bytes.

    These are more than the kernel keeps for itself, or it would kill the process that fills.
    """
    length = max(PAGE, (free_bytes(node) - left) // PAGE * PAGE)
    # In huge pages, which fill a node with few faults.
    with Target(length, node=node, huge=True, put=ones):
        yield


def free_bytes(node: int) -> int:
    text = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    return int(re.search(r"MemFree:\s+(\d+)", text)[1]) << 10  # type: ignore[index]


def full() -> dict[str, Any]:
    with Target(96 * MIB, put=ones, stays_bound=False) as target, full_node(1, 80 * MIB):
        moves = mover()
        outcome = moves.apply(plan_of(target, 1))
        for _ in range(10):  # the kernel reclaims some room for each allocation, until it cannot
            code, out, err = command("--pid", target.pid, "--to", 1, "--range", target.range)
            if code:
                break
        back = moves.apply(plan_of(target, 0))
        return {
            "status": names(outcome.status),
            "calls": outcome.calls,
            "cli": [code, out, err],
            "back": names(back.status),
        }


def cpuset() -> dict[str, Any]:
    group = CGROUP / "hmd-test"
    (CGROUP / "cgroup.subtree_control").write_text("+cpuset")
    group.mkdir()
    (group / "cpuset.mems").write_text("0")
    with Target(16 * PAGE) as target:
        (group / "cgroup.procs").write_text(str(target.pid))
        found = {
            "raw": raw(target.pid, target.addresses[:2].tolist(), 1),
            "status": names(mover().apply(plan_of(target, 1)).status),
            "cli": command("--pid", target.pid, "--to", 1),
        }
    group.rmdir()
    return found


def offline() -> dict[str, Any]:
    with Target(16 * PAGE) as target:
        return {
            "raw": raw(target.pid, target.addresses[:2].tolist(), 7),
            "status": names(mover().apply(plan_of(target, 7)).status),
        }


def kernel_thread() -> dict[str, Any]:
    process = identify(2)
    assert process is not None
    plan = Plan(
        (process,), np.zeros(1, np.int32), np.array([PAGE], np.uint64), np.ones(1, np.uint32),
        np.zeros(1, np.int16), np.ones(1, np.int16), np.zeros(1, np.float32), np.zeros(1, np.int32),
    )  # fmt: skip
    return {"raw": raw(2, [PAGE], 1)["result"], "status": names(mover().apply(plan).status)}


def permission() -> dict[str, Any]:
    """An unprivileged mover, and one that may not move shared pages."""
    with Target(16 * PAGE) as target:
        read, write = os.pipe()
        plan = plan_of(target, 1)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = {
                "status": names(mover().apply(plan).status),
                "raw": raw(target.pid, plan.address[:2].tolist(), 1)["result"],
                "own_all": raw(os.getpid(), [PAGE], 1, page_calls.MoveFlags.MOVE_ALL)["result"],
            }
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        return json.loads(os.read(read, 4096))
