"""Who may request what: root and the daemon's user everything, other users for their processes.

The caller is identified by the credentials that the kernel took when it connected (SO_PEERCRED,
unix(7)). A process is a user's own where the kernel would let the user move its pages without hmd:
move_pages(2) asks for PTRACE_MODE_READ_REALCREDS (ptrace(2), "Ptrace access mode checking").
:mod:`hmd.control.process_identity` has what that compares.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hmd.control.process_identity import read_identity
from hmd.control.request import ControlRequest, Peer
from hmd.errors import NotPermittedError, TargetError
from hmd.machine.process_id import PROC, ProcessId, read_stat
from hmd.machine.procfs import read_int, read_text

ROOT: Final = 0
ADMINISTRATORS_ONLY: Final = {
    "pause": "pause hmd",
    "resume": "resume hmd",
    "drain": "drain a node",
    "undrain": "undrain a node",
    "policy": "set the policy",
}
"""The commands that no owner of a process may give, with what each does."""

_ALL_UIDS: Final = str(2**32 - 1)


def is_administrator(peer: Peer, own_uid: int | None = None) -> bool:
    """Return whether a caller is root or the daemon's user (``own_uid``, by default our own)."""
    return peer.uid in (ROOT, os.geteuid() if own_uid is None else own_uid)


def check_administrator(peer: Peer, what: str, own_uid: int | None = None) -> None:
    """Raise ``NotPermittedError`` unless the caller is root or the daemon's user."""
    if not is_administrator(peer, own_uid):
        raise NotPermittedError(
            f"only root and the daemon's user may {what}: you are uid {peer.uid}; try sudo"
        )


def check_command(request: ControlRequest) -> None:
    """Raise ``NotPermittedError`` for a command that the caller may not give at all."""
    if request.command in ADMINISTRATORS_ONLY:
        check_administrator(request.peer, ADMINISTRATORS_ONLY[request.command])


def check_owner(
    peer: Peer, process: ProcessId, what: str, proc: Path = PROC, own_uid: int | None = None
) -> None:
    """Raise ``NotPermittedError`` for another user's process, ``TargetError`` for an exited one."""
    if is_administrator(peer, own_uid):
        return
    check_known(peer, proc)
    refusal = refusal_for(peer.uid, peer.gid, process, proc)
    if refusal is not None:
        raise NotPermittedError(
            f"process {process.pid} {refusal}, you are uid {peer.uid}, gid {peer.gid}: "
            f"only its owner, root and the daemon's user may {what}"
        )


def owns(peer: Peer, process: ProcessId, proc: Path = PROC) -> bool:
    """Return whether a process is the caller's own; an exited one is not."""
    try:
        check_owner(peer, process, "see it", proc)
    except (NotPermittedError, TargetError):
        return False
    return True


def refusal_for(uid: int, gid: int, process: ProcessId, proc: Path = PROC) -> str | None:
    """Return why the kernel lets no unprivileged process of ``uid`` and ``gid`` move its pages.

    Raises ``TargetError`` where the process has exited. Security modules (AppArmor, SELinux) are
    not asked; a process in another user namespace than the daemon counts as another user's.
    """
    identity = read_identity(process, proc)
    if identity is None:
        raise TargetError(f"process {process.pid} has exited: name another")
    if identity.uids != {uid}:
        return f"belongs to uid {_listed(identity.uids)}"
    if identity.gids != {gid}:
        return f"belongs to gid {_listed(identity.gids)}"
    if identity.capable:
        return "has capabilities"
    if not identity.dumpable:
        return "is protected (PR_SET_DUMPABLE, or a program that its user may not read)"
    if not identity.same_namespace:
        return "is in another user namespace"
    return None


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
    """Raise ``HmdError`` where the caller has exited, or runs with the rights of another user.

    The kernel compares real ids, and SO_PEERCRED has effective ones: they differ in a set-user-ID
    program. Pid 0 is in another pid namespace.
    """
    if not peer.pid:
        return
    stat = read_stat(peer.pid, proc)
    identity = read_identity(stat.process, proc) if stat and not stat.exited else None
    if identity is None:
        raise TargetError(
            f"process {peer.pid}, which sent the request, has exited: nothing is done"
        )
    if is_administrator(peer):
        return
    if (identity.real_uid, identity.real_gid) != (peer.uid, peer.gid):
        raise NotPermittedError(
            f"process {peer.pid}, which sent the request, has the real uid {identity.real_uid} "
            f"and gid {identity.real_gid}: ask without a set-user-ID program"
        )


def _listed(ids: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
