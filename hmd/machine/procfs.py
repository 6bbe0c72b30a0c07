"""Reads and writes of the kernel's pseudo files (/proc, /sys).

Such a file may vanish between two reads (a process exits, a node goes offline), may be absent on
this kernel, or may be unreadable for this user. These are normal cases: a read returns ``None``. A
write raises the kernel's OSError. A read costs open, two reads and close, about 8 µs for a small
file.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

_ABSENT = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESRCH,  # the process has gone (proc(5))
        errno.ENODEV,  # the device or node has gone
        errno.EACCES,
        errno.EPERM,
        errno.EINVAL,
        errno.EIO,
        errno.EOPNOTSUPP,
    }
)
_CHUNK_BYTES = 1 << 16
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
# The kernel's own bounds are far lower (8192 CPUs, 1024 nodes); this one bounds the memory that a
# corrupt list can take.
_MAX_ID = 1 << 16


def absent(error: OSError) -> bool:
    """Return True where ``error`` means that a pseudo file is absent or not readable."""
    return error.errno in _ABSENT


def open_to_read(path: Path | str) -> int | None:
    """Return a descriptor of a pseudo file, which the caller closes; None as ``read_bytes``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if absent(error):
            return None
        raise


def read_bytes(path: Path | str, most_bytes: int | None = None) -> bytes | None:
    """Return all of a pseudo file, None where it is absent, has vanished or is not readable.

    With ``most_bytes`` only its start: for files whose length another user chooses.

    Other errors (EMFILE, ENOMEM) do not concern the file and are raised.
    """
    fd = open_to_read(path)
    if fd is None:
        return None
    try:
        if most_bytes is not None:
            return os.read(fd, most_bytes)
        parts = []
        while part := os.read(fd, _CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts)
    except OSError as error:
        if absent(error):
            return None
        raise
    finally:
        os.close(fd)


def read_text(path: Path | str) -> str | None:
    """Return a pseudo file as text without the trailing newline; None as ``read_bytes``."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "surrogateescape").rstrip("\n")


def read_int(path: Path | str) -> int | None:
    """Return the number that a pseudo file holds; None where there is none."""
    text = read_text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def write_text(path: Path, text: str) -> None:
    """Write to a pseudo file with one write(2). Raises the kernel's OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def chosen(text: str | None) -> str | None:
    """Return the word in brackets of a choice such as ``always [madvise] never``."""
    match = re.search(r"\[([^\]\s]+)\]", text or "")
    return match.group(1) if match else None


def parse_ids(text: str | None) -> tuple[int, ...]:
    """Return the ids of a kernel list such as ``0-3,8`` (cpulist, nodelist), ascending.

    Malformed parts are skipped: invalid data gives fewer ids, never an error.
    """
    ids: set[int] = set()
    for part in (text or "").split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            continue
        first = int(match.group(1))
        last = int(match.group(2)) if match.group(2) else first
        if last < _MAX_ID:
            ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_ids(ids: tuple[int, ...] | list[int]) -> str:
    """Return ids as a kernel list, the inverse of ``parse_ids``: ``(0, 1, 2, 8)`` is ``0-2,8``."""
    parts: list[str] = []
    for first, last in _runs(sorted(set(ids))):
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def _runs(ids: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            yield ids[start], ids[i - 1]
            start = i
