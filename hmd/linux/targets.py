# SPDX-License-Identifier: MIT
"""The selectors of a target, whether a process matches them, and why none does.

A process must match every selector. The cheap ones come first, and each reads only what it needs.
Regular expressions are matched in bounded time on text that others choose, by the regex crate of
Rust (https://docs.rs/regex), which pydantic contains: O(m·n) for a pattern of size m and a text of
n bytes, without look-around assertions and backreferences; patterns are at most 10 MiB compiled.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from pathlib import Path
from typing import Final, TypeVar

from hmd.base.errors import ConfigError
from hmd.base.quantities import format_size
from hmd.linux.cgroups import (
    cgroup_mounts,
    cgroup_selector,
    in_unit,
    parse_cgroup,
    selected_group,
    unit_selector,
    units_of,
)
from hmd.linux.procfs import PROC, ProcessId, list_pids, read_bytes, read_live_stat, unless_absent

Value = TypeVar("Value", str, str | int)

MAX_TEXT_BYTES: Final = 16384
"""Start of a text that is searched; the rest is not read."""

_UID = re.compile(rb"^Uid:\s+(\d+)", re.MULTILINE)
_DELETED = " (deleted)"
_NAME_BYTES: Final = 15
"""Length of a thread's name (TASK_COMM_LEN), after which the kernel cuts it off."""
_ARGUMENT_BYTES: Final = 512
"""Start of the arguments that is searched for the name of a program."""
_NEAREST: Final = 3
"""Names that are suggested where a selector matches nothing."""
_MAX_NAMES, _MAX_NAME = 1000, 256
"""Names that are compared for that, and their characters: users choose them, and comparing two
takes time with their product."""


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
        """Return whether it matches in the first ``MAX_TEXT_BYTES``; invalid UTF-8 is U+FFFD."""
        return self._matches(text[:MAX_TEXT_BYTES].decode("utf-8", "replace"))


def _reason(text: str) -> str:
    """Return the engine's reason from a SchemaError, whose last line has it."""
    last = text.splitlines()[-1].strip()
    return last.rpartition("error: ")[2].removeprefix("SchemaError: ").rstrip(".")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Selectors of one target; a process must match all that are set.

    ``exe`` is a shell pattern (fnmatch(3), case matters) for the last part of the executable's
    path, or for the name by which the program was started (:func:`started_names`). A pattern with a
    ``/`` applies to the whole path, and ``*`` then also matches ``/``; the path of a link selects
    what was started by the link's name. ``exe``, ``cgroup`` and ``unit`` may have several values,
    of which one must match. Programs that match ``exclude``, patterns as ``exe``, are left out,
    also as children. ``cmdline`` is a regular expression searched for in the first
    ``MAX_TEXT_BYTES`` of the arguments, joined by spaces. ``user`` is a name or a number, compared
    with the real user. ``cgroup`` is a path relative to the cgroup root and includes every group
    below it. ``min_rss_bytes`` admits a process at that resident size and drops it below half of
    it.
    """

    name: str
    pids: tuple[int, ...] = ()
    exe: str | tuple[str, ...] | None = None
    cmdline: str | None = None
    user: str | int | None = None
    cgroup: str | tuple[str, ...] | None = None
    unit: str | tuple[str, ...] | None = None
    min_rss_bytes: int = 0
    follow_children: bool = True
    exclude: tuple[str, ...] = ()

    @property
    def selects_by_pid_only(self) -> bool:
        """True where no other process than ``pids`` can belong to the target."""
        others = (self.exe, self.cmdline, self.user, self.cgroup, self.unit)
        return bool(self.pids) and not self.follow_children and all(o is None for o in others)


class Selector:
    """A TargetSpec compiled for matching processes.

    Raises ConfigError for a wrong regular expression. A user that this machine does not know
    matches no process until ``resolve_user`` finds it.
    """

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self._uid: int | None = None
        self._checks = self._build_checks()
        self._excluded = [_exe_check(pattern) for pattern in spec.exclude]
        self.resolve_user()

    def resolve_user(self) -> bool:
        """Look an unknown user up again (getpwnam(3)); returns whether it has become known."""
        if self.spec.user is None or self._uid is not None:
            return False
        self._uid = user_id(self.spec.user)
        return self._uid is not None

    def fits(self, pid: int, folder: str) -> bool:
        """Return True where a process, by pid and /proc folder, matches, whatever its size."""
        if self.spec.pids and pid not in self.spec.pids:
            return False
        return all(check(folder) for check in self._checks.values()) and not self.excludes(folder)

    def excludes(self, folder: str) -> bool:
        """Return whether a process, by its /proc folder, is left out."""
        return any(excluded(folder) for excluded in self._excluded)

    @property
    def selectors(self) -> tuple[str, ...]:
        """The names of the selectors that are set."""
        return (*self._checks, *(("pid",) if self.spec.pids else ()))

    def matched(self, pid: int, folder: str) -> frozenset[str]:
        """Return the names of the selectors that a process matches, each for itself."""
        names = {name for name, check in self._checks.items() if check(folder)}
        return frozenset(names | ({"pid"} if pid in self.spec.pids else set()))

    def _build_checks(self) -> dict[str, Callable[[str], bool]]:
        """Return one predicate for each selector by its name, cheapest first."""
        spec = self.spec
        checks: dict[str, Callable[[str], bool]] = {}
        if spec.exe is not None:
            programs = [_exe_check(pattern) for pattern in alternatives(spec.exe)]
            checks["exe"] = lambda folder: any(program(folder) for program in programs)
        if spec.user is not None:
            checks["user"] = self._has_user
        if spec.cgroup is not None:
            groups = [cgroup_selector(p, cgroup_mounts()) for p in alternatives(spec.cgroup)]
            checks["cgroup"] = lambda folder: any(
                selected_group(_cgroups(folder), g) for g in groups
            )
        if spec.unit is not None:
            units, named = map(unit_selector, alternatives(spec.unit)), spec.user is not None
            wanted = tuple(units)
            checks["unit"] = lambda folder: any(
                in_unit(_cgroups(folder), unit, of_users=named) for unit in wanted
            )
        if spec.cmdline is not None:
            checks["cmdline"] = _cmdline_check(_regex(spec.cmdline, "cmdline", spec.name))
        return checks

    def _has_user(self, folder: str) -> bool:
        # Not the owner of the folder: that is root for a process that may not be dumped.
        match = _UID.search(read_bytes(folder + "/status") or b"")
        return match is not None and int(match.group(1)) == self._uid


def alternatives(value: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the values of a selector that has one or several."""
    return value if isinstance(value, tuple) else (value,)


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
    matches, name = exe_matcher(pattern), pattern.rpartition("/")[2]

    def check(folder: str) -> bool:
        path = _executable(folder)
        if path is None or matches(path):
            return path is not None
        names = started_names(folder, path)
        if name == pattern:
            return any(map(matches, names))
        # Names are anyone's choice, and a path is not: the link, or a folder's as /bin is, must
        # lead to what runs.
        started = name in names or name == path.rpartition("/")[2]
        return started and os.path.realpath(pattern) == path

    return check


def _executable(folder: str) -> str | None:
    """Return the path of a process's executable, None where it may not be read or is gone."""
    with unless_absent():
        return os.readlink(folder + "/exe").removesuffix(_DELETED)  # noqa: PTH115
    return None


def started_names(folder: str, path: str) -> tuple[str, ...]:
    """Return by what names a program was started, besides the name of its file ``path``.

    The name of its first thread, and, where that differs, the last part of ``argv[0]`` up to a
    space, as in ``/usr/bin/redis-server 127.0.0.1:6379``.
    """
    comm = os.fsdecode((read_bytes(f"{folder}/comm", 64) or b"").rstrip(b"\n"))
    if comm == os.fsdecode(os.fsencode(path.rpartition("/")[2])[:_NAME_BYTES]):
        return ()
    arguments = os.fsdecode(read_bytes(f"{folder}/cmdline", _ARGUMENT_BYTES) or b"")
    program = (arguments.partition("\0")[0].split() or [""])[0]
    return comm, program.rpartition("/")[2].removesuffix(":")


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


def explain_empty(spec: TargetSpec, others: Container[ProcessId] = (), proc: Path = PROC) -> str:
    """Return in one line why a target has no processes; nothing where it should have one.

    ``others`` are the processes of targets above it. Reads some five files per process, about 50
    µs.
    """
    selector, taken = Selector(spec), 0
    counts = dict.fromkeys(sorted(selector.selectors), 0)
    sizes, names = list[int](), set[str]()
    for pid in list_pids(proc):
        stat = read_live_stat(pid, proc)
        if stat is None or not stat.has_memory or pid == os.getpid():
            continue
        folder = folder_of(proc, stat.pid)
        missing = counts.keys() - selector.matched(pid, folder)
        for name in counts.keys() - missing:
            counts[name] += 1
        if missing:
            names |= _names(folder, missing) if len(names) < _MAX_NAMES else set()
        elif stat.process in others or selector.excludes(folder):
            taken += 1
        else:
            sizes.append(stat.resident_bytes)
    if sizes and max(sizes) >= spec.min_rss_bytes:
        return ""
    if sizes:
        largest, least = max(sizes) >> 20, format_size(spec.min_rss_bytes)
        matching = f"processes that match: {len(sizes)}"
        return f"{matching}, all below min_rss: the largest has {largest} MiB of {least}"
    if taken:
        return f"processes that match: {taken}, all excluded or of targets above it"
    if unmatched := [name for name, count in counts.items() if not count]:
        values = ((name, ", ".join(map(repr, _value(spec, name)))) for name in unmatched)
        texts = (f"no process has {name} {value}" for name, value in values)
        reason = "; ".join(texts) + _nearest(spec, unmatched, names)
    else:
        each = ", ".join(f"{name}: {count}" for name, count in counts.items())
        reason = f"no process matches all of its selectors ({each})"
    if "exe" in counts and os.geteuid():
        reason += "; executables of other users' processes are seen by root only"
    return reason


def _value(spec: TargetSpec, selector: str) -> tuple[str | int, ...]:
    return spec.pids if selector == "pid" else alternatives(getattr(spec, selector))


def _names(folder: str, selectors: Container[str]) -> set[str]:
    """Return what could have been meant by selectors that a process does not match."""
    found: set[str] = set()
    if "exe" in selectors and (path := _executable(folder)) is not None:
        found |= {path, path.rpartition("/")[2], *started_names(folder, path)}
    if "unit" in selectors:
        found |= units_of(_cgroups(folder))
    if "cgroup" in selectors:
        found |= {"/" + "/".join(parts) for parts in _cgroups(folder)}
    return found


def _nearest(spec: TargetSpec, selectors: Iterable[str], names: set[str]) -> str:
    """Return a remark with the names that are most like those of the selectors."""
    wanted = [str(value) for selector in selectors for value in _value(spec, selector)]
    short = [name for name in names if len(name) <= _MAX_NAME]
    close = [name for value in wanted for name in get_close_matches(value, short, n=_NEAREST)]
    shown = (name if name.isprintable() else ascii(name) for name in dict.fromkeys(close))
    return f"; nearest: {', '.join(shown)}" if close else ""
