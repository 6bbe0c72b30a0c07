"""The status of each planned move, and the translation of the kernel's answers to it.

The only module of this room that interprets errno values.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt


class MoveStatus(IntEnum):
    """The result of one row of a plan; every row has exactly one."""

    PENDING = 0
    """Not decided yet; never in an outcome."""
    MOVED = 1
    ALREADY_THERE = 2
    """On its target node before the plan was applied."""
    WOULD_MOVE = 3
    """A dry run: hmd would have tried to move it."""
    DEFERRED = 4
    """The budget of bytes or of time was spent first."""
    BLACKLISTED = 5
    """Failed recently; not tried until its backoff ends."""
    SKIPPED = 6
    """The page filter keeps it where it is (shared executable code)."""
    DUPLICATE = 7
    """Another row of the plan names the same page, or the huge page that it is part of."""
    NOT_PRESENT = 8
    """Not mapped, swapped out, or never accessed (ENOENT)."""
    BUSY = 9
    """Pinned or isolated (EBUSY), or the kernel stopped retrying."""
    NO_MEMORY = 10
    """The target node is full (ENOMEM)."""
    SHARED = 11
    """Mapped by several processes, without MOVE_ALL (EACCES on a page)."""
    UNMOVABLE = 12
    """The zero page, an unmapped address or a mapping that cannot migrate (EFAULT)."""
    GONE = 13
    """The process has exited (ESRCH), or its pid belongs to another process now."""
    INVALID = 14
    """A kernel thread, or flags that the kernel does not know (EINVAL)."""
    CPUSET = 15
    """The process's cpuset lacks the target node (EACCES on a call)."""
    OFFLINE = 16
    """The target node has no memory (ENODEV)."""
    PERMISSION = 17
    """CAP_SYS_PTRACE is missing, or CAP_SYS_NICE for MOVE_ALL (EPERM)."""
    NO_HUGE_PAGE = 18
    """A hugetlbfs page of 1 GiB, and no free one in the target node's pool (ENOMEM)."""
    OTHER = 19
    """Any other errno."""


FAILURES: Final = frozenset(status for status in MoveStatus if status >= MoveStatus.NOT_PRESENT)
"""The page is not on its target although the move was tried, or would have been."""

PUNISHED: Final = (
    MoveStatus.BUSY,
    MoveStatus.SHARED,
    MoveStatus.UNMOVABLE,
    MoveStatus.NO_HUGE_PAGE,
)
"""Failures of the page itself, likely to repeat soon: such pages get a retry backoff."""

STUCK: Final = (*PUNISHED, MoveStatus.SKIPPED, MoveStatus.BLACKLISTED)
"""Statuses of pages that policies leave where they are until the next sweep."""

PROCESS_WIDE: Final = frozenset({MoveStatus.GONE, MoveStatus.INVALID, MoveStatus.PERMISSION})
"""Errors that hold for all pages of the process."""

NODE_WIDE: Final = frozenset({MoveStatus.CPUSET, MoveStatus.OFFLINE, MoveStatus.NO_MEMORY})
"""Errors that hold for all pages of the process that go to the same node."""

_BY_PAGE_ERRNO: Final = {
    errno.ENOENT: MoveStatus.NOT_PRESENT,
    errno.EFAULT: MoveStatus.UNMOVABLE,
    errno.EACCES: MoveStatus.SHARED,
    errno.EBUSY: MoveStatus.BUSY,
    # EAGAIN and EIO: writeback, or a filesystem failed to migrate the page. A retry may work.
    errno.EAGAIN: MoveStatus.BUSY,
    errno.EIO: MoveStatus.BUSY,
    errno.ENOMEM: MoveStatus.NO_MEMORY,
    errno.ESRCH: MoveStatus.GONE,
    errno.EINVAL: MoveStatus.INVALID,
    errno.EPERM: MoveStatus.PERMISSION,
}
_BY_CALL_ERRNO: Final = {
    **_BY_PAGE_ERRNO,
    errno.EACCES: MoveStatus.CPUSET,
    errno.ENODEV: MoveStatus.OFFLINE,
    errno.EFAULT: MoveStatus.OTHER,
}


def of_call(result: int) -> MoveStatus:
    """Return the status that the -errno of a whole call means."""
    return _BY_CALL_ERRNO.get(-result, MoveStatus.OTHER)


def of_pages(
    answers: npt.NDArray[np.int16] | npt.NDArray[np.int32], target: npt.NDArray[np.int16] | int
) -> npt.NDArray[np.int16]:
    """Return the status of single pages by their answers, a node or -errno each.

    A page on its target is ALREADY_THERE, one on another node PENDING; shape ``(n,)``.
    """
    status = np.full(len(answers), MoveStatus.PENDING, np.int16)
    status[answers == target] = MoveStatus.ALREADY_THERE
    negative = answers < 0
    if negative.any():
        status[negative] = MoveStatus.OTHER
        for number, meaning in _BY_PAGE_ERRNO.items():
            status[answers == -number] = meaning
    return status
