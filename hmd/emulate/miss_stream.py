"""A miss recording: every last-level-cache miss of one CPU, as columns.

The emulated machine's plugin records it once (plugin/recording.h); ``hmd.emulate.replay`` replays
it with the program's pages placed in any way. It takes 24 bytes per miss in memory.

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

from hmd.emulate.miss_file import read_miss_file
from hmd.errors import HmdError
from hmd.trace.private_file import create_private
from hmd.units import PAGE_BYTES

_USER_END = np.uint64(1 << 47)
_KERNEL_PAGE = np.uint64(1 << 60)

_RECORD = np.dtype(
    [
        ("instructions", "<u8"),
        ("vaddr", "<u8"),
        ("line", "<u4"),
        ("paid_hits", "<u4"),
        ("near_hits", "<u4"),
        ("depends", "<u2"),
        ("flags", "u1"),
        ("pad", "u1"),
    ]
)


class MissFlag(IntFlag):
    """Kind of a row; ``COVERED`` by the prefetcher; ``WRITE_BACK`` and ``HALT`` are no accesses.

    ``STLB_HIT`` and ``WALK`` say how a load's page was translated. ``TABLE`` is no access of the
    program: a walk reads the page's entry in the page table.
    """

    STORE = 1
    KERNEL = 2
    HALT = 4
    COVERED = 8
    WRITE_BACK = 16
    STLB_HIT = 32
    WALK = 64
    TABLE = 128


@dataclass(frozen=True, slots=True)
class MissStream:
    """Misses in program order; columns of shape ``(n,)``, ``page_address`` of ``(pages,)``.

    ``instructions`` is cumulative. ``paid_hits`` are cache hits since the previous row that cost
    time, ``near_hits`` those of them soon after that row, by steps (timing.h). ``page`` indexes
    ``page_address``, ``line`` is the line in the page, ``flags`` of ``MissFlag``. ``depends`` is
    the distance, in load misses, to the miss that loaded this load's address; 0 for none.
    ``page_address`` is virtual up to ``user_pages``; the pages after it are the kernel's, by frame.
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

    def __len__(self) -> int:
        """Return the number of misses."""
        return len(self.instructions)

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
        """Write the columns to an ``.npz`` file (mode 0600), whole or not at all."""
        partial = path.with_suffix(".partial")
        with create_private(partial) as file:
            columns = {field.name: getattr(self, field.name) for field in fields(self)}
            np.savez(file, allow_pickle=False, **columns)
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that ``write`` wrote; raises HmdError for any other file."""
        return cls(**read_miss_file(path))


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
    """A recording: the stream, and the physical address of each page, shape ``(pages,)``."""

    stream: MissStream
    page_paddr: npt.NDArray[np.uint64]


def read_recording(path: Path, count: int) -> MissRecording:
    """Return the plugin's recording of ``count`` misses.

    Raises HmdError where the file has no room for all of them.
    """
    room = path.stat().st_size // _RECORD.itemsize
    if count > room:
        raise HmdError(f"{count:,} misses were recorded, with room for {room:,}: give more room")
    raw = np.fromfile(path, _RECORD, count)
    frame = (raw["line"] >> np.uint32(6)).astype(np.uint64)
    flags = raw["flags"].copy()
    key = _page_keys(raw, frame, flags)
    # A page's frame is that of an access to it: entries of page tables come last.
    order = np.argsort(flags & np.uint8(MissFlag.TABLE), kind="stable")
    keys, first, sorted_page = np.unique(key[order], return_index=True, return_inverse=True)
    page = np.empty(count, np.uint32)
    page[order] = sorted_page
    user = keys < _KERNEL_PAGE
    address = np.where(user, keys, keys & (_KERNEL_PAGE - np.uint64(1))) * np.uint64(PAGE_BYTES)
    instructions = raw["instructions"]
    stream = MissStream(
        instructions=instructions - (instructions[0] if count else 0),
        paid_hits=raw["paid_hits"].copy(),
        near_hits=raw["near_hits"].copy(),
        page=page,
        line=(raw["line"] & np.uint32(63)).astype(np.uint8),
        flags=flags,
        depends=raw["depends"].copy(),
        page_address=address,
        user_pages=int(user.sum()),
    )
    return MissRecording(stream, frame[order[first]] * np.uint64(PAGE_BYTES))


def _page_keys(
    raw: npt.NDArray[Any], frame: npt.NDArray[np.uint64], flags: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint64]:
    """Return the key of each miss's page: its virtual page number, or its frame with a marker."""
    vaddr = raw["vaddr"]
    table = (flags & np.uint8(MissFlag.TABLE)) != 0
    named = (vaddr != 0) & (vaddr < _USER_END) & ~table
    key = vaddr // np.uint64(PAGE_BYTES)
    # Sorted by frame, then time: an access without a virtual address belongs to the virtual page
    # that its frame held last, or, before the first, to the one that it will hold.
    order = np.argsort(frame, kind="stable")
    sorted_frame, sorted_named = frame[order], named[order]
    place = np.arange(len(order))
    before = np.maximum.accumulate(np.where(sorted_named, place, -1))
    after = np.minimum.accumulate(np.where(sorted_named, place, len(order))[::-1])[::-1]
    has_before = (before >= 0) & (sorted_frame[np.maximum(before, 0)] == sorted_frame)
    has_after = (after < len(order)) & (
        sorted_frame[np.minimum(after, len(order) - 1)] == sorted_frame
    )
    owner = np.where(has_before, before, np.where(has_after, after, 0))
    sorted_key = np.where(has_before | has_after, key[order][owner], sorted_frame | _KERNEL_PAGE)
    result = np.empty(len(order), np.uint64)
    result[order] = sorted_key
    result[table] = key[table]  # with the page that it maps
    halted = (flags & np.uint8(MissFlag.HALT)) != 0
    result[halted] = _KERNEL_PAGE
    return result
