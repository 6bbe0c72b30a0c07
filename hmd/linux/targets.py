# SPDX-License-Identifier: MIT
"""The selectors of a target, and whether a process matches them.

A target is a named set of processes. A process must match every selector. The cheap selectors come
first, and each reads only what it needs (pid: nothing, exe: one link, cmdline, user and cgroup: one
file).

Regular expressions are matched in bounded time on text that others choose, by the regex crate of
Rust (https://docs.rs/regex), which pydantic contains. It searches in O(m·n) for a pattern of size m
and a text of n bytes, refuses patterns whose compiled form exceeds 10 MiB, and does not backtrack,
so that there are no look-around assertions and no backreferences.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Final

from hmd.base.errors import ConfigError
from hmd.linux.cgroups import cgroup_selector, in_cgroup, in_unit, parse_cgroup, unit_selector
from hmd.linux.procfs import absent, read_bytes

MAX_TEXT_BYTES: Final = 16384
"""Start of a text that is searched; the rest is not read."""

_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)
_DELETED = " (deleted)"


class SafeRegex:
    """A compiled pattern; ``search`` returns whether it matches anywhere in a text."""

    def __init__(self, pattern: str) -> None:
        """Compile. Raises ``ValueError`` with the engine's reason, in one line."""
        # Imported here: takes 60 ms, and most commands have no patterns.
        from pydantic_core import SchemaError, SchemaValidator, core_schema

        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        try:
            self._matches = SchemaValidator(schema).isinstance_python
        except SchemaError as error:
            raise ValueError(_reason(str(error))) from None
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"SafeRegex({self.pattern!r})"

    def search(self, text: bytes) -> bool:
        """Return whether the pattern matches in the first ``MAX_TEXT_BYTES`` of a text.

        Bytes that are not UTF-8 count as U+FFFD.
        """
        return self._matches(text[:MAX_TEXT_BYTES].decode("utf-8", "replace"))


def _reason(text: str) -> str:
    """Return the engine's reason from a SchemaError, whose last line has it."""
    last = text.splitlines()[-1].strip()
    return last.rpartition("error: ")[2].removeprefix("SchemaError: ").rstrip(".")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Selectors of one target; a process must match all that are set.

    ``exe`` is a shell pattern (fnmatch(3), case matters) for the last part of the executable's
    path. A pattern with a ``/`` applies to the whole path, and ``*`` then also matches ``/``.
    ``cmdline`` is a regular expression searched for in the arguments joined by spaces, up to
    ``MAX_TEXT_BYTES``: other users choose their length. ``user``
    is a name or a number, compared with the real user. ``cgroup`` is a path relative to the
    cgroup root and includes every group below it. ``unit`` is a systemd unit. ``min_rss_bytes``
    admits a process at that resident size and drops it below half of it.
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
    """A TargetSpec compiled for matching processes."""

    def __init__(self, spec: TargetSpec) -> None:
        """Compile ``spec``. Raises ConfigError for a wrong regular expression.

        A user that this machine does not know matches no process until ``resolve_user`` finds it.
        """
        self.spec = spec
        self._uid: int | None = None
        self._checks = self._build_checks()
        self.resolve_user()

    def resolve_user(self) -> bool:
        """Look an unknown user up again; returns whether it is known now and was not before.

        Costs one getpwnam(3) while the user is unknown, which may ask a directory service.
        """
        if self.spec.user is None or self._uid is not None:
            return False
        self._uid = user_id(self.spec.user)
        return self._uid is not None

    def fits(self, pid: int, folder: str) -> bool:
        """Return True where process ``pid``, whose /proc folder is ``folder``, matches.

        Resident size is not part of it, since it changes all the time. A process that exits
        meanwhile does not match.
        """
        if self.spec.pids and pid not in self.spec.pids:
            return False
        return all(check(folder) for check in self._checks)

    def _build_checks(self) -> list[Callable[[str], bool]]:
        """Return one predicate for each selector, cheapest first."""
        spec = self.spec
        checks: list[Callable[[str], bool]] = []
        if spec.exe is not None:
            checks.append(_exe_check(spec.exe))
        if spec.user is not None:
            checks.append(self._has_user)
        if spec.cgroup is not None:
            wanted = cgroup_selector(spec.cgroup)
            checks.append(lambda folder: in_cgroup(_cgroups(folder), wanted))
        if spec.unit is not None:
            unit = unit_selector(spec.unit)
            checks.append(lambda folder: in_unit(_cgroups(folder), unit))
        if spec.cmdline is not None:
            checks.append(_cmdline_check(_regex(spec.cmdline, "cmdline", spec.name)))
        return checks

    def _has_user(self, folder: str) -> bool:
        # Not the owner of the folder: that is root for a process that may not be dumped.
        match = _UID.search(read_bytes(folder + "/status") or b"")
        return match is not None and int(match.group(1)) == self._uid


def user_id(user: str | int) -> int | None:
    """Return the number of a user given by name or number, None for an unknown name."""
    if isinstance(user, int) or (user.isascii() and user.isdigit()):
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def exe_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that reports whether an executable's path matches the shell pattern."""
    match = re.compile(translate(pattern)).match
    if "/" in pattern:
        return lambda path: match(path) is not None
    return lambda path: match(path.rpartition("/")[2]) is not None


def _regex(pattern: str, selector: str, target: str) -> SafeRegex:
    try:
        return SafeRegex(pattern)
    except ValueError as error:
        raise ConfigError(
            f"target {target}: {selector} {pattern!r} is not a regular expression: {error}"
        ) from None


def _exe_check(pattern: str) -> Callable[[str], bool]:
    matches = exe_matcher(pattern)

    def check(folder: str) -> bool:
        try:
            path = os.readlink(folder + "/exe").removesuffix(_DELETED)  # noqa: PTH115
        except OSError as error:
            if absent(error):
                return False
            raise
        return matches(path)

    return check


def _cmdline_check(pattern: SafeRegex) -> Callable[[str], bool]:
    def check(folder: str) -> bool:
        data = read_bytes(folder + "/cmdline", MAX_TEXT_BYTES)
        if not data:
            return False
        return pattern.search(data.rstrip(b"\0").replace(b"\0", b" "))

    return check


def _cgroups(folder: str) -> tuple[tuple[str, ...], ...]:
    return parse_cgroup(read_bytes(folder + "/cgroup") or b"")


def folder_of(proc: Path, pid: int) -> str:
    """Return the /proc folder of a pid as a string, which is cheaper than a Path per process."""
    return f"{proc}/{pid}"
