"""Who may order what: root and the daemon's own user everything, others only for their processes.

The caller is who the kernel says it was when it connected (SO_PEERCRED, unix(7)). A process is
somebody's if all four of its user ids are his: what runs with others' rights is not.
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


def commands_all(peer: Peer, own_uid: int | None = None) -> bool:
    """Tell whether a caller may order anything; ``own_uid`` is the daemon's, its own if None."""
    return peer.uid in (ROOT, os.geteuid() if own_uid is None else own_uid)


def check_administrator(peer: Peer, what: str, own_uid: int | None = None) -> None:
    """Raise ``NotPermittedError`` where a caller may not order what concerns all."""
    if not commands_all(peer, own_uid):
        raise NotPermittedError(
            f"only root and the daemon's user may {what}: you are uid {peer.uid}; try sudo"
        )


def check_owner(
    peer: Peer, process: ProcessId, what: str, proc: Path = PROC, own_uid: int | None = None
) -> None:
    """Raise ``NotPermittedError`` for another user's process, ``TargetError`` for an exited one."""
    if commands_all(peer, own_uid):
        return
    check_known(peer, proc)
    owners = owner_uids(process, proc)
    if owners is None:
        raise TargetError(f"process {process.pid} has exited: name another")
    if owners != {peer.uid}:
        told = ", ".join(map(str, sorted(owners)))
        raise NotPermittedError(
            f"process {process.pid} is of uid {told}, you are uid {peer.uid}: only its owner, root "
            f"and the daemon's user may {what}"
        )


def check_known(peer: Peer, proc: Path = PROC) -> None:
    """Raise ``NotPermittedError`` for a user of whom nothing is known.

    In a user namespace of the daemon's own, all users that it does not map have one uid
    (user_namespaces(7), kernel.overflowuid), and are not the user who has that uid.
    """
    if peer.uid != read_int(proc / "sys/kernel/overflowuid"):
        return
    mapped = (read_text(proc / "self/uid_map") or "").split()
    if mapped and mapped != ["0", "0", _ALL_UIDS]:
        raise NotPermittedError("the daemon's user namespace does not know you: ask as its root")


def check_caller(peer: Peer, proc: Path = PROC) -> None:
    """Raise ``TargetError`` where the caller has exited; pid 0 is one of a pid namespace beside."""
    stat = read_stat(peer.pid, proc) if peer.pid else None
    if peer.pid and (stat is None or stat.exited):
        raise TargetError(f"process {peer.pid}, which asked, has exited: nothing is done")


def owner_uids(process: ProcessId, proc: Path = PROC) -> set[int] | None:
    """Return the real, effective, saved and file system uid; None where the process has gone."""
    status = read_bytes(proc / str(process.pid) / "status")
    found = _UIDS.search(status) if status else None
    # The pid may have become another's in between; what was read is of this process only if the
    # pid is still its own.
    if found is None or identify(process.pid, proc) != process:
        return None
    return {int(uid) for uid in found.groups()}
