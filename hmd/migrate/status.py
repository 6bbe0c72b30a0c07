# SPDX-License-Identifier: MIT
"""The status of each planned move, the outcome of a plan, and totals of several outcomes.

What the kernel's errno values mean for pages and processes.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES


class Advice(NamedTuple):
    """Words for a user about pages that did not move.

    ``left`` says in ``hmd drain`` why they are left on the node; ``todo`` in ``hmd migrate``, of
    process ``{pid}`` and target ``{node}``, what to do.
    """

    left: str
    todo: str = "the kernel refused; see 'dmesg'"


class MoveStatus(IntEnum):
    """The result of one row of a plan; every row has exactly one.

    ``word`` says in tables what happened to pages, ``meaning`` why. The reference of the metrics
    and the dashboard have both from here (``python packaging/pages/metrics_reference.py``).
    """

    word: str
    meaning: str

    def __new__(cls, code: int, word: str = "", meaning: str = "") -> Self:
        """Make a status."""
        status = int.__new__(cls, code)
        status._value_, status.word, status.meaning = code, word, meaning
        return status

    PENDING = 0, "not tried", "the migrate stage failed; the daemon's log says why"
    MOVED = 1, "moved", "on the target node"
    ALREADY_THERE = 2, "were there already", "on the target node before the plan was applied"
    WOULD_MOVE = 3, "would move", "a dry run: the move would have been tried"
    DEFERRED = 4, "deferred", "the budget of bytes or time was spent before their turn"
    IN_BACKOFF = 5, "wait", "they failed not long ago and are tried again after a delay"
    SKIPPED = 6, "kept", "in a mapping that hmd does not move (shared code, `keep`)"
    DUPLICATE = 7, "named twice", "another row of the plan has the page, or its huge page"
    NOT_PRESENT = 8, "not there", "not mapped, swapped out, or never touched (ENOENT)"
    BUSY = 9, "busy", "pinned or isolated (EBUSY), or the kernel gave up after retries"
    NO_MEMORY = 10, "no room", "the target node is full (ENOMEM): more headroom helps"
    SHARED = 11, "shared", "mapped by several processes, and `migrate: move_all` is off (EACCES)"
    UNMOVABLE = 12, "unmovable", "the zero page, or a mapping that cannot migrate (EFAULT)"
    GONE = 13, "process gone", "the process has exited (ESRCH), or another one has its pid"
    INVALID = 14, "invalid", "a kernel thread, or flags that the kernel rejects (EINVAL)"
    CPUSET = 15, "cpuset", "the process's cpuset lacks the target node (EACCES of a call)"
    OFFLINE = 16, "offline", "the target node has no memory (ENODEV)"
    PERMISSION = (
        17,
        "not permitted",
        "CAP_SYS_PTRACE is missing, or CAP_SYS_NICE for `move_all` (EPERM)",
    )
    NO_HUGE_PAGE = (
        18,
        "no huge page",
        "a hugetlbfs page of 1 GiB, and the target node's pool has none free (ENOMEM)",
    )
    OTHER = 19, "other", "an error that hmd does not know"
    BOUND = 20, "bound", "a memory policy (MPOL_BIND) binds the pages to other nodes"

    @property
    def label(self) -> str:
        """The name in metrics, reports and files."""
        return self.name.lower()


ADVICE: Final[Mapping[MoveStatus, Advice]] = {
    MoveStatus.WOULD_MOVE: Advice("a dry run moves nothing (migrate.dry_run)"),
    MoveStatus.NOT_PRESENT: Advice("not there", "the process freed its pages meanwhile; try again"),
    MoveStatus.BUSY: Advice(
        "held by the kernel or a device (direct I/O, RDMA, virtual machines)",
        "a device or the kernel uses the pages; try again later",
    ),
    MoveStatus.NO_MEMORY: Advice(
        "no other node had room for them",
        "it is full; free memory there ('hmd topology' shows it) or move less with --limit",
    ),
    MoveStatus.SHARED: Advice(
        "mapped by several processes",
        "these pages are mapped more than once, by other processes or by this one; --shared moves"
        " them",
    ),
    MoveStatus.UNMOVABLE: Advice(
        "in mappings that the kernel cannot move",
        "these pages cannot be moved (the zero page, devices)",
    ),
    MoveStatus.GONE: Advice("process gone", "process {pid} has exited"),
    MoveStatus.CPUSET: Advice(
        "of processes whose cpuset has no other node",
        "the cpuset of process {pid} excludes this node; add {node} to cpuset.mems of its cgroup",
    ),
    MoveStatus.OFFLINE: Advice(
        "the other nodes have no memory",
        "it has no memory now; bring it online or choose another",
    ),
    MoveStatus.PERMISSION: Advice(
        "of processes that the daemon may not access (CAP_SYS_PTRACE, CAP_SYS_NICE, or a seccomp"
        " profile without move_pages)"
    ),
    MoveStatus.BOUND: Advice(
        "bound to the node by a memory policy (numactl --membind, mbind, a VM's policy=bind)",
        "a memory policy binds these pages to other nodes (MPOL_BIND, see numactl(8)); change the"
        " policy, or use migratepages(8), which changes it too",
    ),
}
"""Of statuses that need more words for users than :attr:`MoveStatus.meaning`."""


FAILURES: Final = frozenset(status for status in MoveStatus if status >= MoveStatus.NOT_PRESENT)
"""The page is not on its target although the move was tried, or would have been."""

BACKED_OFF_FAILURES: Final = (
    MoveStatus.BUSY,
    MoveStatus.SHARED,
    MoveStatus.UNMOVABLE,
    MoveStatus.NO_HUGE_PAGE,
)
"""Failures of the page itself, likely to repeat soon: such pages get a retry backoff."""

STUCK: Final = (
    *BACKED_OFF_FAILURES,
    MoveStatus.SKIPPED,
    MoveStatus.IN_BACKOFF,
    MoveStatus.BOUND,
)
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
    errno.ENOSYS: MoveStatus.PERMISSION,  # seccomp profiles of containers hide the call so
}


def status_of_call(result: int) -> MoveStatus:
    """Return the status that the -errno of a whole call means."""
    return _BY_CALL_ERRNO.get(-result, MoveStatus.OTHER)


def status_of_pages(
    answers: npt.NDArray[np.int16] | npt.NDArray[np.int32], target: npt.NDArray[np.int16] | int
) -> npt.NDArray[np.int16]:
    """Return statuses by answers (node or -errno); ALREADY_THERE on target, else PENDING."""
    status = np.full(len(answers), MoveStatus.PENDING, np.int16)
    status[answers == target] = MoveStatus.ALREADY_THERE
    negative = answers < 0
    if negative.any():
        status[negative] = MoveStatus.OTHER
        for number, meaning in _BY_PAGE_ERRNO.items():
            status[answers == -number] = meaning
    return status


Flow = tuple[int, int]
"""Source and target node; the source is -1 where it is not known."""


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The outcome of a plan; columns have shape ``(n,)`` and the order of the plan's rows.

    ``status`` holds codes of ``MoveStatus``; ``node`` is where the page is now, -1 absent or
    unknown; ``moved_pages`` is how many base pages of the row moved (of a huge page that the kernel
    has split, maybe not all). ``moved`` counts base pages by flow, in a dry run those that would
    move; ``pages`` counts planned ones by status. ``seconds`` is the duration of the whole.
    """

    status: npt.NDArray[np.int16]
    node: npt.NDArray[np.int16]
    moved_pages: npt.NDArray[np.uint32]
    moved: Mapping[Flow, int]
    pages: Mapping[MoveStatus, int]
    calls: int
    seconds: float
    dry_run: bool = False

    def __len__(self) -> int:
        return len(self.status)

    @property
    def moved_bytes(self) -> int:
        """Bytes that moved, or in a dry run would move."""
        return sum(self.moved.values()) * PAGE_BYTES

    @property
    def failures(self) -> dict[MoveStatus, int]:
        """Pages that failed to move, by reason."""
        return {status: n for status, n in self.pages.items() if status in FAILURES}


@dataclass(slots=True)
class MoveTotals:
    """Base pages moved by flow and planned by status, without deferred ones.

    ``resident_pages`` were found in the slices that plans were made of. ``limited`` says that a
    limit ended the migration.
    """

    resident_pages: int = 0
    moved: Counter[Flow] = field(default_factory=Counter)
    pages: Counter[MoveStatus] = field(default_factory=Counter)
    calls: int = 0
    seconds: float = 0.0
    limited: bool = False

    def add(self, outcome: MoveOutcome) -> None:
        """Add the outcome of one plan."""
        self.moved.update(outcome.moved)
        self.pages.update({s: n for s, n in outcome.pages.items() if s is not MoveStatus.DEFERRED})
        self.calls += outcome.calls
        self.seconds += outcome.seconds

    @property
    def moved_pages(self) -> int:
        """Pages that moved, or in a dry run would move."""
        return sum(self.moved.values())

    @property
    def moved_bytes(self) -> int:
        """``moved_pages`` in bytes."""
        return self.moved_pages * PAGE_BYTES

    @property
    def failures(self) -> dict[MoveStatus, int]:
        """Pages that failed to move, by reason."""
        return {status: pages for status, pages in self.pages.items() if status in FAILURES}
