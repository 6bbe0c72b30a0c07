# SPDX-License-Identifier: MIT
"""Recorded misses of a program as columns, and their file.

``MissStream`` has every last-level-cache miss of a program's CPUs, 24 bytes per miss. The emulated
machine's plugin records it once (plugin/recording.h); :mod:`hmd.emulate.recordings.replay` replays
it with the program's pages placed in any way. Pages are numbered. A program's page is identified by
its virtual address; write-backs and the kernel's accesses to its frame (clearing, copying) count
for it. A walk's read of the page's entry in the page table counts for it too, so that a replay
charges it to the page's node. The kernel's own memory is identified by frame.

The file is an ``.npz`` of columns. It may come from elsewhere, and its columns are indices and
sizes for the native replay: each value is checked before anything uses it, sizes against the file's
own size before memory is taken for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntFlag
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hmd.base.atomic_file import finished_file
from hmd.base.errors import HmdError, PageSizeError
from hmd.base.units import PAGE_BYTES
from hmd.base.untrusted_files import DAMAGED, read_arrays, reason_of

MAX_INSTRUCTIONS: Final = 1 << 42
"""Instructions, and cache hits, of a recording: a quarter of an hour at 5 GHz."""
MAX_DEPENDENCE: Final = 1023
"""TIMING_MAX_DEPENDENCE of timing.h."""
MAX_PAGES: Final = 1 << 28
_FLAGS: Final = 255
MAX_CPUS: Final = 16
"""TIMING_MAX_VCPUS of timing.h."""
_LINES: Final = 64
EMULATED_PAGE_BYTES: Final = 4096
"""Pages of the emulated machine, which is of x86-64 whatever the host is."""
_USER_END: Final = 1 << 47
_DTYPES: Final[Mapping[str, str]] = {
    "instructions": "<u8",
    "paid_hits": "<u4",
    "near_hits": "<u4",
    "page": "<u4",
    "line": "|u1",
    "flags": "|u1",
    "depends": "<u2",
    "page_address": "<u8",
    "user_pages": "<i8",
}
_ROWS: Final = tuple(_DTYPES)[:7]
# Of recordings of several CPUs, where meets_at is stored row by row, and of those that know which
# pages the program gave back.
_OPTIONAL: Final[Mapping[str, str]] = {
    "cpu_rows": "<i8",
    "meets_at": "<u8",
    "free_row": "<i8",
    "free_page": "<u4",
}


def read_miss_file(path: Path) -> dict[str, Any]:
    """Return the columns, and the number ``user_pages``; raises HmdError for any other file.

    Those of several CPUs have ``cpu_rows``, and ``meets_at`` of shape ``(meetings, cpus)``; some
    of one CPU have ``free_row`` and ``free_page``.
    """
    try:
        # Stored uncompressed, arrays take no more memory than the file.
        arrays = read_arrays(path, max_bytes=path.stat().st_size)
        optional = {name: dtype for name, dtype in _OPTIONAL.items() if name in arrays}
        found: dict[str, Any] = {name: arrays[name] for name in (*_DTYPES, *optional)}
        for name, dtype in {**_DTYPES, **optional}.items():
            dimensions = 0 if name == "user_pages" else 1
            if found[name].dtype != dtype or found[name].ndim != dimensions:
                raise ValueError(f"{name} is of another type")
        _check(found)
        _check_frees(found)
        if "cpu_rows" in found:
            found["meets_at"] = _meetings(found)
    except OSError as error:
        raise HmdError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DAMAGED as error:
        raise HmdError(
            f"{path} holds no recorded misses ({reason_of(error)}): make them with "
            "hmd simulate --record"
        ) from error
    return found | {"user_pages": int(found["user_pages"])}


def _check(found: Mapping[str, Any]) -> None:
    """Raise ValueError where a value is out of its range."""
    if PAGE_BYTES != EMULATED_PAGE_BYTES:
        raise PageSizeError("the recording", EMULATED_PAGE_BYTES)
    rows = {len(found[name]) for name in _ROWS}
    if len(rows) != 1 or rows == {0}:
        raise ValueError("columns of different lengths" if len(rows) > 1 else "no misses")
    address, users = found["page_address"], int(found["user_pages"])
    if not 0 < users <= len(address) <= MAX_PAGES:
        raise ValueError("no pages of a program")
    own = address[:users]
    if (own[1:] <= own[:-1]).any() or int(own[-1]) >= _USER_END or (own % PAGE_BYTES).any():
        raise ValueError("pages out of order")
    most = {"page": len(address) - 1, "line": _LINES - 1, "flags": _FLAGS,
            "depends": MAX_DEPENDENCE}  # fmt: skip
    for name, limit in most.items():
        if int(found[name].max()) > limit:
            raise ValueError(f"{name} above {limit}")
    for begin, end in _rows_by_cpu(found):
        instructions = found["instructions"][begin:end]
        if (instructions[1:] < instructions[:-1]).any() or int(instructions[-1]) > MAX_INSTRUCTIONS:
            raise ValueError("instructions out of order")
    if int(found["paid_hits"].sum(dtype=np.uint64)) > MAX_INSTRUCTIONS:
        raise ValueError("too many cache hits")


def _check_frees(found: Mapping[str, Any]) -> None:
    """Raise ValueError where pages that are given back are out of range, or out of order."""
    if "free_row" not in found:
        return
    row, page = found["free_row"], found["free_page"]
    if "cpu_rows" in found or len(row) != len(page):
        raise ValueError("frees of several CPUs" if "cpu_rows" in found else "frees of no page")
    if not len(row):
        return
    if (row[1:] < row[:-1]).any() or int(row[0]) < 0 or int(row[-1]) > len(found["page"]):
        raise ValueError("frees out of order")
    if int(page.max()) >= int(found["user_pages"]):
        raise ValueError("frees of no page")


def _rows_by_cpu(found: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the first row of each CPU and the one after its last."""
    count = len(found["instructions"])
    cpu_rows = found.get("cpu_rows", np.array([0, count]))
    if not 2 <= len(cpu_rows) <= MAX_CPUS + 1 or (cpu_rows[0], cpu_rows[-1]) != (0, count):
        raise ValueError("rows of no CPU")
    if (cpu_rows[1:] <= cpu_rows[:-1]).any():
        raise ValueError("a CPU without rows")
    return list(zip(cpu_rows[:-1].tolist(), cpu_rows[1:].tolist(), strict=True))


def _meetings(found: Mapping[str, Any]) -> npt.NDArray[np.uint64]:
    """Return ``meets_at`` by meeting and CPU; raises ValueError where it is out of order."""
    rows = np.diff(found["cpu_rows"])
    stored: npt.NDArray[np.uint64] = found["meets_at"]
    if len(stored) % len(rows):
        raise ValueError("meetings of other CPUs")
    meets_at = stored.reshape(-1, len(rows))
    if (meets_at[1:] < meets_at[:-1]).any() or (meets_at > rows.astype(np.uint64)).any():
        raise ValueError("meetings out of order")
    return meets_at


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
