"""Processes that share an address space: kcmp(2) with KCMP_VM.

Children of clone(2) with CLONE_VM and without CLONE_THREAD do, and those of vfork(2) until they
execute a program. The kernel answers by an order of its own, so that of many processes those with
one address space are found by bisection. Costs about 1 µs. Needs CAP_SYS_PTRACE for processes of
other users, and a kernel with CONFIG_KCMP.
"""

from __future__ import annotations

from pathlib import Path

from hmd._native import lib
from hmd.machine.process_id import PROC, ProcessId, alive

_EQUAL, _LESS = 0, 1


def compare_spaces(first: ProcessId, second: ProcessId, proc: Path = PROC) -> int | None:
    """Return below 0, 0 or above 0 as the address space of one orders before that of the other.

    0 is the same address space. None where the kernel does not answer: a process has exited, access
    is not permitted, or there is no kcmp(2).
    """
    answer = int(lib.hmd_compare_spaces(first.pid, second.pid))
    if answer == _EQUAL:
        return 0 if alive(first, proc) and alive(second, proc) else None
    return None if answer < 0 else -1 if answer == _LESS else 1
