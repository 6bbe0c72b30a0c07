"""A heat map as arrays: one process, addresses by time.

Takes the answer of ``{"command": "heatmap"}``. Rows are parts of the address space that ever had
pages, in order of address; gaps between them are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.errors import TargetError
from hmd.heat.geometry import CHUNK_BYTES

MAX_ROWS = 512


@dataclass(frozen=True, slots=True)
class HeatGrid:
    """One process over time; ``heat`` and ``fast`` have shape ``(rows, moments)``.

    ``address`` is where a row begins, ``seconds`` when a moment was, from the first; NaN where
    there was no memory. ``fast`` is the share of a row's pages on the fastest tier.
    """

    address: npt.NDArray[np.uint64]
    seconds: npt.NDArray[np.float64]
    heat: npt.NDArray[np.float64]
    fast: npt.NDArray[np.float64]


def pids(document: Mapping[str, Any]) -> list[int]:
    """Return the processes in a heat map."""
    found = {p["pid"] for moment in document["moments"] for p in moment["processes"]}
    return sorted(found)


def grid(document: Mapping[str, Any], pid: int, most_rows: int = MAX_ROWS) -> HeatGrid:
    """Return a process's part of a heat map; ``TargetError`` where it has none."""
    moments = [
        (moment["now_s"], process)
        for moment in document["moments"]
        for process in moment["processes"]
        if process["pid"] == pid
    ]
    if not moments:
        known = ", ".join(map(str, pids(document))) or "none yet"
        raise TargetError(f"the daemon has no heat map of pid {pid}; it has of: {known}")
    chunks = np.unique(np.concatenate([np.asarray(p["chunk"], np.uint64) for _, p in moments]))
    step = -(-len(chunks) // most_rows)
    rows = chunks[::step]
    heat = np.full((len(rows), len(moments)), np.nan)
    fast = np.full_like(heat, np.nan)
    for column, (_, process) in enumerate(moments):
        _fill(heat[:, column], fast[:, column], rows, process)
    times = np.array([now_s for now_s, _ in moments])
    return HeatGrid(rows * np.uint64(CHUNK_BYTES), times - times[0], heat, fast)


def _fill(
    heat: npt.NDArray[np.float64],
    fast: npt.NDArray[np.float64],
    rows: npt.NDArray[np.uint64],
    process: Mapping[str, Any],
) -> None:
    """Fill one moment: bins that fall into a row are averaged."""
    place = np.searchsorted(rows, np.asarray(process["chunk"], np.uint64), side="right") - 1
    count = np.bincount(place, minlength=len(rows))
    warm = np.bincount(place, process["heat"], len(rows))
    pages = np.asarray(process["pages"], np.float64).reshape(len(place), -1)
    total = np.bincount(place, pages.sum(axis=1), len(rows))
    quick = np.bincount(place, pages[:, 0], len(rows))
    here = count > 0
    heat[here] = warm[here] / count[here]
    here = total > 0
    fast[here] = quick[here] / total[here]
