"""Reading of the plugin's recording of misses: a file of records in the order of the host's time.

The records of one CPU are in the order of its instructions, up to marks, which other CPUs wrote for
it. hmd/emulate/plugin/recording.h describes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.miss_stream import MissFlag, MissRecording, MissStream
from hmd.emulate.recordings.recorded_frees import FreedPages, freed_pages, page_frees, split_frees
from hmd.emulate.recordings.thread_order import awake_ps, thread_order
from hmd.errors import HmdError
from hmd.units import PAGE_BYTES

_USER_END = np.uint64(1 << 47)
_KERNEL_PAGE = np.uint64(1 << 60)

#: A record of the file that the plugin writes (hmd/emulate/plugin/recording.h).
RECORD = np.dtype(
    [
        ("instructions", "<u8"),
        ("vaddr", "<u8"),
        ("line", "<u4"),
        ("paid_hits", "<u4"),
        ("near_hits", "<u4"),
        ("depends", "<u2"),
        ("flags", "u1"),
        ("cpu", "u1"),
    ]
)


def read_recording(path: Path, count: int) -> MissRecording:
    """Return the plugin's recording of ``count`` misses.

    Raises HmdError where the file has no room for all of them.
    """
    room = path.stat().st_size // RECORD.itemsize
    if count > room:
        raise HmdError(f"{count:,} misses were recorded, with room for {room:,}: give more room")
    raw, ranges = split_frees(np.fromfile(path, RECORD, count))
    count = len(raw)
    frame = (raw["line"] >> np.uint32(6)).astype(np.uint64)
    named = _named(raw)
    at = np.flatnonzero(named)
    freed = freed_pages(ranges, at, raw["vaddr"][at] // np.uint64(PAGE_BYTES))
    key = _page_keys(raw, frame, named, freed)
    # A page's frame is that of an access to it: entries of page tables come last.
    order = np.argsort(_is(raw, MissFlag.TABLE), kind="stable")
    keys, first, sorted_page = np.unique(key[order], return_index=True, return_inverse=True)
    page = np.empty(count, np.uint32)
    page[order] = sorted_page
    user = keys < _KERNEL_PAGE
    address = np.where(user, keys, keys & (_KERNEL_PAGE - np.uint64(1))) * np.uint64(PAGE_BYTES)
    rows, threads = thread_order(raw)
    sorted_raw = raw[rows]
    stream = MissStream(
        instructions=_since_first(sorted_raw),
        paid_hits=_hits(sorted_raw),
        near_hits=_near_hits(sorted_raw),
        page=page[rows],
        line=(sorted_raw["line"] & np.uint32(63)).astype(np.uint8),
        flags=sorted_raw["flags"].copy(),
        depends=np.where(_is(sorted_raw, MissFlag.HALT), 0, sorted_raw["depends"]).astype(
            np.uint16
        ),
        page_address=address,
        user_pages=int(user.sum()),
        threads=threads,
        frees=page_frees(freed, keys[user]),
    )
    return MissRecording(stream, frame[order[first]] * np.uint64(PAGE_BYTES), awake_ps(raw) * 1e-12)


def _is(raw: npt.NDArray[Any], flag: MissFlag) -> npt.NDArray[np.bool_]:
    return np.asarray((raw["flags"] & np.uint8(flag)) != 0)


def _begins(raw: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first row of each CPU, of rows in the order of CPUs."""
    return np.flatnonzero(np.diff(raw["cpu"].astype(np.int64), prepend=-1))


def _since_first(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    begins = _begins(raw)
    rows = np.diff(np.append(begins, len(raw)))
    return np.asarray(raw["instructions"] - np.repeat(raw["instructions"][begins], rows))


def _hits(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the paid hits before each row; a mark gets a share of those before the next miss."""
    hits = raw["paid_hits"].astype(np.int64)
    hits[_begins(raw)] = 0  # of before the recording
    if not np.any(marked := raw["flags"] == MissFlag.MARK):
        return hits.astype(np.uint32)
    # Strictly ascending over all CPUs, so that one interpolation serves them.
    at = np.cumsum(np.append(0, np.maximum(np.diff(raw["instructions"].astype(np.int64)), 0)))
    own = np.flatnonzero(~marked)
    passed = np.interp(at, at[own], np.cumsum(hits[own])).astype(np.int64)
    passed[own] = np.cumsum(hits[own])
    return np.diff(np.maximum.accumulate(passed), prepend=0).astype(np.uint32)


def _near_hits(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the hits soon after the row before; unknown after a mark."""
    near = raw["near_hits"].copy()
    near[_begins(raw)] = 0
    near[1:][(raw["flags"] == MissFlag.MARK)[:-1]] = 0
    return np.asarray(near)


def _named(raw: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return the rows that have the virtual address of a page of the program."""
    vaddr = np.where(_is(raw, MissFlag.HALT), np.uint64(0), raw["vaddr"])
    named: npt.NDArray[np.bool_] = (vaddr != 0) & (vaddr < _USER_END)
    return named & ~_is(raw, MissFlag.TABLE)


def _page_keys(
    raw: npt.NDArray[Any],
    frame: npt.NDArray[np.uint64],
    named: npt.NDArray[np.bool_],
    freed: FreedPages,
) -> npt.NDArray[np.uint64]:
    """Return the key of each miss's page: its virtual page number, or its frame with a marker."""
    rows = len(raw)
    key = np.where(_is(raw, MissFlag.HALT), np.uint64(0), raw["vaddr"]) // np.uint64(PAGE_BYTES)
    table = _is(raw, MissFlag.TABLE)
    # Sorted by frame, then time: an access without a virtual address belongs to the virtual page
    # that its frame held last, or, before the first, to the one that it will hold. A page that is
    # given back holds it no longer; its row here comes before that of the next miss. What is
    # written back to the frame from then on is of no page, since the next is not there yet.
    frame = np.concatenate((frame, frame[freed.accessed]))
    times = np.concatenate((np.arange(rows) * 2 + 1, freed.row * 2))
    order = np.lexsort((times, frame))
    is_free = order >= rows
    sorted_frame = frame[order]
    sorted_named = np.append(named, np.zeros(len(freed.row), np.bool_))[order]
    place = np.arange(len(order))
    before = np.maximum.accumulate(np.where(sorted_named | is_free, place, -1))
    last = np.maximum(before, 0)
    given_back = is_free[last] & (sorted_frame[last] == sorted_frame)
    before = np.where(is_free[last], -1, before)
    after = np.minimum.accumulate(np.where(sorted_named, place, len(order))[::-1])[::-1]
    has_before = (before >= 0) & (sorted_frame[np.maximum(before, 0)] == sorted_frame)
    has_after = (after < len(order)) & (
        sorted_frame[np.minimum(after, len(order) - 1)] == sorted_frame
    )
    written = np.append(_is(raw, MissFlag.WRITE_BACK), np.zeros(len(freed.row), np.bool_))[order]
    has_after &= ~(written & given_back)
    owner = np.where(has_before, before, np.where(has_after, after, 0))
    keys = np.append(key, freed.page)[order]
    sorted_key = np.where(has_before | has_after, keys[owner], sorted_frame | _KERNEL_PAGE)
    result = np.empty(len(order), np.uint64)
    result[order] = sorted_key
    result = result[:rows]
    result[table] = key[table]  # with the page that it maps
    result[_is(raw, MissFlag.HALT)] = _KERNEL_PAGE
    return result
