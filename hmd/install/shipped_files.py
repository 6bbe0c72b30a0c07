"""Location of the files that hmd ships with its code: units, drop-ins, a configuration."""

from __future__ import annotations

import sys
from pathlib import Path

import hmd
from hmd.errors import MissingError

UNIT = Path("systemd/hmd.service")
SYSUSERS = Path("systemd/sysusers.d/hmd.conf")
TMPFILES = Path("systemd/tmpfiles.d/hmd.conf")
CONFIG = Path("config/hmd.yaml")


def shipped_folder() -> Path:
    """Return the folder with ``systemd/`` and ``config/``: a checkout's, or share/hmd.

    Raises MissingError if the installation is incomplete.
    """
    tried = (Path(hmd.__file__).parents[1], Path(sys.prefix) / "share/hmd", Path("/usr/share/hmd"))
    for folder in tried:
        if (folder / UNIT).is_file():
            return folder
    raise MissingError(f"{UNIT} is missing from {tried[1]}: install hmd again")


def sampler_drop_in(folder: Path, sampler: str) -> Path | None:
    """Return the drop-in that a sampler needs in addition to the unit, None if it needs none."""
    path = folder / "systemd/samplers" / f"{sampler}.conf"
    return path if path.is_file() else None
