# SPDX-License-Identifier: MIT
"""A process's mappings as columns: which may be moved, which are shared, which hold an address.

``read_mappings`` parses /proc/PID/maps (proc_pid_maps(5)), which the kernel prints without walking
page tables; about 2 µs per mapping. Flags and huge pages are only in smaps, which walks them all
(10 µs per mapping). vm.max_map_count permits 65,530 mappings, and a million where a database asks
for it, so ``mapping_pieces`` reads some at a time, and ``mappings_at`` asks for those of some
addresses by PROCMAP_QUERY (Linux 6.11, include/uapi/linux/fs.h): about 0.8 µs each, whatever the
number of mappings.

Shared anonymous memory, memfd, POSIX and System V segments and files on tmpfs are files to the
kernel, with device, inode and offset: ``SharedRange`` identifies what other processes may map too.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.base.units import HUGE_PAGE_BYTES, MIB, PAGE_BYTES
from hmd.linux.page_calls import c_array, checked
from hmd.linux.procfs import (
    PROC,
    ProcessId,
    absent,
    alive,
    mounts,
    open_to_read,
    read_bytes,
    unless_absent,
)
from hmd.linux.targets import SafeRegex

LEAST_BYTES: Final = 4 * MIB
"""Smaller mappings are not worth the search for others of their file."""
PROCESS_MOST: Final = 64
"""Mappings of a process that are followed, the largest."""

_OFFSETS_END: Final = 1 << 56
_SYSV: Final = "/SYSV"

_COLUMNS = ("start", "end", "kind", "access", "unmovable", "huge_bytes")

# Numbers as the kernel prints them: a 64-bit address has at most 16 digits.
_HEADER = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-])([w-])([x-])([ps])"
    rb" ([0-9a-f]{1,16}) ([0-9a-f]+:[0-9a-f]+) (\d{1,20})(?: +(.*))?$",
    re.MULTILINE,
)

# I/O memory and raw frame numbers have no movable struct page behind them
# (Documentation/filesystems/proc.rst, VmFlags).
_UNMOVABLE = frozenset({b"io", b"pf"})

_HUGE_KIB = re.compile(rb"^(?:AnonHugePages|ShmemPmdMapped|FilePmdMapped): +(\d{1,15}) kB", re.M)
_VM_FLAGS = re.compile(rb"^VmFlags:(.*)$", re.M)
Addresses = npt.NDArray[np.uint64]

ROWS: Final = 1024
"""Mappings of one call: about 1 ms."""

TEXT_BYTES: Final = 8 << 20
"""Text of maps that stands in for queries: 65,530 mappings (the default of vm.max_map_count)."""

_ROW: Final = np.dtype(
    [(name, "<u8") for name in ("start", "end", "offset", "inode")]
    + [(name, "<u4") for name in ("major", "minor", "name_start", "name_bytes", "access", "_")]
)

_NAMES_BYTES: Final = 1 << 17
PIECE_BYTES: Final = 1 << 15
"""Text of a piece: some 500 mappings, which take about 1.5 ms."""

EXACT_MAPPINGS: Final = 1 << 14
"""Mappings of a process that are read one by one: about 50 ms."""

STRIDE_BYTES: Final = HUGE_PAGE_BYTES
"""Unit of address space of which, beyond ``EXACT_MAPPINGS``, one anonymous mapping is read."""

_EQUAL, _LESS = 0, 1


_GUEST_CPU: Final = "anon_inode:kvm-vcpu"


def runs_guests(paths: Iterable[str]) -> bool:
    """Return whether mappings or descriptors are those of a virtual machine of KVM.

    It has to map each of its CPUs to run them (KVM_RUN, Documentation/virt/kvm/api.rst).
    """
    return any(path.startswith(_GUEST_CPU) for path in paths)


class FileKey(NamedTuple):
    """A file: device and inode as maps prints them, and what distinguishes files that have both.

    The inode of a System V segment is its id, which a memfd's may equal (ipc/shm.c, newseg()).
    Subvolumes of btrfs have one device in maps, so that other files need their path as ``name``,
    and the mount ``namespace`` that it is valid in; 0 where there is none.
    """

    device: bytes
    inode: int
    name: str = ""
    namespace: int = 0


class SharedRange(NamedTuple):
    """Addresses from ``start`` to ``end`` (exclusive) map a file from ``offset`` on, in bytes."""

    start: int
    end: int
    offset: int
    file: FileKey


def shared_range(
    span: tuple[int, int], offset: int, device: bytes, inode: int, path: str, *, memory: bool
) -> SharedRange | None:
    """Return a shared mapping; None where it is small, or no part of a file that hmd follows.

    ``memory``: the kernel's own file systems for memory have the file, whose inodes are unique.
    """
    start, end = span
    outside = offset % PAGE_BYTES or offset + (end - start) > _OFFSETS_END
    if end - start < LEAST_BYTES or not inode or outside:
        return None
    name = path if not memory else _SYSV if path.startswith(_SYSV) else ""
    return SharedRange(start, end, offset, FileKey(device, inode, name))


def in_namespace(ranges: Iterable[SharedRange], namespace: int) -> list[SharedRange]:
    """Return mappings of a mount namespace; if it is not known (0), those of memory alone."""
    known = [one for one in ranges if namespace or one.file.name in ("", _SYSV)]
    return [
        one
        if one.file.name in ("", _SYSV)
        else one._replace(file=one.file._replace(namespace=namespace))
        for one in known
    ]


def range_bytes(one: SharedRange) -> int:
    """Return the size of a mapping."""
    return one.end - one.start


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
    are movable); ``huge_bytes`` is the part that is in huge pages now, -1 where unknown.
    ``shared`` are the mappings of files that other processes may map too, as far as hmd follows
    these.
    """

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    access: npt.NDArray[np.uint8]
    unmovable: npt.NDArray[np.bool_]
    huge_bytes: npt.NDArray[np.int64]
    path: tuple[str, ...]
    shared: tuple[SharedRange, ...] = ()

    def __len__(self) -> int:
        return len(self.start)

    @property
    def accessible(self) -> npt.NDArray[np.bool_]:
        """Where the process has any access, shape ``(n,)``; what is only reserved has none."""
        usable = np.uint8(MappingAccess.READ | MappingAccess.WRITE | MappingAccess.EXEC)
        return np.asarray((self.access & usable) != 0)

    @property
    def movable(self) -> npt.NDArray[np.bool_]:
        """Where pages may be moved: not the kernel's and devices', nor code, which gains little."""
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

    def keeping(self, patterns: Sequence[SafeRegex]) -> Mappings:
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


def anonymous_mappings(start: Addresses, end: Addresses) -> Mappings:
    """Return mappings of anonymous memory for reading and writing, as models have them."""
    count = len(start)
    return Mappings(
        start,
        end,
        kind=np.full(count, MappingKind.ANON, np.uint8),
        access=np.full(count, MappingAccess.READ | MappingAccess.WRITE, np.uint8),
        unmovable=np.zeros(count, np.bool_),
        huge_bytes=np.zeros(count, np.int64),
        path=("",) * count,
    )


def read_mappings(pid: int, proc: Path = PROC) -> Mappings | None:
    """Return the mappings of ``pid``, None after its exit and without CAP_SYS_PTRACE."""
    data = read_bytes(proc / str(pid) / "maps")
    return None if data is None else parse_maps(data)


def read_mapped_files(
    pid: int, proc: Path = PROC
) -> tuple[Mappings | None, npt.NDArray[np.uint64]]:
    """Return the mappings of ``pid``, None likewise, and the offset in its file of each, (n,)."""
    headers = _HEADER.findall(data := read_bytes(proc / str(pid) / "maps") or b"")
    offset = np.array([int(header[6], 16) for header in headers], np.uint64)
    return (_columns(headers) if data else None), offset


def read_mapping_details(pid: int, proc: Path = PROC) -> Mappings | None:
    """Return the mappings with the fields of smaps, in milliseconds per gigabyte; None likewise."""
    data = read_bytes(proc / str(pid) / "smaps")
    return None if data is None else parse_smaps(data)


def parse_maps(data: bytes) -> Mappings:
    """Return the mappings of a maps file; malformed lines are skipped."""
    return _columns(_HEADER.findall(data))


def parse_smaps(data: bytes) -> Mappings:
    """Return the mappings of a smaps file, with ``huge_bytes`` and VMA flags."""
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
    )


def _parse_body(body: bytes) -> tuple[frozenset[bytes], int]:
    """Return VMA flags, and bytes in transparent huge pages."""
    found = _VM_FLAGS.search(body)
    flags = frozenset(found.group(1).split()) if found else frozenset()
    huge = sum(int(kib) for kib in _HUGE_KIB.findall(body)) << 10
    return flags, huge


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
    """Return mappings by columns of maps; ``backing``: a row's offset, device and inode."""
    n = len(start)
    kinds = {path: kind_of(path) for path in set(paths)}
    kind = np.fromiter((kinds[path] for path in paths), np.uint8, n)
    huge = np.uint64(HUGE_PAGE_BYTES)
    # Any file system of huge pages, wherever it is mounted; its mappings are whole huge pages.
    named = (kind == MappingKind.FILE) | (kind == MappingKind.SPECIAL)
    for row in np.flatnonzero(named & (start % huge == 0) & (end % huge == 0)).tolist():
        if paths[row].startswith("/") and backing(row)[1] in _devices_now(int(time.monotonic())):
            kind[row] = MappingKind.HUGETLB
    shared = (access & MappingAccess.SHARED) != 0
    large = shared & (end - start >= LEAST_BYTES) & (kind != MappingKind.SPECIAL)
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


def repeated_views(mappings: Mappings) -> npt.NDArray[np.bool_]:
    """Return which mappings show a part of a file that an earlier one shows; shape ``(n,)``.

    Some runtimes map their heap several times, as generations or colours of pointers: its pages are
    to be moved, and counted, once. Of mappings as large as ``LEAST_BYTES``.
    """
    repeated = np.zeros(len(mappings), np.bool_)
    seen: dict[FileKey, list[tuple[int, int]]] = {}
    for view in sorted(mappings.shared, key=lambda view: view.start):
        first, past = view.offset, view.offset + view.end - view.start
        before = seen.setdefault(view.file, [])
        if any(low <= first and past <= high for low, high in before):
            repeated[np.searchsorted(mappings.start, np.uint64(view.start))] = True
        else:
            before.append((first, past))
    return repeated


def hugetlb_devices(proc: Path = PROC) -> frozenset[bytes]:
    """Return the devices of hugetlbfs mounts, as maps prints them."""
    devices = (map(int, device.split(":")) for device, _ in mounts(("hugetlbfs",), proc))
    return frozenset(b"%02x:%02x" % (major, minor) for major, minor in devices)


@lru_cache(maxsize=1)
def _devices_now(second: int) -> frozenset[bytes]:
    del second
    return hugetlb_devices()


def kind_of(path: str) -> MappingKind:
    """Return the kind of mapping that a path in maps stands for."""
    if not path or path.startswith("[anon:"):
        return MappingKind.ANON
    if path == "[heap]":
        return MappingKind.HEAP
    if path.startswith("[stack"):
        return MappingKind.STACK
    if path.startswith(("/anon_hugepage", "/dev/hugepages")):
        return MappingKind.HUGETLB
    shared = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV", "[anon_shmem:")
    if path.startswith(shared):
        return MappingKind.SHM
    # Other brackets are the kernel's own pages; a file below /dev is a device, whose pages are
    # pinned or no memory at all; anon_inode: is perf rings, io_uring, KVM.
    if path.startswith(("[", "/dev/", "anon_inode:", "socket:", "pipe:")):
        return MappingKind.SPECIAL
    return MappingKind.FILE


def mappings_at(pid: int, addresses: Addresses, proc: Path = PROC) -> Mappings | None:
    """Return the mappings that contain any of the addresses; None as ``read_mappings``.

    Without PROCMAP_QUERY the first ``TEXT_BYTES`` of maps are read at most: mappings beyond are
    missing.
    """
    fd = open_to_read(proc / str(pid) / "maps")
    if fd is None:
        return None
    rising = bool((addresses[1:] >= addresses[:-1]).all())
    ascending = np.ascontiguousarray(addresses) if rising else np.sort(addresses)
    try:
        with unless_absent():
            try:
                return query_at(fd, ascending)
            except OSError as error:
                if error.errno != errno.ENOTTY:
                    raise
            return _text_at(fd, ascending)
        return None
    finally:
        os.close(fd)


def query_at(fd: int, addresses: Addresses) -> Mappings:
    """Return the mappings of ascending addresses. OSError: ENOTTY before 6.11, ESRCH after exit."""
    rows, names = np.zeros(min(ROWS, max(1, len(addresses))), _ROW), ffi.new("char[]", _NAMES_BYTES)
    space = len(rows), ffi.from_buffer("struct hmd_mapping[]", rows), _NAMES_BYTES, names
    done, found = ffi.new("size_t *"), list[Mappings]()
    while True:
        asked = len(addresses), c_array(addresses)
        count = checked(lib.hmd_mappings_at(fd, *asked, *space, done))
        found.append(_mappings(rows[:count], names))
        addresses = addresses[int(done[0]) :]
        if not len(addresses):
            return found[0].joined(found[1:])


def query_from(fd: int, address: int, stride_bytes: int) -> tuple[Mappings, int]:
    """Return the next mappings from ``address`` on, and where to go on; no mappings at the end.

    After anonymous memory that is accessible it goes on with the next multiple of ``stride_bytes``:
    mappings that begin and end before that are left out. ``fd`` and errors as ``query_at``.
    """
    rows, names = np.zeros(ROWS, _ROW), ffi.new("char[]", _NAMES_BYTES)
    space = ROWS, ffi.from_buffer("struct hmd_mapping[]", rows), _NAMES_BYTES, names
    at = ffi.new("uint64_t *", address)
    count = checked(lib.hmd_mappings_from(fd, at, stride_bytes, *space))
    return _mappings(rows[:count], names), int(at[0])


def _mappings(rows: npt.NDArray[np.void], names: object) -> Mappings:
    """Return the mappings of the kernel's answers, as maps prints them."""
    used = int(rows["name_start"][-1] + rows["name_bytes"][-1]) if len(rows) else 0
    text = bytes(ffi.buffer(names, used))
    starts = rows["name_start"].tolist()
    # maps prints a line break in a path as a number (proc_pid_maps(5)).
    paths = tuple(
        text[start : start + length].replace(b"\n", b"\\012").decode("utf-8", "surrogateescape")
        if length
        else ""
        for start, length in zip(starts, rows["name_bytes"].tolist(), strict=True)
    )

    def backing(row: int) -> tuple[int, bytes, int]:
        one = rows[row]
        return int(one["offset"]), b"%02x:%02x" % (one["major"], one["minor"]), int(one["inode"])

    return mappings_of(
        start=rows["start"].copy(),
        end=rows["end"].copy(),
        access=rows["access"].astype(np.uint8),
        paths=paths,
        backing=backing,
    )


def _text_at(fd: int, addresses: Addresses) -> Mappings:
    """Return the mappings that contain any of the ascending addresses, from the text of maps."""
    found, text, left = [parse_maps(b"")], b"", TEXT_BYTES
    while len(addresses) and left > 0 and (data := os.read(fd, PIECE_BYTES)):
        left -= len(data)
        text += data
        end = text.rfind(b"\n") + 1
        piece, text = parse_maps(text[:end]), text[end:]
        if not len(piece):
            continue
        seen = int(np.searchsorted(addresses, piece.end[-1]))
        row = np.searchsorted(piece.start, addresses[:seen], side="right") - 1
        inside = (row >= 0) & (addresses[:seen] < piece.end[row])
        found.append(piece.take(np.unique(row[inside])))
        addresses = addresses[seen:]
    return found[0].joined(found[1:])


def mapping_pieces(
    pid: int, proc: Path = PROC, *, details: bool = False
) -> Generator[Mappings, None, None]:
    """Yield the mappings of ``pid`` by rising address, some at a time; none if it cannot be read.

    ``details`` reads smaps. Ends early where the process exits meanwhile; closing the generator
    closes the file. After ``EXACT_MAPPINGS`` what follows accessible anonymous memory in the same
    ``STRIDE_BYTES`` is left out, unless it reaches beyond, where the kernel can be asked so.
    """
    fd = open_to_read(proc / str(pid) / ("smaps" if details else "maps"))
    if fd is None:
        return
    try:
        read, queried = 0, details
        for piece in _text_pieces(fd, details=details):
            yield piece
            read += len(piece)
            if read >= EXACT_MAPPINGS and not queried:
                queried = True
                if (yield from _strides(fd, int(piece.end[-1]))):
                    break
    except OSError as error:
        if not absent(error):
            raise
    finally:
        os.close(fd)


def covering_mappings(pid: int, proc: Path = PROC) -> Mappings | None:
    """Return mappings that cover the pages of ``pid``; None where it has none or may not be read.

    Those of ``mapping_pieces``, ascending and disjoint, of which the process's own memory reaches
    over what was left out after it.
    """
    pieces = list(mapping_pieces(pid, proc))
    if not pieces:
        return None
    found = pieces[0].joined(pieces[1:])
    before = np.append(np.uint64(0), np.maximum.accumulate(found.end)[:-1])
    found = replace(found, start=np.maximum(found.start, before))
    found = found.take(np.flatnonzero(found.start < found.end))
    own = (found.kind == MappingKind.ANON) | (found.kind == MappingKind.HEAP)
    own &= found.accessible & (np.arange(len(found)) >= EXACT_MAPPINGS)
    stride, nowhere = np.uint64(STRIDE_BYTES), np.iinfo(np.uint64).max
    reach = ((found.end - np.uint64(1)) // stride + np.uint64(1)) * stride
    reach = np.minimum(reach, np.append(found.start[1:], nowhere))
    return replace(found, end=np.where(own, reach, found.end))


def _text_pieces(fd: int, *, details: bool) -> Generator[Mappings, None, None]:
    text = b""
    while data := os.read(fd, PIECE_BYTES):
        text += data
        end = _whole(text, details=details) if len(text) >= PIECE_BYTES else 0
        if end:
            yield parse_smaps(text[:end]) if details else parse_maps(text[:end])
            text = text[end:]
    if text:
        yield parse_smaps(text) if details else parse_maps(text)


def _strides(fd: int, address: int) -> Generator[Mappings, None, bool]:
    """Yield mappings from an address on, one per stride; return whether the kernel answers."""
    while True:
        try:
            piece, address = query_from(fd, address, STRIDE_BYTES)
        except OSError as error:
            if error.errno == errno.ENOTTY:
                return False
            raise
        if not len(piece):
            return True
        yield piece


def _whole(text: bytes, *, details: bool) -> int:
    """Return where the last whole mapping of a piece of text ends; 0 where there is none."""
    if not details:
        return text.rfind(b"\n") + 1
    # The flags are the last line of a mapping in smaps (show_smap()).
    return text.find(b"\n", text.rfind(b"\nVmFlags:") + 1) + 1 if b"\nVmFlags:" in text else 0


def compare_spaces(first: ProcessId, second: ProcessId, proc: Path = PROC) -> int | None:
    """Return below 0, 0 or above 0 as one address space orders before, is, or follows the other.

    By kcmp(2), KCMP_VM; 1 µs. None where the kernel does not answer: a process has exited, access
    is not permitted (CAP_SYS_PTRACE), or there is no kcmp(2).
    """
    answer = int(lib.hmd_compare_spaces(first.pid, second.pid))
    if answer == _EQUAL:
        return 0 if alive(first, proc) and alive(second, proc) else None
    return None if answer < 0 else -1 if answer == _LESS else 1
