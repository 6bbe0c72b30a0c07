"""A miss recording: every last-level-cache miss of a program's CPUs, as columns.

The emulated machine's plugin records it once (plugin/recording.h);
``hmd.emulate.recordings.replay`` replays it with the program's pages placed in any way. It takes 24
bytes per miss in memory.

Pages are numbered. A program's page is identified by its virtual address; write-backs and the
kernel's accesses to its frame (clearing, copying) count for it. A walk's read of the page's entry
in the page table counts for it too, so that a replay charges it to the page's node. The kernel's
own memory is identified by frame.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntFlag
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.miss_file import read_miss_file
from hmd.finished_file import finished_file


class MissFlag(IntFlag):
    """Kind of a row; ``COVERED`` by the prefetcher; ``WRITE_BACK`` and ``HALT`` are no accesses.

    ``WAKE``, ``MARK`` and ``FREE`` have the bit of ``HALT`` with others: the CPU goes on after a
    halt, was here when another one went on, or its program gives pages back (in the plugin's file
    only: a stream has ``PageFrees``). ``STLB_HIT`` and ``WALK`` say how a load's page was
    translated. ``TABLE`` is no access of the program: a walk reads the page's entry in the page
    table.
    """

    STORE = 1
    KERNEL = 2
    HALT = 4
    WAKE = 5
    MARK = 6
    FREE = 7
    COVERED = 8
    WRITE_BACK = 16
    STLB_HIT = 32
    WALK = 64
    TABLE = 128


@dataclass(frozen=True, slots=True)
class ThreadOrder:
    """Rows of each CPU of a stream, and the meetings, at which the CPUs wait for each other.

    The rows of CPU i are ``cpu_rows[i]`` to ``cpu_rows[i + 1]``; shape ``(cpus + 1,)``.
    ``meets_at``, shape ``(meetings, cpus)``, is how many of its rows a CPU has behind it there.
    """

    cpu_rows: npt.NDArray[np.int64]
    meets_at: npt.NDArray[np.uint64]

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return len(self.cpu_rows) - 1


@dataclass(frozen=True, slots=True)
class PageFrees:
    """Pages that a program gives back: munmap(2), brk(2), MADV_DONTNEED; columns of shape ``(k,)``.

    ``page`` is free before the miss of ``row``, which does not fall, until its next access, which
    allocates it again.
    """

    row: npt.NDArray[np.int64]
    page: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class MissStream:
    """Misses in program order; columns of shape ``(n,)``, ``page_address`` of ``(pages,)``.

    Those of several CPUs stand one CPU after the other; ``threads`` is None for one CPU. ``frees``
    are known of streams of one CPU only; None where none are.
    ``instructions`` is cumulative, per CPU. ``paid_hits`` are cache hits since the previous row
    that cost time, ``near_hits`` those of them soon after that row, by steps (timing.h). ``page``
    indexes ``page_address``, ``line`` is the line in the page, ``flags`` of ``MissFlag``.
    ``depends`` is the distance, in load misses, to the miss that loaded this load's address; 0 for
    none. ``page_address`` is virtual up to ``user_pages``; the pages after it are the kernel's, by
    frame.
    """

    instructions: npt.NDArray[np.uint64]
    paid_hits: npt.NDArray[np.uint32]
    near_hits: npt.NDArray[np.uint32]
    page: npt.NDArray[np.uint32]
    line: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    depends: npt.NDArray[np.uint16]
    page_address: npt.NDArray[np.uint64]
    user_pages: int
    threads: ThreadOrder | None = None
    frees: PageFrees | None = None

    def __len__(self) -> int:
        """Return the number of misses."""
        return len(self.instructions)

    @property
    def cpus(self) -> int:
        """Number of CPUs that the program ran on."""
        return 1 if self.threads is None else self.threads.cpus

    def rows_of(self, cpu: int) -> slice:
        """Return the rows of a CPU."""
        if self.threads is None:
            return slice(0, len(self))
        begin, end = self.threads.cpu_rows[cpu : cpu + 2].tolist()
        return slice(begin, end)

    @property
    def pages(self) -> int:
        """Number of pages, including those of the kernel."""
        return len(self.page_address)

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return the columns in the order of the native module's arguments."""
        return [getattr(self, field.name) for field in fields(self)[:7]]

    def sampled(self) -> npt.NDArray[np.bool_]:
        """Return the rows that a PMU counts as misses of the program: accesses in user mode."""
        others = MissFlag.KERNEL | MissFlag.HALT | MissFlag.WRITE_BACK | MissFlag.TABLE
        return np.asarray((self.flags & np.uint8(others)) == 0)

    def write(self, path: Path) -> None:
        """Write the columns to an ``.npz`` file (mode 0600); raises as ``finished_file``."""
        with finished_file(path, private=True) as file:
            columns = {
                field.name: getattr(self, field.name)
                for field in fields(self)
                if field.name not in ("threads", "frees")
            }
            if self.frees is not None:
                columns |= {"free_row": self.frees.row, "free_page": self.frees.page}
            if self.threads is not None:
                columns |= {
                    "cpu_rows": self.threads.cpu_rows,
                    "meets_at": self.threads.meets_at.ravel(),
                }
            np.savez(file, allow_pickle=False, **columns)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that ``write`` wrote; raises HmdError for any other file."""
        found = read_miss_file(path)
        order = {name: found.pop(name) for name in ("cpu_rows", "meets_at") if name in found}
        freed = {name: found.pop(f"free_{name}", None) for name in ("row", "page")}
        return cls(
            **found,
            threads=ThreadOrder(**order) if order else None,
            frees=None if freed["row"] is None else PageFrees(**freed),
        )


@dataclass(frozen=True, slots=True)
class MissOutcomes:
    """Latency and issue time of each miss, shape ``(n,)``; the latency is that of a PEBS record.

    ``clock_ps`` is the CPU's modelled busy time at issue.
    """

    latency_ps: npt.NDArray[np.uint32]
    clock_ps: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return columns to be filled."""
        return cls(np.empty(count, np.uint32), np.empty(count, np.uint64))


@dataclass(frozen=True, slots=True)
class MissRecording:
    """A recording: the stream, the physical address of each page, shape ``(pages,)``, and its time.

    ``awake_s`` is the modelled time during which at least one of its CPUs was busy.
    """

    stream: MissStream
    page_paddr: npt.NDArray[np.uint64]
    awake_s: float
