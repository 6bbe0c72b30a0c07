"""What the configuration says of a target, and whether a process fits it.

A target is a named set of processes. Its selectors are all to be fulfilled; each is asked only
where the cheaper ones before it are, and each reads only what it needs (pid: nothing, exe: one
link, cmdline, user and cgroup: one file).
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hmd.errors import ConfigError
from hmd.machine.cgroup import (
    cgroup_selector,
    in_cgroup,
    in_unit,
    parse_cgroup,
    unit_selector,
)
from hmd.machine.procfs import absent, read_bytes

_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Selectors of one target; those that are given must all be fulfilled.

    ``exe`` is a regular expression searched for in the executable's path, ``cmdline`` one
    searched for in the arguments joined by spaces. ``user`` is a name or a number, compared with
    the real user. ``cgroup`` is a path
    relative to the cgroup root and takes in all below it. ``unit`` is a systemd unit.
    ``min_rss_bytes`` admits a process at that resident size and lets it go below half of it.
    """

    name: str
    pids: tuple[int, ...] = ()
    exe: str | None = None
    cmdline: str | None = None
    user: str | int | None = None
    cgroup: str | None = None
    unit: str | None = None
    min_rss_bytes: int = 0
    follow_children: bool = True

    @property
    def selects_by_pid_only(self) -> bool:
        """True where no other process than ``pids`` can belong to the target."""
        others = (self.exe, self.cmdline, self.user, self.cgroup, self.unit)
        return bool(self.pids) and not self.follow_children and all(o is None for o in others)


class Selector:
    """A TargetSpec made ready to be asked about processes."""

    def __init__(self, spec: TargetSpec) -> None:
        """Compile ``spec``. Raises ConfigError for a wrong pattern or an unknown user."""
        self.spec = spec
        self._checks = _checks(spec)

    def fits(self, pid: int, folder: str) -> bool:
        """Return True where process ``pid``, whose /proc folder this is, fulfils the selectors.

        Resident size is not asked here, since it changes all the time. A process that vanishes
        meanwhile does not fit.
        """
        if self.spec.pids and pid not in self.spec.pids:
            return False
        return all(check(folder) for check in self._checks)


def _checks(spec: TargetSpec) -> list[Callable[[str], bool]]:
    """Return the questions to ask, cheapest first."""
    checks: list[Callable[[str], bool]] = []
    if spec.exe is not None:
        checks.append(_exe_check(_pattern(spec.exe, "exe", spec.name)))
    if spec.user is not None:
        checks.append(_user_check(spec.user, spec.name))
    if spec.cgroup is not None:
        wanted = cgroup_selector(spec.cgroup)
        checks.append(lambda folder: in_cgroup(_cgroups(folder), wanted))
    if spec.unit is not None:
        unit = unit_selector(spec.unit)
        checks.append(lambda folder: in_unit(_cgroups(folder), unit))
    if spec.cmdline is not None:
        checks.append(_cmdline_check(_pattern(spec.cmdline, "cmdline", spec.name)))
    return checks


def _pattern(pattern: str, selector: str, target: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise ConfigError(
            f"target {target}: {selector} {pattern!r} is no regular expression: {error}"
        ) from None


def _exe_check(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    def check(folder: str) -> bool:
        try:
            path = os.readlink(folder + "/exe").removesuffix(_DELETED)  # noqa: PTH115
        except OSError as error:
            if absent(error):
                return False
            raise
        return pattern.search(path) is not None

    return check


def _user_check(user: str | int, target: str) -> Callable[[str], bool]:
    uid = _uid(user, target)

    def check(folder: str) -> bool:
        # Not the owner of the folder: that is root for a process that may not be dumped.
        match = _UID.search(read_bytes(folder + "/status") or b"")
        return match is not None and int(match.group(1)) == uid

    return check


def _uid(user: str | int, target: str) -> int:
    if isinstance(user, int) or (user.isascii() and user.isdigit()):
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(
            f"target {target}: no user {user!r} on this machine; name one, or give a number"
        ) from None


def _cmdline_check(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    def check(folder: str) -> bool:
        data = read_bytes(folder + "/cmdline")
        if not data:
            return False
        text = data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "surrogateescape")
        return pattern.search(text) is not None

    return check


def _cgroups(folder: str) -> tuple[tuple[str, ...], ...]:
    return parse_cgroup(read_bytes(folder + "/cgroup") or b"")


def folder_of(proc: Path, pid: int) -> str:
    """Return the /proc folder of a pid; a plain string, since a scan makes thousands of them."""
    return f"{proc}/{pid}"
