# SPDX-License-Identifier: MIT
"""Exclusive use of DAMON, and recovery of the kdamond of an hmd that was killed.

Changing the number of kdamonds removes the set-up of all of them, and fails while one runs
(damon_sysfs_kdamonds_add_dirs() in mm/damon/sysfs.c). hmd therefore claims DAMON only where no
kdamond is set up. It notes its claim in a file that stays locked for its lifetime: the kernel
releases flock(2) however a process ends. An unlocked note that names the present directory (sysfs
never reuses an inode number) was left by an hmd that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.base.errors import Diagnostic, MissingError, NotPermittedError, Severity, os_error
from hmd.linux.damon import Kdamonds
from hmd.linux.procfs import PROC, read_stat

NOTE = Path("/run/hmd/damon")
PATIENCE_S = 15.0
"""A process killed while it waits for DAMON exits only when DAMON answers."""

_RETRY_S = 0.05
_NOTE_BYTES = 256
NOT_READABLE: Final = "its files in sysfs may not be read by this user"


@dataclass(frozen=True, slots=True)
class Holder:
    """An hmd that uses DAMON, or (``left``) was killed while it used it."""

    pid: int
    left: bool


class DamonClaim:
    """The claim to DAMON, with ``count`` kdamonds; lasts until ``release``."""

    def __init__(
        self, kdamonds: Kdamonds, note: Path = NOTE, proc: Path = PROC, count: int = 1
    ) -> None:
        """Claim DAMON, after stopping what a killed hmd left.

        Raises MissingError where this kernel has none, or another program uses it.
        """
        self._kdamonds = kdamonds
        if kdamonds.is_forbidden:
            raise NotPermittedError(f"DAMON: {NOT_READABLE}; run hmd as root")
        if kdamonds.count is None:
            raise MissingError(
                "this kernel has no DAMON in sysfs: use one with CONFIG_DAMON_SYSFS and "
                "CONFIG_DAMON_VADDR"
            )
        self._fd = _lock(note, proc)
        try:
            stop_left(kdamonds, self._fd)
            _refuse_others(kdamonds)
            kdamonds.set_count(count)
            self._identity = kdamonds.identity(0)
            noted = {"pid": os.getpid(), "kdamond": self._identity}
            os.pwrite(self._fd, json.dumps(noted).encode().ljust(_NOTE_BYTES), 0)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def held(self) -> bool:
        """Whether the kdamonds are those that were claimed.

        Another program may set up its own while they are off.
        """
        return self._kdamonds.identity(0) == self._identity

    def release(self) -> None:
        """Remove the kdamond, unless another program has it by now. Called once, when it is off."""
        try:
            if self.held and not self._kdamonds.running():
                self._kdamonds.set_count(0)
            os.ftruncate(self._fd, 0)
        finally:
            os.close(self._fd)


def _lock(note: Path, proc: Path) -> int:
    """Return the descriptor of the locked note; waits for a holder that is being killed."""
    try:
        note.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(note, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        if os.geteuid() == 0:
            # A command of root must not leave the service a file that it cannot write.
            owner, own = note.parent.stat(), os.fstat(fd)
            if (own.st_uid, own.st_gid) != (owner.st_uid, owner.st_gid):
                os.fchown(fd, owner.st_uid, owner.st_gid)
    except OSError as error:
        remedy = f"remove {note}" if note.exists() else "run hmd as root"
        raise os_error(
            error, f"DAMON: cannot note its use in {note}: {error.strerror}; {remedy}"
        ) from None
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            pid = _noted(fd).get("pid", 0)
            stat = read_stat(pid, proc) if pid else None
            if (stat and not stat.exited) or time.monotonic() > deadline:
                os.close(fd)
                raise MissingError(f"DAMON is in use by another hmd (pid {pid})") from None
        time.sleep(_RETRY_S)


def _noted(fd: int) -> dict[str, int]:
    try:
        found = json.loads(os.pread(fd, _NOTE_BYTES, 0) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def stop_left(kdamonds: Kdamonds, fd: int) -> bool:
    """Stop the kdamonds whose first the note names; returns whether they still existed."""
    identity = _noted(fd).get("kdamond")
    if identity is None or identity != kdamonds.identity(0):
        return False
    for index in range(kdamonds.count or 0):
        kdamonds.switch_off(index)
    kdamonds.set_count(0)
    os.ftruncate(fd, 0)
    return True


def stop_left_behind(kdamonds: Kdamonds, note: Path = NOTE) -> Holder | None:
    """Stop the kdamonds that a killed hmd left, if any; returns that hmd."""
    found = holder(kdamonds, note)
    if found is None or not found.left:
        return None
    fd = os.open(note, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return found if stop_left(kdamonds, fd) else None
    except BlockingIOError:
        return None  # another hmd is doing that
    finally:
        os.close(fd)


def holder(kdamonds: Kdamonds, note: Path = NOTE) -> Holder | None:
    """Return the hmd that uses DAMON or was killed while it used it, or None."""
    identity = kdamonds.identity(0) if kdamonds.count else None
    if identity is None:
        return None
    try:
        fd = os.open(note, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        noted = _noted(fd)
        if noted.get("kdamond") != identity:
            return None
        left = False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            left = True
        return Holder(noted.get("pid", 0), left)
    finally:
        os.close(fd)


def damon_finding(sysfs: Path, note: Path = NOTE) -> Diagnostic:
    """Return the user of DAMON, and whether a killed hmd left a kdamond."""
    name = "DAMON"
    kdamonds = Kdamonds(sysfs)
    if kdamonds.is_forbidden:
        return Diagnostic(name, Severity.WARN, "not known", NOT_READABLE, "run it as root")
    if kdamonds.count is None:
        return Diagnostic(name, Severity.OK, "not in this kernel")
    found = holder(kdamonds, note)
    if found is not None and found.left:
        return Diagnostic(
            name,
            Severity.WARN,
            f"a kdamond that an hmd left (pid {found.pid}), which was killed",
            "it costs CPU time until its processes end, and others cannot use DAMON",
            f"start hmd, which stops it, or: echo off > {kdamonds.path}/0/state",
        )
    if found is not None:
        return Diagnostic(name, Severity.OK, f"in use by hmd (pid {found.pid})")
    others = _others(kdamonds)
    return Diagnostic(name, Severity.OK, others or "in this kernel, not in use")


def _others(kdamonds: Kdamonds) -> str:
    """Return what uses DAMON, in words; empty where it is free."""
    if module := kdamonds.exclusive_module():
        return f"in use by the kernel's {module}, for itself alone"
    running = [
        f"kdamond {i}" + (f" (pid {pid})" if pid else "") for i, pid in kdamonds.running().items()
    ]
    if running:
        return f"in use by another: {', '.join(running)}"
    return "set up by another, and off" if kdamonds.configured() else ""


def _refuse_others(kdamonds: Kdamonds) -> None:
    others = _others(kdamonds)
    if not others:
        return
    first = next(iter(kdamonds.running()), None)
    if module := kdamonds.exclusive_module():
        command = f"echo N > /sys/module/{module}/parameters/enabled"
    elif first is None:
        command = f"echo 0 > {kdamonds.path}/nr_kdamonds"
    else:
        command = f"echo off > {kdamonds.path}/{first}/state"
    raise MissingError(f"DAMON is {others}; if that is not needed: {command}")
