"""A process's mappings as columns, and which of them may be moved.

Parses /proc/PID/maps (proc_pid_maps(5)) into arrays. maps is cheap: the kernel prints it without
walking page tables, and parsing costs about 2 µs per mapping. VMA flags and huge pages are only in
smaps, which walks all page tables: they are a second, slower call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.machine.linear_pattern import LinearPattern
from hmd.machine.pages.shared_ranges import LEAST_BYTES, SharedRange, shared_range
from hmd.machine.process_id import PROC
from hmd.machine.procfs import read_bytes
from hmd.units import HUGE_PAGE_BYTES


class MappingKind(IntEnum):
    """What backs a mapping."""

    ANON = 0
    HEAP = 1
    STACK = 2
    FILE = 3
    SHM = 4
    """Shared anonymous memory, memfd, System V and POSIX shared memory."""
    HUGETLB = 5
    SPECIAL = 6
    """Kernel pages ([vdso], [vvar]), devices and others without movable memory."""


class MappingAccess(IntFlag):
    """Permissions of a mapping."""

    READ = 1
    WRITE = 2
    EXEC = 4
    SHARED = 8


@dataclass(frozen=True, slots=True)
class Mappings:
    """Mappings of one process in order of address; all columns have shape ``(n,)``.

    ``start`` and ``end`` (exclusive) are addresses, ``kind`` holds ``MappingKind``, ``access`` bits
    of ``MappingAccess``. ``unmovable`` marks what only smaps shows (I/O and PFN maps; locked pages
    are movable); ``huge_eligible`` where the kernel may use transparent huge pages, by shape alone
    until ``read_mapping_details`` has asked smaps. ``huge_bytes`` is the part that is in huge pages
    now, -1 where unknown. ``shared`` are the mappings of files that other processes may map too, as
    far as hmd follows these (:mod:`hmd.machine.pages.shared_ranges`).
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    access: npt.NDArray[np.uint8]
    unmovable: npt.NDArray[np.bool_]
    huge_eligible: npt.NDArray[np.bool_]
    huge_bytes: npt.NDArray[np.int64]
    path: tuple[str, ...]
    shared: tuple[SharedRange, ...] = ()

    def __len__(self) -> int:
        """Return the number of mappings."""
        return len(self.start)

    @property
    def accessible(self) -> npt.NDArray[np.bool_]:
        """Where the process has any access, shape ``(n,)``; what is only reserved has none."""
        usable = np.uint8(MappingAccess.READ | MappingAccess.WRITE | MappingAccess.EXEC)
        return np.asarray((self.access & usable) != 0)

    @property
    def movable(self) -> npt.NDArray[np.bool_]:
        """Where pages may be moved, shape ``(n,)``.

        Not: kernel and device pages, and executable file mappings, which are libraries shared
        by many processes: moving them costs a walk of all mappers and gains little.
        """
        return self.migratable & ~self.executable_file

    @property
    def migratable(self) -> npt.NDArray[np.bool_]:
        """Where the kernel can move pages, executable files included, shape ``(n,)``."""
        special: npt.NDArray[np.bool_] = self.kind == MappingKind.SPECIAL
        return ~(self.unmovable | special)

    def take(self, rows: npt.NDArray[np.intp]) -> Mappings:
        """Return some of the mappings; ``rows`` ascend. Those shared are the taken ones' alone."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        starts = set(columns["start"].tolist())
        return Mappings(
            **columns,
            path=tuple(self.path[row] for row in rows.tolist()),
            shared=tuple(one for one in self.shared if one.start in starts),
        )

    def joined(self, others: Sequence[Mappings]) -> Mappings:
        """Return these mappings and the others, which follow them in order of address."""
        parts = (self, *others)
        return Mappings(
            **{name: np.concatenate([getattr(one, name) for one in parts]) for name in _COLUMNS},
            path=tuple(chain.from_iterable(one.path for one in parts)),
            shared=tuple(chain.from_iterable(one.shared for one in parts)),
        )

    def keeping(self, patterns: Sequence[LinearPattern]) -> Mappings:
        """Return the mappings, those unmovable whose path matches one of the patterns."""
        found = {
            path: any(one.search(os.fsencode(path)) for one in patterns) for path in set(self.path)
        }
        kept = np.array([found[path] for path in self.path], np.bool_)
        return replace(self, unmovable=self.unmovable | kept)

    @property
    def executable_file(self) -> npt.NDArray[np.bool_]:
        """Where code of a program or library is mapped, shape ``(n,)``."""
        file: npt.NDArray[np.bool_] = self.kind == MappingKind.FILE
        code: npt.NDArray[np.bool_] = (self.access & MappingAccess.EXEC) != 0
        return file & code

    def movable_at(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return for each address whether it lies in a movable mapping; shape as ``addresses``."""
        if not len(self) or not len(addresses):
            return np.zeros(len(addresses), np.bool_)
        first = int(np.searchsorted(self.start, addresses.min(), side="right")) - 1
        if first >= 0 and addresses.max() < self.end[first]:
            # One mapping has them all, as is usual for large ones.
            return np.full(len(addresses), self.movable[first])
        row = np.searchsorted(self.start, addresses, side="right") - 1
        inside = (row >= 0) & (addresses < self.end[row])
        return inside & self.movable[row]


_COLUMNS = ("start", "end", "kind", "access", "unmovable", "huge_eligible", "huge_bytes")


def read_mappings(pid: int, proc: Path = PROC) -> Mappings | None:
    """Return the mappings of ``pid``, None where it has exited or may not be read.

    Reading another user's process needs CAP_SYS_PTRACE.
    """
    data = read_bytes(proc / str(pid) / "maps")
    return None if data is None else parse_maps(data)


def read_mapping_details(pid: int, proc: Path = PROC) -> Mappings | None:
    """Return the mappings with the fields of smaps; None as ``read_mappings``.

    Costs a walk of the process's page tables: milliseconds per gigabyte.
    """
    data = read_bytes(proc / str(pid) / "smaps")
    return None if data is None else parse_smaps(data)


# Numbers as the kernel prints them: a 64-bit address has at most 16 digits.
_HEADER = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-])([w-])([x-])([ps])"
    rb" ([0-9a-f]{1,16}) ([0-9a-f]+:[0-9a-f]+) (\d{1,20})(?: +(.*))?$",
    re.MULTILINE,
)


def parse_maps(data: bytes) -> Mappings:
    """Return the mappings of a maps file; malformed lines are skipped."""
    return _columns(_HEADER.findall(data))


def parse_smaps(data: bytes) -> Mappings:
    """Return the mappings of a smaps file, with ``huge_bytes``, eligibility and VMA flags."""
    headers = list(_HEADER.finditer(data))
    mappings = _columns([m.groups() for m in headers])
    if not headers:
        return mappings
    ends = [m.start() for m in headers[1:]] + [len(data)]
    bodies = [_parse_body(data[m.end() : end]) for m, end in zip(headers, ends, strict=True)]
    flags = [body[0] for body in bodies]
    hugetlb = np.array([b"ht" in f for f in flags])
    return replace(
        mappings,
        kind=np.where(hugetlb, np.uint8(MappingKind.HUGETLB), mappings.kind),
        unmovable=np.array([not _UNMOVABLE.isdisjoint(f) for f in flags]),
        huge_bytes=np.array([body[1] for body in bodies], np.int64),
        huge_eligible=np.array([body[2] for body in bodies]),
    )


# I/O memory and raw frame numbers have no movable struct page behind them
# (Documentation/filesystems/proc.rst, VmFlags).
_UNMOVABLE = frozenset({b"io", b"pf"})
_HUGE_KIB = re.compile(rb"^(?:AnonHugePages|ShmemPmdMapped|FilePmdMapped): +(\d{1,15}) kB", re.M)
_ELIGIBLE = re.compile(rb"^THPeligible: +1", re.M)
_VM_FLAGS = re.compile(rb"^VmFlags:(.*)$", re.M)


def _parse_body(body: bytes) -> tuple[frozenset[bytes], int, bool]:
    """Return VMA flags, bytes in transparent huge pages, and whether more may become so."""
    found = _VM_FLAGS.search(body)
    flags = frozenset(found.group(1).split()) if found else frozenset()
    huge = sum(int(kib) for kib in _HUGE_KIB.findall(body)) << 10
    return flags, huge, _ELIGIBLE.search(body) is not None


def _columns(headers: list[tuple[bytes, ...]]) -> Mappings:
    n = len(headers)

    def backing(row: int) -> tuple[int, bytes, int]:
        offset, device, inode = headers[row][6:9]
        return int(offset, 16), device, int(inode)

    return mappings_of(
        start=np.fromiter((int(h[0], 16) for h in headers), np.uint64, n),
        end=np.fromiter((int(h[1], 16) for h in headers), np.uint64, n),
        access=np.fromiter((_access(h) for h in headers), np.uint8, n),
        paths=tuple((h[9] or b"").decode("utf-8", "surrogateescape") for h in headers),
        backing=backing,
    )


def mappings_of(
    start: npt.NDArray[np.uint64],
    end: npt.NDArray[np.uint64],
    access: npt.NDArray[np.uint8],
    paths: tuple[str, ...],
    backing: Callable[[int], tuple[int, bytes, int]],
) -> Mappings:
    """Return mappings from what maps has of each, in order of address; columns ``(n,)``.

    ``backing`` returns the offset in bytes, device and inode of the file that a row maps.
    """
    n = len(start)
    kinds = {path: kind_of(path) for path in set(paths)}
    kind = np.fromiter((kinds[path] for path in paths), np.uint8, n)
    # A huge page needs an aligned 2 MiB within the mapping.
    huge = np.uint64(HUGE_PAGE_BYTES)
    first = (start + huge - np.uint64(1)) // huge * huge
    # At the top of the address space the rounding wraps to 0; no huge page fits there.
    fits = (first >= start) & (end >= first) & (end - first >= huge)
    private = (access & MappingAccess.SHARED) == 0
    own = (kind == MappingKind.ANON) | (kind == MappingKind.HEAP) | (kind == MappingKind.STACK)
    large = ~private & (end - start >= LEAST_BYTES) & (kind != MappingKind.SPECIAL)
    found = []
    for row in np.flatnonzero(large).tolist():
        memory = bool(kind[row] != MappingKind.FILE)
        addresses = int(start[row]), int(end[row])
        one = shared_range(addresses, *backing(row), paths[row], memory=memory)
        if one is not None:
            found.append(one)
    return Mappings(
        start=start,
        end=end,
        kind=kind,
        access=access,
        unmovable=np.zeros(n, np.bool_),
        huge_eligible=fits & ((own & private) | (kind == MappingKind.SHM)),
        huge_bytes=np.full(n, -1, np.int64),
        path=paths,
        shared=tuple(found),
    )


def _access(header: tuple[bytes, ...]) -> int:
    return (
        (header[2] == b"r") * MappingAccess.READ
        | (header[3] == b"w") * MappingAccess.WRITE
        | (header[4] == b"x") * MappingAccess.EXEC
        | (header[5] == b"s") * MappingAccess.SHARED
    )


def kind_of(path: str) -> MappingKind:
    """Return the kind of mapping that a path in maps stands for."""
    if not path or path.startswith("[anon:"):
        return MappingKind.ANON
    if path == "[heap]":
        return MappingKind.HEAP
    if path.startswith("[stack"):
        return MappingKind.STACK
    if path.startswith(("/anon_hugepage", "/dev/hugepages/")):
        return MappingKind.HUGETLB
    shared = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV", "[anon_shmem:")
    if path.startswith(shared):
        return MappingKind.SHM
    # Other brackets are the kernel's own pages; a file below /dev is a device, whose pages are
    # pinned or no memory at all; anon_inode: is perf rings, io_uring, KVM.
    if path.startswith(("[", "/dev/", "anon_inode:", "socket:", "pipe:")):
        return MappingKind.SPECIAL
    return MappingKind.FILE
