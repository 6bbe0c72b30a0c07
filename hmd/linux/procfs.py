# SPDX-License-Identifier: MIT
"""Reads and writes of /proc and /sys, and the identity of a process.

Such a file may vanish between two reads (a process exits, a node goes offline), may be absent on
this kernel, or may be unreadable for this user: a read then returns ``None``, and a write raises
the kernel's OSError. A read of a small file costs about 8 µs.

A pid alone identifies no process, since the kernel reuses it; a pid with its start time does (field
22 of /proc/PID/stat, proc_pid_stat(5)).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hmd.base.units import PAGE_BYTES

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

PROC = Path("/proc")
SYSFS = Path("/sys")
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_STAT_BYTES = 1024  # 52 numbers of at most 20 digits, and a name of at most 64 bytes
_UIDS = re.compile(rb"^Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", re.MULTILINE)
_GIDS = re.compile(rb"^Gid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", re.MULTILINE)
_PERMITTED = re.compile(rb"^CapPrm:\s+([0-9a-f]+)$", re.MULTILINE)


def absent(error: OSError) -> bool:
    """Return True where ``error`` means that a pseudo file is absent or not readable."""
    return error.errno in _ABSENT


@contextmanager
def unless_absent() -> Iterator[None]:
    """Leave the block where a pseudo file in it is absent, has vanished or is not readable."""
    try:
        yield
    except OSError as error:
        if not absent(error):
            raise


def open_to_read(path: Path | str) -> int | None:
    """Return a descriptor of a pseudo file, which the caller closes; None as ``read_bytes``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if absent(error):
            return None
        raise


def read_bytes(path: Path | str, max_bytes: int | None = None) -> bytes | None:
    """Return a pseudo file, None where it is absent, has vanished or is not readable.

    With ``max_bytes`` only its start: for files whose length another user chooses. Other errors
    (EMFILE, ENOMEM) do not concern the file and are raised.
    """
    fd = open_to_read(path)
    if fd is None:
        return None
    try:
        if max_bytes is not None:
            return os.read(fd, max_bytes)
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


def list_pids(proc: Path = PROC) -> list[int]:
    """Return the pids of all processes, ascending."""
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())  # noqa: PTH208


def mounts(types: Container[str], proc: Path = PROC) -> list[tuple[str, str]]:
    """Return device (MAJOR:MINOR) and mount point of file systems of some types (mountinfo)."""
    lines = (line.split() for line in (read_text(proc / "self/mountinfo") or "").splitlines())
    return [(line[2], line[4]) for line in lines if line[line.index("-") + 1] in types]


def parse_ids(text: str | None) -> tuple[int, ...]:
    """Return the ids of a kernel list (``0-3,8``), ascending; malformed parts are skipped."""
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
    # Of consecutive ids, each is as far from its place.
    for _, run in groupby(enumerate(sorted(set(ids))), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        parts.append("-".join(str(number) for number in sorted({numbers[0], numbers[-1]})))
    return ",".join(parts)


class ProcessId(NamedTuple):
    """A process: its pid, and its start time in clock ticks since boot.

    A named tuple: a set of 10,000 takes a sixth of the time that it takes of frozen dataclasses.
    """

    pid: int
    start_ticks: int


@dataclass(slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that hmd needs; ``cpu_ticks`` is user and system time.

    ``state`` is that of the first thread, ``threads`` the number of all that have not ended.

    Not frozen: a scan makes one per process, and a frozen instance costs three times as much.
    """

    pid: int
    start_ticks: int
    parent_pid: int
    name: bytes
    state: bytes
    flags: int
    cpu_ticks: int
    resident_bytes: int
    threads: int = 1

    @property
    def process(self) -> ProcessId:
        """The identity."""
        return ProcessId(self.pid, self.start_ticks)

    @property
    def kernel_thread(self) -> bool:
        """True for a kernel thread, which has no memory of its own."""
        return bool(self.flags & _PF_KTHREAD)

    @property
    def exited(self) -> bool:
        """True for a process all of whose threads have ended, until its parent reaps it."""
        return self.state in (b"Z", b"X", b"x") and self.threads <= 1

    @property
    def has_memory(self) -> bool:
        """True for a process with pages of its own."""
        return not self.kernel_thread and not self.exited


def parse_stat(data: bytes) -> ProcessStat | None:
    """Return the fields of /proc/PID/stat, None if malformed; a name may have spaces and ``)``."""
    opening = data.find(b"(")
    closing = data.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    fields = data[closing + 1 :].split(None, 23)
    try:
        return ProcessStat(
            pid=int(data[:opening]),
            start_ticks=int(fields[19]),
            parent_pid=int(fields[1]),
            name=data[opening + 1 : closing],
            state=fields[0],
            flags=int(fields[6]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            resident_bytes=int(fields[21]) * PAGE_BYTES,
            threads=int(fields[17]),
        )
    except (IndexError, ValueError):
        return None


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Return the status of ``pid`` now, None where there is no such process; about 20 µs."""
    # Text costs a third of a Path, which counts with 10,000 processes.
    data = read_bytes(f"{proc}/{pid}/stat", _STAT_BYTES)
    return parse_stat(data) if data else None


def read_stat_fields(pid: int, proc: Path = PROC) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third, the state, on; none after its exit."""
    data = read_bytes(f"{proc}/{pid}/stat", _STAT_BYTES) or b""
    return data[data.rfind(b")") + 1 :].split()


def read_live_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Return the status of ``pid``, or of another of its threads where the first has ended.

    Memory is then seen by the other's id alone: /proc/PID/maps of the first is empty, and
    move_pages(2) refuses it. Its ``process`` is that thread.
    """
    stat = read_stat(pid, proc)
    if stat is None or stat.state != b"Z" or stat.exited:
        return stat
    try:
        threads = sorted(int(name) for name in os.listdir(proc / str(pid) / "task"))  # noqa: PTH208
    except OSError:
        return stat
    others = (read_stat(thread, proc) for thread in threads if thread != pid)
    return next((other for other in others if other and other.state != b"Z"), stat)


def identify(pid: int, proc: Path = PROC) -> ProcessId | None:
    """Return the identity of ``pid`` now, None where there is no such process."""
    stat = read_stat(pid, proc)
    return stat.process if stat else None


def alive(process: ProcessId, proc: Path = PROC) -> bool:
    """Return True while ``process`` runs: its pid exists, and is not another's or only unreaped."""
    stat = read_stat(process.pid, proc)
    return stat is not None and stat.process == process and not stat.exited


def replaced(process: ProcessId, proc: Path = PROC) -> bool:
    """Return True where the pid of ``process`` has been given to another."""
    stat = read_stat(process.pid, proc)
    return stat is not None and stat.process != process


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What the kernel compares before one process may read another (ptrace(2), kernel/ptrace.c).

    Real, effective, saved and file system ids. ``capable``: it has permitted capabilities.
    ``dumpable``: its memory is its user's to read (PR_SET_DUMPABLE(2const)). ``same_namespace``:
    its user namespace is the daemon's.
    """

    real_uid: int
    real_gid: int
    uids: frozenset[int]
    gids: frozenset[int]
    capable: bool
    dumpable: bool
    same_namespace: bool


def read_identity(process: ProcessId, proc: Path = PROC) -> ProcessIdentity | None:
    """Return the identity of a process now, None where it has exited."""
    folder = proc / str(process.pid)
    status = read_bytes(folder / "status") or b""
    uids, gids, permitted = (field.search(status) for field in (_UIDS, _GIDS, _PERMITTED))
    owner = _owner(folder / "maps")
    own_namespace = _link(proc / "self/ns/user")
    namespace = _link(folder / "ns/user")
    # The pid may have been reused meanwhile: what was read belongs to this process only if the pid
    # still does.
    if uids is None or gids is None or permitted is None or identify(process.pid, proc) != process:
        return None
    effective_uid = int(uids.group(2))
    return ProcessIdentity(
        real_uid=int(uids.group(1)),
        real_gid=int(gids.group(1)),
        uids=frozenset(map(int, uids.groups())),
        gids=frozenset(map(int, gids.groups())),
        capable=int(permitted.group(1), 16) != 0,
        dumpable=owner == effective_uid,
        same_namespace=namespace is not None and namespace == own_namespace,
    )


def _owner(path: Path) -> int | None:
    """Return the owner of a file in /proc/PID: root where the process is not dumpable (proc(5))."""
    with unless_absent():
        return path.stat().st_uid
    return None


def _link(path: Path) -> str | None:
    with unless_absent():
        return os.readlink(path)  # noqa: PTH115 - a link to no path: user:[4026531837]
    return None
