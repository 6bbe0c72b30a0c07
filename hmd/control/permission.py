"""Who may request what: root and the daemon's user everything, other users for their processes.

The caller is identified by the credentials that the kernel took when it connected (SO_PEERCRED,
unix(7)). A user owns a process whose four user ids are all the user's own: a set-user-ID program
is not owned by the user who runs it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from hmd.control.request import Peer
from hmd.errors import NotPermittedError, TargetError
from hmd.machine.process_id import PROC, ProcessId, identify, read_stat
from hmd.machine.procfs import read_bytes, read_int, read_text

ROOT: Final = 0
_ALL_UIDS: Final = str(2**32 - 1)
_UIDS = re.compile(rb"^Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", re.MULTILINE)


def is_administrator(peer: Peer, own_uid: int | None = None) -> bool:
    """Return whether a caller is root or the daemon's user (``own_uid``, by default our own)."""
    return peer.uid in (ROOT, os.geteuid() if own_uid is None else own_uid)


def check_administrator(peer: Peer, what: str, own_uid: int | None = None) -> None:
    """Raise ``NotPermittedError`` unless the caller is root or the daemon's user."""
    if not is_administrator(peer, own_uid):
        raise NotPermittedError(
            f"only root and the daemon's user may {what}: you are uid {peer.uid}; try sudo"
        )


def check_owner(
    peer: Peer, process: ProcessId, what: str, proc: Path = PROC, own_uid: int | None = None
) -> None:
    """Raise ``NotPermittedError`` for another user's process, ``TargetError`` for an exited one."""
    if is_administrator(peer, own_uid):
        return
    check_known(peer, proc)
    owners = owner_uids(process, proc)
    if owners is None:
        raise TargetError(f"process {process.pid} has exited: name another")
    if owners != {peer.uid}:
        uids = ", ".join(map(str, sorted(owners)))
        raise NotPermittedError(
            f"process {process.pid} belongs to uid {uids}, you are uid {peer.uid}: "
            f"only its owner, root and the daemon's user may {what}"
        )


def check_known(peer: Peer, proc: Path = PROC) -> None:
    """Raise ``NotPermittedError`` for a user whom the daemon's user namespace does not map.

    All such users have one uid there (user_namespaces(7), kernel.overflowuid), and are not the
    user who has that uid.
    """
    if peer.uid != read_int(proc / "sys/kernel/overflowuid"):
        return
    mapped = (read_text(proc / "self/uid_map") or "").split()
    if mapped and mapped != ["0", "0", _ALL_UIDS]:
        raise NotPermittedError(
            "the daemon's user namespace does not map your uid: ask as its root"
        )


def check_caller(peer: Peer, proc: Path = PROC) -> None:
    """Raise ``TargetError`` where the caller has exited; pid 0 is in another pid namespace."""
    stat = read_stat(peer.pid, proc) if peer.pid else None
    if peer.pid and (stat is None or stat.exited):
        raise TargetError(
            f"process {peer.pid}, which sent the request, has exited: nothing is done"
        )


def owner_uids(process: ProcessId, proc: Path = PROC) -> set[int] | None:
    """Return the real, effective, saved and file system uid; None where the process has exited."""
    status = read_bytes(proc / str(process.pid) / "status")
    found = _UIDS.search(status) if status else None
    # The pid may have been reused meanwhile: what was read belongs to this process only if the pid
    # still does.
    if found is None or identify(process.pid, proc) != process:
        return None
    return {int(uid) for uid in found.groups()}
