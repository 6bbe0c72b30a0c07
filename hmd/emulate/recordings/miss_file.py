"""The file of a miss recording, an ``.npz`` of columns, checked in full as it is read.

A file may come from elsewhere, and its columns are indices and sizes for the native replay: each
value is checked before anything uses it. Sizes are checked against the file's own size before
memory is taken for them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import numpy.typing as npt

from hmd.errors import HmdError
from hmd.numpy_archive import DAMAGED, reason_of
from hmd.units import PAGE_BYTES

MAX_INSTRUCTIONS: Final = 1 << 42
"""Instructions, and cache hits, of a recording: a quarter of an hour at 5 GHz."""
MAX_DEPENDENCE: Final = 1023
"""TIMING_MAX_DEPENDENCE of timing.h."""
MAX_PAGES: Final = 1 << 28
_FLAGS: Final = 255
MAX_CPUS: Final = 16
"""TIMING_MAX_VCPUS of timing.h."""
_LINES: Final = 64
_USER_END: Final = 1 << 47
# The header as numpy writes it (numpy.lib.format, version 1.0). Its own reader evaluates Python.
_MAGIC: Final = b"\x93NUMPY\x01\x00"
_START: Final = struct.Struct("<8sH")
_HEADER: Final = re.compile(
    rb"\{'descr': '([<|][a-z]\d)', 'fortran_order': False, 'shape': \((?:(\d{1,12}),)?\), \} *\n"
)

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
# Only of recordings of several CPUs; meets_at is stored row by row.
_OF_THREADS: Final[Mapping[str, str]] = {"cpu_rows": "<i8", "meets_at": "<u8"}

# Only of recordings that know which pages the program gave back.
_OF_FREES: Final[Mapping[str, str]] = {"free_row": "<i8", "free_page": "<u4"}


def read_miss_file(path: Path) -> dict[str, Any]:
    """Return the columns, and the number ``user_pages``; raises HmdError for any other file.

    Those of several CPUs have ``cpu_rows``, and ``meets_at`` of shape ``(meetings, cpus)``; some
    of one CPU have ``free_row`` and ``free_page``.
    """
    try:
        with path.open("rb") as file, ZipFile(file) as archive:
            size = path.stat().st_size
            wanted = {**_DTYPES}
            if "cpu_rows.npy" in archive.namelist():
                wanted |= _OF_THREADS
            if "free_row.npy" in archive.namelist():
                wanted |= _OF_FREES
            found = {name: _member(archive, name, descr, size) for name, descr in wanted.items()}
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


def _member(archive: ZipFile, name: str, descr: str, file_bytes: int) -> npt.NDArray[Any]:
    """Return one array, which is as large as the archive says, and no larger than the file."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != ZIP_STORED or info.file_size > file_bytes:
        raise ValueError(f"{name} is not stored as it is")
    with archive.open(info) as member:
        start = member.read(_START.size)
        length = _START.unpack(start)[1] if len(start) == _START.size else 0
        header = _HEADER.fullmatch(member.read(length))
        if not start.startswith(_MAGIC) or header is None:
            raise ValueError(f"{name} is no column")
        data = member.read()
    stored, count = header.groups()
    dtype, scalar = np.dtype(descr), name == "user_pages"
    if stored.decode() != descr or scalar != (not count):
        raise ValueError(f"{name} is of another type")
    if len(data) != dtype.itemsize * int(count or 1):
        raise ValueError(f"{name} is not whole")
    column: npt.NDArray[Any] = np.frombuffer(bytearray(data), dtype)
    return column[0] if scalar else column


def _check(found: Mapping[str, Any]) -> None:
    """Raise ValueError where a value is out of its range."""
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
