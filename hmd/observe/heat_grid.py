"""A heat map of one process as arrays: addresses by time.

Takes the answer of ``{"command": "heatmap"}``. Rows are the parts of the address space that had
pages at any moment, by address; gaps between them are left out.
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

    ``address`` is the start of a row, ``seconds`` the time of a moment since the first; NaN where
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
    """Return the heat map of one process. Raises ``TargetError`` where there is none."""
    moments = [
        (moment["now_s"], process)
        for moment in document["moments"]
        for process in moment["processes"]
        if process["pid"] == pid
    ]
    if not moments:
        known = ", ".join(map(str, pids(document))) or "none yet"
        raise TargetError(f"the daemon has no heat map of pid {pid}; it has those of: {known}")
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
    """Fill one moment; a row has the mean of its bins."""
    row = np.searchsorted(rows, np.asarray(process["chunk"], np.uint64), side="right") - 1
    count = np.bincount(row, minlength=len(rows))
    heat_sum = np.bincount(row, process["heat"], len(rows))
    pages = np.asarray(process["pages"], np.float64).reshape(len(row), -1)
    total = np.bincount(row, pages.sum(axis=1), len(rows))
    fast_pages = np.bincount(row, pages[:, 0], len(rows))
    here = count > 0
    heat[here] = heat_sum[here] / count[here]
    here = total > 0
    fast[here] = fast_pages[here] / total[here]
