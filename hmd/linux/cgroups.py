# SPDX-License-Identifier: MIT
"""Control groups: those of a process, and the memory limit of hmd's own.

Paths are those of /proc/PID/cgroup (cgroups(7)), relative to the root of their hierarchy, for
version 1 and 2 alike; mount points matter where a user copies them. Of hmd's group and those above
it, the limit with the least room counts (Documentation/admin-guide/cgroup-v2.rst,
cgroup-v1/memory.rst), without page cache, which the kernel reclaims before it kills.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from hmd.linux.procfs import PROC, list_pids, mounts, parse_ids, read_bytes

# A cgroup that was removed while the process stayed in it (cgroups(7)).
_DELETED = " (deleted)"

CGROUPS: Final = Path("/sys/fs/cgroup")

UNITS: Final = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
_USER_MANAGER: Final = "user@*.service"

_UNLIMITED: Final = 1 << 60
"""Version 1 has a number near 2 ** 63 where there is no limit."""


def _hierarchies(data: bytes) -> Iterator[tuple[str, list[str], str]]:
    """Yield id, controllers and path of each line of /proc/PID/cgroup, but of malformed ones.

    A line is ``hierarchy-ID:controllers:/path``; version 2 has ID 0 and no controllers.
    """
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        identifier, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if identifier.isdigit() and colon and path.startswith("/"):
            yield identifier, controllers.split(","), path.removesuffix(_DELETED)


def parse_cgroup(data: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the process's paths as components, one per hierarchy; malformed lines are skipped."""
    return tuple(dict.fromkeys(_components(path) for _, _, path in _hierarchies(data)))


@cache
def cgroup_mounts(proc: Path = PROC) -> tuple[str, ...]:
    """Return where hierarchies are mounted, the longest first."""
    found = {str(CGROUPS), *(path for _, path in mounts(("cgroup", "cgroup2"), proc))}
    return tuple(sorted(found, key=len, reverse=True))


def cgroup_selector(path: str, mounts: tuple[str, ...] = (str(CGROUPS),)) -> tuple[str, ...]:
    """Return the components of a configured cgroup path, which may be shell patterns.

    A leading mount point of ``mounts``, the longest first, is removed, since users copy paths with
    it.
    """
    for mount in mounts:
        if path == mount or path.startswith(mount + "/"):
            return _components(path.removeprefix(mount))
    return _components(path)


def selected_group(paths: tuple[tuple[str, ...], ...], selector: tuple[str, ...]) -> str | None:
    """Return the selected cgroup that a process is in or below in any hierarchy; None: in none."""
    for parts in paths:
        if len(parts) >= len(selector) and all(map(fnmatchcase, parts, selector)):
            return "/" + "/".join(parts[: len(selector)])
    return None


def unit_selector(unit: str) -> str:
    """Return the full name of a systemd unit: ``redis`` is ``redis.service``."""
    return unit if unit.endswith(UNITS) else f"{unit}.service"


def in_unit(paths: tuple[tuple[str, ...], ...], unit: str, *, of_users: bool = False) -> bool:
    r"""Return True where a component of a path is the systemd unit.

    The unit may be given with or without systemd's ``\x2d`` escapes, and may be a shell pattern
    (``postgresql@*.service``). A name that the kernel would take for one of its own files gets a
    ``_`` before it (systemd's cg_escape()). Below ``user@UID.service``, users name units as they
    like: these count with ``of_users`` only.
    """
    for parts in paths:
        for part in parts:
            name = part.removeprefix("_")
            if fnmatchcase(name, unit) or fnmatchcase(unescape_unit(name), unit):
                return True
            if fnmatchcase(name, _USER_MANAGER) and not of_users:
                break
    return False


def units_of(paths: tuple[tuple[str, ...], ...]) -> set[str]:
    """Return the units that a process is part of, without slices."""
    parts = {unescape_unit(part.removeprefix("_")) for path in paths for part in path}
    return {part for part in parts if part.endswith(UNITS) and not part.endswith(".slice")}


def unescape_unit(name: str) -> str:
    r"""Return a unit name with ``\xNN`` escapes resolved (systemd.unit(5))."""
    parts = name.split("\\x")
    out = parts[0]
    for part in parts[1:]:
        try:
            out += chr(int(part[:2], 16)) + part[2:]
        except ValueError:
            out += "\\x" + part
    return out


def _components(path: str) -> tuple[str, ...]:
    return tuple(p for p in PurePosixPath(path).parts if p != "/")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """``limit_bytes`` a group may have, and ``used_bytes`` it has, without page cache."""

    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class _Names:
    """The files of a version of the interface: limits, use, and the rows of page cache."""

    limits: tuple[str, ...]
    used: str
    cache: tuple[str, ...]


_V1: Final = _Names(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2: Final = _Names(
    ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")
)


class MemoryLimitReader:
    """Reads the limit of the group in which this process is now."""

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        """Find the groups; a container's own may be the root of what it sees."""
        self._groups: list[tuple[Path, _Names]] = []
        for number, controllers, path in _hierarchies(read_bytes(proc / "self/cgroup") or b""):
            if "memory" in controllers:
                self._add(cgroups / "memory", path, _V1)
            elif number == "0":
                self._add(cgroups, path, _V2)

    def _add(self, mount: Path, path: str, names: _Names) -> None:
        group = mount / path.strip("/")
        while group != mount:
            self._groups.append((group, names))
            group = group.parent
        self._groups.append((mount, names))

    def read(self) -> MemoryLimit | None:
        """Return the limit with the least room, None where there is none."""
        limits = [found for group, names in self._groups if (found := _limit_of(group, names))]
        return min(limits, key=lambda each: each.limit_bytes - each.used_bytes, default=None)


def _limit_of(group: Path, names: _Names) -> MemoryLimit | None:
    limit_bytes = min((_number(group / name) for name in names.limits), default=_UNLIMITED)
    if limit_bytes >= _UNLIMITED:
        return None
    rows = (line.split() for line in (read_bytes(group / "memory.stat") or b"").splitlines())
    cache = {row[0].decode(): int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    used = _number(group / names.used)
    if used >= _UNLIMITED:
        return None
    return MemoryLimit(limit_bytes, max(used - sum(cache.get(name, 0) for name in names.cache), 0))


def _number(path: Path) -> int:
    """Return the number in a file, ``_UNLIMITED`` where there is none."""
    data = (read_bytes(path, 64) or b"").strip()
    return int(data) if data.isdigit() else _UNLIMITED


_BY_NODE: Final = re.compile(rb"^(?:anon|file_mapped) (.*)$", re.MULTILINE)
_PRESSURE: Final = re.compile(rb"some avg10=(\d{1,3}\.\d\d) ")
_OF_NODE: Final = re.compile(rb"N(\d{1,5})=(\d{1,19})")


def group_of(pid: int, proc: Path = PROC) -> str:
    """Return the path of a process's group of version 2, empty where there is none."""
    found = _hierarchies(read_bytes(f"{proc}/{pid}/cgroup") or b"")
    return next((path for number, _, path in found if number == "0"), "")


def pids_in(group: str, proc: Path = PROC) -> Iterator[int]:
    """Yield the processes of a group of version 2, and of those below it."""
    for pid in list_pids(proc):
        path = group_of(pid, proc)
        if path == group or path.startswith(group.rstrip("/") + "/"):
            yield pid


def allowed_nodes(group: str, cgroups: Path = CGROUPS) -> tuple[int, ...]:
    """Return the nodes on which a group may have memory (cpuset.mems.effective of version 2).

    Of the nearest group above it that has a cpuset; none where there are no cpusets.
    """
    folder = cgroups / group.strip("/")
    while cgroups in (folder, *folder.parents):
        if text := (read_bytes(folder / "cpuset.mems.effective", 4096) or b"").strip():
            return parse_ids(text.decode())
        folder = folder.parent
    return ()


def memory_pressure(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """Return the share of the last 10 s in which a task of a process's group waited for memory.

    Of the whole machine where the group has no figure; None without any
    (Documentation/accounting/psi.rst).
    """
    for path in (f"{cgroups}{group_of(pid, proc)}/memory.pressure", proc / "pressure/memory"):
        if match := _PRESSURE.match(read_bytes(path, 64) or b""):
            return float(match[1]) / 100
    return None


def memory_by_node(group: str, cgroups: Path = CGROUPS) -> Counter[int]:
    """Return bytes by node of what a group's programs have mapped (memory.numa_stat, version 2)."""
    text = read_bytes(f"{cgroups}{group}/memory.numa_stat") or b""
    found = Counter[int]()
    for node, amount in _OF_NODE.findall(b" ".join(_BY_NODE.findall(text))):
        found[int(node)] += int(amount)  # anonymous memory, and that of files
    return found
