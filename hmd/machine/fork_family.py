"""Processes that one program's forks made: what they have in common until they execute another.

A fork has the addresses of its parent; execve(2) chooses new ones at random. So processes of one
user whose code, heap and stack begin at the same addresses are forks of one process, whether that
still runs or not. Where addresses are not random (personality(2), kernel.randomize_va_space) they
say nothing. Costs about 50 µs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from hmd.machine.process_id import PROC, ProcessId
from hmd.machine.procfs import read_bytes

_STAT_BYTES: Final = 1024
_STATUS_BYTES: Final = 1024
_UIDS: Final = re.compile(rb"^Uid:\s+(\d+)\s", re.MULTILINE)
_START_TIME, _CODE, _STACK, _HEAP = 19, 23, 25, 44
"""Fields 22, 26, 28 and 47 of /proc/PID/stat (proc_pid_stat(5)), counted from the state."""

_ADDRESS_BITS: Final = (39, 42, 47, 48, 52, 56)
"""Where user addresses end, by architecture and number of levels of page tables."""
_FIXED_STACK_BYTES: Final = 8 << 20
"""A stack so near to the end of all addresses is not at a random one: of random ones of x86, one
in 2,000 is."""


def fork_family(process: ProcessId, proc: Path = PROC) -> str:
    """Return what all forks of a program have in common, and no other process.

    Empty where that is not known: the process has exited, may not be inspected, or has addresses
    that are not random.
    """
    data = read_bytes(f"{proc}/{process.pid}/stat", _STAT_BYTES) or b""
    status = read_bytes(f"{proc}/{process.pid}/status", _STATUS_BYTES) or b""
    uid = _UIDS.search(status)
    fields = data[data.rfind(b")") + 1 :].split()
    try:
        start_ticks = int(fields[_START_TIME])
        code, stack, heap = (int(fields[at]) for at in (_CODE, _STACK, _HEAP))
    except (IndexError, ValueError):
        return ""
    fixed = any(0 < (1 << bits) - stack < _FIXED_STACK_BYTES for bits in _ADDRESS_BITS)
    if uid is None or start_ticks != process.start_ticks or not stack or fixed:
        return ""
    return f"{int(uid[1])}:{code:x}:{stack:x}:{heap:x}"
