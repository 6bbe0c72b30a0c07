# SPDX-License-Identifier: MIT
"""Memory policies that the kernel of this host shows: one node is enough to bind to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hmd.linux.memory_policy import MemoryBindings
from hmd.linux.procfs import ProcessId, identify
from hmd.migrate import Mover, MoveStatus
from hmd.residency.memory_reader import MemoryReader
from tests.fakes.move_pages_kernel import PAGE, make_plan

CHECKOUT = Path(__file__).parents[3]
BINDS = """
from tests.vm.programs.move_scenarios.target import bind, fill, reserve
start = reserve(1 << 20)
bound = start + (1 << 19)
bind(bound, 1 << 19, 0)
fill(start, 1 << 20)
print(start, bound, flush=True)
input()
"""


@contextmanager
def child(*prefix: str) -> Iterator[tuple[ProcessId, int, int]]:
    """A process, its memory without a policy of its own, and the memory after it that is bound."""
    words = [*prefix, sys.executable, "-c", BINDS]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=CHECKOUT, stdin=pipe, stdout=pipe) as program:
        assert program.stdout is not None
        start, bound = map(int, program.stdout.readline().split())
        process = identify(program.pid)
        assert process is not None
        yield process, start, bound
        program.kill()


def unmovable(process: ProcessId, address: int) -> bool:
    for piece in MemoryReader().pieces(process):
        row = (piece.start <= address) & (piece.end > address)
        if row.any():
            return not piece.movable[row].all()
    raise AssertionError("not mapped")


def test_mapping_bound_by_mbind_stays() -> None:
    with child() as (process, start, bound):
        assert not unmovable(process, start)
        assert unmovable(process, bound)
        plan = make_plan([process], [(0, start, 1, 0, 99), (0, bound, 1, 0, 99)])
        outcome = Mover(bindings=MemoryBindings()).apply(plan)
    assert outcome.status.tolist() == [MoveStatus.OFFLINE, MoveStatus.BOUND]


def test_process_bound_by_set_mempolicy_stays() -> None:
    with child("numactl", "--membind=0") as (process, start, bound):
        assert unmovable(process, start)
        assert unmovable(process, bound)
        bindings = MemoryBindings().of(process)
        assert bindings.process_nodes == (0,)
        assert bindings.permits(np.array([start, PAGE], np.uint64), np.zeros(2, np.int16)).all()


def test_process_with_preferred_node_may_move() -> None:
    with child("numactl", "--preferred=0") as (process, start, bound):
        assert not unmovable(process, start)
        assert unmovable(process, bound)
