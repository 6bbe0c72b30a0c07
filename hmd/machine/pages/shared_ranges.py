"""Mappings whose pages other processes may map too: a part of a file, by what identifies the file.

Shared anonymous memory, memfd, POSIX and System V segments and files on tmpfs are files to the
kernel: /proc/PID/maps has device, inode and offset of each mapping (proc_pid_maps(5)).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from hmd.units import MIB, PAGE_BYTES

LEAST_BYTES: Final = 4 * MIB
"""Smaller mappings are not worth the search for others of their file."""
PROCESS_MOST: Final = 64
"""Mappings of a process that are followed, the largest."""

_OFFSETS_END: Final = 1 << 56
_SYSV: Final = "/SYSV"


class FileKey(NamedTuple):
    """A file: device and inode as maps prints them, and what distinguishes files of these.

    That is ``name``. The inode of a System V segment is its id, which a memfd's may equal
    (ipc/shm.c, newseg()). Subvolumes of btrfs have one device in maps, so that other files need
    their path, and ``namespace``, the mount namespace that it is valid in; 0 where there is none.
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
    """Return the mappings as those of a process in a mount namespace, 0 where it is not known.

    Of a process whose namespace is not known, only memory without a path can be identified.
    """
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
