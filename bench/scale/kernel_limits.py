"""Limits of the kernel that a bench raises while it runs, as root: sysctls below /proc/sys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SYSCTL: Final = Path("/proc/sys")


@contextmanager
def raised(limits: Mapping[str, int], folder: Path = SYSCTL) -> Iterator[None]:
    """Raise limits, such as ``vm/max_map_count``, to these values at least; put them back after."""
    before = {name: (folder / name).read_text().strip() for name in limits}
    lower = {name: value for name, value in limits.items() if int(before[name]) < value}
    try:
        for name, value in lower.items():
            (folder / name).write_text(f"{value}\n")
        yield
    finally:
        for name in lower:
            (folder / name).write_text(f"{before[name]}\n")
