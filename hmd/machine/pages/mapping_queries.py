"""The mappings that some addresses fall into: the ioctl PROCMAP_QUERY of /proc/PID/maps.

Linux 6.11 (include/uapi/linux/fs.h). A query takes about 0.8 µs and the target's locks for one
mapping, whatever the number of its mappings, where the text of a million takes seconds. Addresses
in a mapping or a gap that the query before has shown need none. Kernels before answer by the text,
of which a bounded part is read.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.machine.pages.mappings import Mappings, mappings_of, parse_maps
from hmd.machine.process_id import PROC
from hmd.machine.procfs import absent, open_to_read

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
_PIECE_BYTES: Final = 1 << 15


def mappings_at(pid: int, addresses: Addresses, proc: Path = PROC) -> Mappings | None:
    """Return the mappings that contain any of the addresses; None as ``read_mappings``.

    Time and memory follow the number of addresses. Without PROCMAP_QUERY the first ``TEXT_BYTES``
    of maps are read at most, so that mappings beyond are missing.
    """
    fd = open_to_read(proc / str(pid) / "maps")
    if fd is None:
        return None
    rising = bool((addresses[1:] >= addresses[:-1]).all())
    ascending = np.ascontiguousarray(addresses) if rising else np.sort(addresses)
    try:
        try:
            return query_at(fd, ascending)
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise
        return _text_at(fd, ascending)
    except OSError as error:
        if absent(error):
            return None
        raise
    finally:
        os.close(fd)


def query_at(fd: int, addresses: Addresses) -> Mappings:
    """Return the mappings that contain any of the ascending addresses.

    ``fd`` is /proc/PID/maps. OSError: ENOTTY before Linux 6.11, ESRCH after exit.
    """
    rows, names = np.zeros(min(ROWS, max(1, len(addresses))), _ROW), ffi.new("char[]", _NAMES_BYTES)
    done, found = ffi.new("size_t *"), list[Mappings]()
    while True:
        count = _checked(
            lib.hmd_mappings_at(
                fd,
                len(addresses),
                ffi.from_buffer("uint64_t[]", addresses),
                len(rows),
                ffi.from_buffer("struct hmd_mapping[]", rows, require_writable=True),
                _NAMES_BYTES,
                names,
                done,
            )
        )
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
    at = ffi.new("uint64_t *", address)
    count = _checked(
        lib.hmd_mappings_from(
            fd,
            at,
            stride_bytes,
            ROWS,
            ffi.from_buffer("struct hmd_mapping[]", rows, require_writable=True),
            _NAMES_BYTES,
            names,
        )
    )
    return _mappings(rows[:count], names), int(at[0])


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


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
    while len(addresses) and left > 0 and (data := os.read(fd, _PIECE_BYTES)):
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
