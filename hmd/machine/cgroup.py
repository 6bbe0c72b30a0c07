"""Cgroup paths of a process, and whether they match a selector.

Paths are those of /proc/PID/cgroup (cgroups(7)), relative to the root of their hierarchy, for
version 1 and 2 alike, so that mount points do not matter. Costs one read per process.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

_MOUNT = "/sys/fs/cgroup"
# A cgroup that was removed while the process stayed in it (cgroups(7)).
_DELETED = " (deleted)"


def parse_cgroup(data: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the process's paths as components, one per hierarchy; malformed lines are skipped.

    A line is ``hierarchy-ID:controllers:/path``; version 2 has ID 0 and no controllers.
    """
    paths: list[tuple[str, ...]] = []
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        identifier, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if not identifier.isdigit() or not colon or not path.startswith("/"):
            continue
        parts = _components(path.removesuffix(_DELETED))
        if parts not in paths:
            paths.append(parts)
    return tuple(paths)


def cgroup_selector(path: str) -> tuple[str, ...]:
    """Return the components of a configured cgroup path.

    A leading ``/sys/fs/cgroup`` is removed, since users copy paths with it. Components may
    be shell patterns (``kubepods.slice/*burstable*``).
    """
    if path == _MOUNT or path.startswith(_MOUNT + "/"):
        path = path.removeprefix(_MOUNT)
    return _components(path)


def in_cgroup(paths: tuple[tuple[str, ...], ...], selector: tuple[str, ...]) -> bool:
    """Return True where the process is in the selected cgroup or below, in any hierarchy."""
    return any(
        len(parts) >= len(selector)
        and all(fnmatchcase(have, want) for have, want in zip(parts, selector, strict=False))
        for parts in paths
    )


def unit_selector(unit: str) -> str:
    """Return the full name of a systemd unit: ``redis`` is ``redis.service``."""
    suffixes = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
    return unit if unit.endswith(suffixes) else f"{unit}.service"


def in_unit(paths: tuple[tuple[str, ...], ...], unit: str) -> bool:
    r"""Return True where a component of a path is the systemd unit.

    The unit may be given with or without systemd's ``\x2d`` escapes, and may be a shell pattern
    (``postgresql@*.service``). A name that the kernel would take for one of its
    own files gets a ``_`` before it (systemd's cg_escape()).
    """
    for parts in paths:
        for part in parts:
            name = part.removeprefix("_")
            if fnmatchcase(name, unit) or fnmatchcase(unescape_unit(name), unit):
                return True
    return False


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
