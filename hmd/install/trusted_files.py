"""What the service would run with its capabilities, and who may change it.

A user who may write a program, a library or a folder on the way to one gets the service's
capabilities, CAP_SYS_PTRACE among them.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import hmd

ROOT: Final = 0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
MAX_SHOWN: Final = 3


def service_files(command: Path, shipped: Path) -> list[Path]:
    """Return the command, its interpreter, and the folders of the libraries that it imports."""
    libraries = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    return [
        command,
        Path(sys.executable),
        Path(hmd.__file__).parent,
        shipped / "systemd",
        *map(Path, sorted(libraries)),
    ]


def untrusted(paths: Iterable[Path]) -> list[str]:
    """Return what users other than root may write: of the paths, below them, and on the way.

    Links are followed. One line per file or folder, such as ``/home/u/venv (uid 1000)``.
    """
    found: dict[Path, str] = {}
    for path in paths:
        for place in (*_way(path), *_way(path.resolve()), *_below(path)):
            if place not in found and (reason := _reason(place)):
                found[place] = f"{place} ({reason})"
    return list(found.values())


def refusal(places: list[str]) -> str:
    """Return the line that refuses to run what others may write."""
    shown = ", ".join(places[:MAX_SHOWN])
    more = f" and {len(places) - MAX_SHOWN} more" if len(places) > MAX_SHOWN else ""
    return (
        f"others than root may change what the service would run: {shown}{more}; install hmd where "
        "only root writes (the package, or a virtual environment made by root), or add "
        "--accept-writable"
    )


def _way(path: Path) -> Iterator[Path]:
    path = path.absolute()
    yield from (*reversed(path.parents), path)


def _below(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for folder, folders, files in os.walk(path):
            yield from (Path(folder, name) for name in (*folders, *files))


def _reason(path: Path) -> str:
    """Return who else may change a file or folder, nothing for a trusted or missing one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if status.st_uid != ROOT:
        return f"uid {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return ""  # its folder decides who may replace it
    # In a sticky folder, such as /tmp, only owners rename and remove.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & _OTHERS_WRITE and not sticky:
        group = status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH
        if group and status.st_gid == ROOT:
            return ""
        return f"group {status.st_gid} may write" if group else "everyone may write"
    return ""
