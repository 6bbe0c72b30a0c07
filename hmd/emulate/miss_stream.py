"""A recorded stream of what went on behind the last-level cache of one CPU, as columns.

Recorded once by the emulated machine's plugin (plugin/recording.h), replayed by
``hmd.emulate.replay`` with the program's pages placed in any way. 24 bytes a miss in memory.

Pages are numbered. Those of the program are told apart by virtual address; the kernel's
accesses to their frames (clearing, copying) and write-backs count for them. What remains is the
kernel's own memory, told apart by frame.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntFlag
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from hmd.errors import HmdError
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
    """What went on; ``COVERED`` by the prefetcher, ``WRITE_BACK`` and ``HALT`` are no accesses."""

    STORE = 1
    KERNEL = 2
    HALT = 4
    COVERED = 8
    WRITE_BACK = 16


@dataclass(frozen=True, slots=True)
class MissStream:
    """Misses in order; columns of shape ``(n,)``, but for ``page_address`` of ``(pages,)``.

    ``instructions`` is cumulative; ``paid_hits`` are cache hits since the row before that cost
    time, ``near_hits`` those of them soon after it, by steps (timing.h). ``page`` indexes
    ``page_address``, ``line`` is that in the page, ``flags`` of ``MissFlag``; ``depends``
    is how many load misses before the one was that a load's address came with, 0 for none.
    ``page_address`` is virtual; of the kernel's own pages it is that of the frame, and they are
    those from ``user_pages`` on.
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
        """Number of pages, the kernel's own too."""
        return len(self.page_address)

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return the columns in the order that the native module takes them."""
        return [getattr(self, field.name) for field in fields(self)[:7]]

    def sampled(self) -> npt.NDArray[np.bool_]:
        """Return which rows a PMU counts as misses of the program: its accesses in user mode."""
        others = MissFlag.KERNEL | MissFlag.HALT | MissFlag.WRITE_BACK
        return np.asarray((self.flags & np.uint8(others)) == 0)

    def write(self, path: Path) -> None:
        """Write the columns to an ``.npz`` file, whole or not at all."""
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            columns = {field.name: getattr(self, field.name) for field in fields(self)}
            np.savez(file, allow_pickle=False, **columns)
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` wrote; raises ``HmdError`` when the file is something else."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as columns:
                found = {field.name: columns[field.name] for field in fields(cls)}
        except OSError as error:
            raise HmdError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, AttributeError, BadZipFile, EOFError) as error:
            raise HmdError(
                f"{path} holds no recorded misses: make them with hmd simulate --record"
            ) from error
        return cls(**found | {"user_pages": int(found["user_pages"])})


@dataclass(frozen=True, slots=True)
class MissOutcomes:
    """What each miss cost, shape ``(n,)``: latency as PEBS weighs it, and when it was issued.

    ``clock_ps`` is modelled time that the CPU had been busy.
    """

    latency_ps: npt.NDArray[np.uint32]
    clock_ps: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return columns to be filled."""
        return cls(np.empty(count, np.uint32), np.empty(count, np.uint64))


@dataclass(frozen=True, slots=True)
class MissRecording:
    """A recording as it was made: the stream, and the frame that each page lay in."""

    stream: MissStream
    page_paddr: npt.NDArray[np.uint64]


def read_recording(path: Path, count: int) -> MissRecording:
    """Return a recording of ``count`` misses that the plugin has made.

    Raises ``HmdError`` where the file had no room for all of them.
    """
    room = path.stat().st_size // _RECORD.itemsize
    if count > room:
        raise HmdError(f"{count:,} misses were recorded, with room for {room:,}: give more room")
    raw = np.fromfile(path, _RECORD, count)
    frame = (raw["line"] >> np.uint32(6)).astype(np.uint64)
    flags = raw["flags"].copy()
    key = _page_keys(raw, frame, flags)
    keys, first, page = np.unique(key, return_index=True, return_inverse=True)
    user = keys < _KERNEL_PAGE
    address = np.where(user, keys, keys & (_KERNEL_PAGE - np.uint64(1))) * np.uint64(PAGE_BYTES)
    instructions = raw["instructions"]
    stream = MissStream(
        instructions=instructions - (instructions[0] if count else 0),
        paid_hits=raw["paid_hits"].copy(),
        near_hits=raw["near_hits"].copy(),
        page=page.astype(np.uint32),
        line=(raw["line"] & np.uint32(63)).astype(np.uint8),
        flags=flags,
        depends=raw["depends"].copy(),
        page_address=address,
        user_pages=int(user.sum()),
    )
    return MissRecording(stream, frame[first] * np.uint64(PAGE_BYTES))


def _page_keys(
    raw: npt.NDArray[Any], frame: npt.NDArray[np.uint64], flags: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint64]:
    """Return each miss's page: its virtual number, or that of its frame with a mark."""
    vaddr = raw["vaddr"]
    named = (vaddr != 0) & (vaddr < _USER_END)
    key = vaddr // np.uint64(PAGE_BYTES)
    # By frame, and in order of time: a nameless access belongs to the name its frame had last,
    # or, before it had any, to the one that it gets first.
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
    halted = (flags & np.uint8(MissFlag.HALT)) != 0
    result[halted] = _KERNEL_PAGE
    return result
