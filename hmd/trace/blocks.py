# SPDX-License-Identifier: MIT
"""The blocks of a trace file: each a table of columns, compressed, with its own checksum.

A file is a header and then blocks. Each block decompresses without the others, so that a recorder
needs bounded memory and a truncated file is valid up to its last whole block; what some blocks say
needs earlier ones (the paths of mappings, the processes of rows). docs/reference/trace-format.md
has the layout byte by byte.

Columns are stored one after the other with their bytes transposed (all first bytes, all second
bytes, ...; as HDF5's shuffle filter does) and deflated: addresses share their high bytes, and
times, stored as differences, are mostly zeros. A sample costs about 40 ns to write, 15 to read.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt

MAGIC: Final = b"HMDTRACE"
VERSION: Final = 1
_HEADER = struct.Struct("<8sII")  # magic, version, CRC-32 of the twelve bytes before
# Tag, rows, length of the description, length of the data, CRC-32 of both, CRC-32 of this header
# before it.
_BLOCK = struct.Struct("<4sIIQII")
MAX_ROWS: Final = 1 << 20
"""Most rows of a block; a reader refuses more, so that damage cannot ask for all memory."""
_MAX_DESCRIPTION = 1 << 16
_MAX_CELL_BYTES = 8
_MAX_ROW_BYTES = 64
_LEVEL = 1

Table: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Columns by name, all of the same length."""

_SORTED = frozenset({"time_ns"})
"""Columns stored as differences, because they mostly grow."""


class DamageError(ValueError):
    """A block is not whole: the file is truncated there, or its bytes have changed."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: ``tag`` names the kind of its rows, ``words`` holds for all of them."""

    tag: str
    words: Mapping[str, Any]
    columns: Table

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


def write_header(file: BinaryIO) -> None:
    """Write the header of a trace."""
    start = _HEADER.pack(MAGIC, VERSION, 0)[:12]
    file.write(start + struct.pack("<I", zlib.crc32(start)))


def read_header(file: BinaryIO) -> int:
    """Return the version of the format; DamageError if this is no trace."""
    data = file.read(_HEADER.size)
    if len(data) < _HEADER.size or data[:8] != MAGIC:
        raise DamageError("it does not begin as a trace does")
    _, version, crc = _HEADER.unpack(data)
    if crc != zlib.crc32(data[:12]):
        raise DamageError("its header is damaged")
    return int(version)


def write_block(file: BinaryIO, tag: str, words: Mapping[str, Any], columns: Table) -> None:
    """Append one block; ``columns`` have the same length, ``words`` are JSON."""
    rows = len(next(iter(columns.values()), ()))
    described = {
        "words": dict(words),
        "columns": [[name, column.dtype.str] for name, column in columns.items()],
    }
    description = json.dumps(described, separators=(",", ":")).encode()
    raw = b"".join(_stored(name, column) for name, column in columns.items())
    data = zlib.compress(raw, _LEVEL)
    crc = zlib.crc32(data, zlib.crc32(description))
    head = _BLOCK.pack(tag.encode("ascii"), rows, len(description), len(data), crc, 0)[:-4]
    # One write: a killed recorder leaves a whole block or a truncated last one, never a gap.
    file.write(head + struct.pack("<I", zlib.crc32(head)) + description + data)


def read_block(file: BinaryIO) -> Block | None:
    """Return the next block, None at the end of the file.

    Raises DamageError if the block is truncated, its checksum is wrong or its fields are invalid.
    """
    head = file.read(_BLOCK.size)
    if not head:
        return None
    if len(head) < _BLOCK.size:
        raise DamageError("it ends within a block")
    tag, rows, described, length, crc, head_crc = _BLOCK.unpack(head)
    if head_crc != zlib.crc32(head[:-4]):
        raise DamageError("the head of a block is damaged")
    if rows > MAX_ROWS or described > _MAX_DESCRIPTION:
        raise DamageError("a block is larger than any writer makes it")
    description = file.read(described)
    data = _read_exactly(file, length)
    if len(description) < described or data is None:
        raise DamageError("it ends within a block")
    if crc != zlib.crc32(data, zlib.crc32(description)):
        raise DamageError("a block is damaged")
    try:
        return _parsed(tag.decode("ascii"), rows, description, data)
    except (
        ValueError, TypeError, KeyError, AttributeError, SyntaxError, RecursionError, zlib.error,
    ) as error:  # fmt: skip
        raise DamageError(f"a block is invalid ({error})") from None


def _read_exactly(file: BinaryIO, length: int) -> bytes | None:
    """Return this many bytes, None if the file ends earlier; no length is trusted in advance."""
    parts = []
    while length > 0:
        part = file.read(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _parsed(tag: str, rows: int, description: bytes, data: bytes) -> Block:
    described = json.loads(description)
    if not isinstance(described["words"], dict):
        raise ValueError("words without names")
    layout = [(str(name), np.dtype(str(dtype))) for name, dtype in described["columns"]]
    if any(d.kind not in "uif" or not 0 < d.itemsize <= _MAX_CELL_BYTES for _, d in layout):
        raise ValueError("a column of no plain numbers")
    row_bytes = sum(dtype.itemsize for _, dtype in layout)
    if row_bytes > _MAX_ROW_BYTES or len(dict(layout)) < len(layout):
        raise ValueError("too many columns")
    expected = rows * row_bytes
    inflater = zlib.decompressobj()
    raw = inflater.decompress(data, expected + 1)
    if len(raw) != expected:
        raise ValueError(f"{len(raw)} bytes instead of {expected}")
    columns, start = {}, 0
    for name, dtype in layout:
        end = start + rows * dtype.itemsize
        columns[name] = _restored(name, dtype, raw[start:end])
        start = end
    return Block(tag, described["words"], columns)


def _stored(name: str, column: npt.NDArray[Any]) -> bytes:
    """Return a column's bytes, transposed."""
    values = np.ascontiguousarray(column)
    if name in _SORTED:
        values = np.diff(values, prepend=values.dtype.type(0))  # wraps around, and back again
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes() if len(values) else b""


def _restored(name: str, dtype: np.dtype[Any], raw: bytes) -> npt.NDArray[Any]:
    if not raw:
        return np.empty(0, dtype)
    shuffled = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    values: npt.NDArray[Any] = np.ascontiguousarray(shuffled.T).view(dtype).reshape(-1)
    return np.cumsum(values, dtype=dtype) if name in _SORTED else values
