"""What the kernel compares before one process may read another (ptrace(2), kernel/ptrace.c)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hmd.machine.process_id import PROC, ProcessId, identify
from hmd.machine.procfs import absent, read_bytes

_UIDS = re.compile(rb"^Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", re.MULTILINE)
_GIDS = re.compile(rb"^Gid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", re.MULTILINE)
_PERMITTED = re.compile(rb"^CapPrm:\s+([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Whose a process is: its real, effective, saved and file system ids, and what protects it.

    ``capable``: it has permitted capabilities. ``dumpable``: its memory is its user's to read
    (PR_SET_DUMPABLE(2const)). ``same_namespace``: its user namespace is the daemon's.
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
    try:
        return path.stat().st_uid
    except OSError as error:
        if absent(error):
            return None
        raise


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - a link to no path: user:[4026531837]
    except OSError as error:
        if absent(error):
            return None
        raise
