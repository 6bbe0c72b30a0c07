"""The memory limit of this process's control group, and how much of it is used.

Of the group and of those above it, the one with the least room counts; version 1 and 2 of the
interface (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst). Page cache is not counted
as used: the kernel reclaims it before it kills. Costs about 50 µs per group with a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.machine.process_id import PROC
from hmd.machine.procfs import read_bytes, read_text

CGROUPS: Final = Path("/sys/fs/cgroup")

_UNLIMITED: Final = 1 << 60
"""Version 1 has a number near 2 ** 63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """``most_bytes`` a group may have, and ``used_bytes`` it has, without page cache."""

    most_bytes: int
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
        for line in (read_text(proc / "self/cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "memory" in controllers.split(","):
                self._add(cgroups / "memory", path, _V1)
            elif number == "0" and not controllers:
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
        return min(limits, key=lambda each: each.most_bytes - each.used_bytes, default=None)


def _limit_of(group: Path, names: _Names) -> MemoryLimit | None:
    most = min((_number(group / name) for name in names.limits), default=_UNLIMITED)
    if most >= _UNLIMITED:
        return None
    rows = (line.split() for line in (read_bytes(group / "memory.stat") or b"").splitlines())
    cache = {row[0].decode(): int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    used = _number(group / names.used)
    if used >= _UNLIMITED:
        return None
    return MemoryLimit(most, max(used - sum(cache.get(name, 0) for name in names.cache), 0))


def _number(path: Path) -> int:
    """Return the number in a file, ``_UNLIMITED`` where there is none."""
    data = (read_bytes(path, 64) or b"").strip()
    return int(data) if data.isdigit() else _UNLIMITED
