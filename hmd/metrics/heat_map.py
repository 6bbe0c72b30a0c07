# SPDX-License-Identifier: MIT
"""Heat maps: the heat and tier of the parts of processes' memory over the last minutes.

``HeatMap`` is the schema of the answer to ``{"command": "heatmap"}``, which the dashboard checks
it against; :mod:`hmd.metrics.heat_history` writes it. :func:`grid` makes the map of one process as
arrays, addresses by time. Needs no numba, which clients do not load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from hmd.base.errors import TargetError
from hmd.heat.settings import CHUNK_BYTES
from hmd.metrics.status import MAX_TIERS, Amount, Count, Text

MAX_BINS: Final = 512
"""Bins per process and tick."""

MAX_TICKS: Final = 300
"""Ticks that the daemon remembers."""

MAX_PROCESSES: Final = 8
"""Processes per tick, those with most resident memory."""

MAX_ROWS: Final = 512
"""Rows of a grid."""

_MAX_DIVISION: Final = 16
"""Into how many rows of a grid a bin is divided at most."""

BinNumber = Annotated[int, Field(ge=0, lt=2**52)]
BinHeat = Annotated[float, Field(ge=0, le=1e30)]
BinPages = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class ProcessHeat:
    """One process's memory at one moment, one row per bin.

    A bin begins at the address ``bin`` times ``bin_bytes``, which is 2 MiB, or less for processes
    so small that ``MAX_BINS`` show more. ``heat`` is the mean of accesses per second of its pages,
    ``pages`` are its resident pages by tier.
    """

    pid: Count
    start_ticks: Count
    target: Text
    bin_bytes: Annotated[int, Field(ge=1, le=CHUNK_BYTES)]
    bin: Annotated[list[BinNumber], Field(max_length=MAX_BINS)]
    heat: Annotated[list[BinHeat], Field(max_length=MAX_BINS)]
    pages: Annotated[
        list[Annotated[list[BinPages], Field(max_length=MAX_TIERS)]], Field(max_length=MAX_BINS)
    ]


@dataclass(frozen=True, slots=True)
class HeatMoment:
    """The largest processes after one tick; ``now_s`` is of a monotonic clock."""

    now_s: Amount
    processes: Annotated[tuple[ProcessHeat, ...], Field(max_length=MAX_PROCESSES)]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Moments, oldest first, and the number of tiers."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, allow_inf_nan=False)

    tiers: Annotated[int, Field(ge=1, le=MAX_TIERS)]
    moments: Annotated[tuple[HeatMoment, ...], Field(max_length=MAX_TICKS)]


@dataclass(frozen=True, slots=True)
class HeatGrid:
    """One process over time; ``heat`` and ``fast`` have shape ``(rows, moments)``.

    Rows are the parts of the address space that had pages at any moment. ``address`` is the start
    of a row, ``seconds`` the time of a moment since the first; NaN where there was no memory.
    ``fast`` is the share of a row's pages on the fastest tier.
    """

    address: npt.NDArray[np.uint64]
    seconds: npt.NDArray[np.float64]
    heat: npt.NDArray[np.float64]
    fast: npt.NDArray[np.float64]


def pids(document: Mapping[str, Any]) -> list[int]:
    """Return the processes in a heat map's JSON."""
    found = {p["pid"] for moment in document["moments"] for p in moment["processes"]}
    return sorted(found)


def grid(document: Mapping[str, Any], pid: int) -> HeatGrid:
    """Return one process of a heat map's JSON. Raises ``TargetError`` where there is none."""
    moments = [
        (moment["now_s"], process)
        for moment in document["moments"]
        for process in moment["processes"]
        if process["pid"] == pid
    ]
    if not moments:
        known = ", ".join(map(str, pids(document))) or "none yet"
        raise TargetError(f"the daemon has no heat map of pid {pid}; it has those of: {known}")
    return grid_of(moments)


def grid_of(
    moments: Sequence[tuple[float, Mapping[str, Any]]], max_rows: int = MAX_ROWS
) -> HeatGrid:
    """Return the grid of one process's moments, each a time and the columns of ``ProcessHeat``.

    Rows are as large as bins of the last moment, but at least 1/16 of the largest of all.
    """
    sizes = [int(process["bin_bytes"]) for _, process in moments]
    row_bytes = max(sizes[-1], max(sizes) // _MAX_DIVISION)
    columns = [_divided(process, row_bytes) for _, process in moments]
    bins = np.unique(np.concatenate([number for number, _, _ in columns]))
    rows = bins[:: -(-len(bins) // max_rows)]
    heat = np.full((len(rows), len(moments)), np.nan)
    fast = np.full_like(heat, np.nan)
    for column, found in enumerate(columns):
        _fill(heat[:, column], fast[:, column], rows, *found)
    times = np.array([now_s for now_s, _ in moments])
    return HeatGrid(rows * np.uint64(row_bytes), times - times[0], heat, fast)


def _divided(
    process: Mapping[str, Any], row_bytes: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return a process's bins, those larger than a row in parts: number of row, heat, pages."""
    bin_bytes = int(process["bin_bytes"])
    parts = max(1, bin_bytes // row_bytes)
    start = np.asarray(process["bin"], np.uint64)[:, None] * np.uint64(bin_bytes)
    row = (start + np.arange(parts, dtype=np.uint64) * np.uint64(row_bytes)) // np.uint64(row_bytes)
    pages = np.asarray(process["pages"], np.float64).reshape(len(start), -1) / parts
    return (
        row.ravel(),
        np.repeat(np.asarray(process["heat"], np.float64), parts),
        np.repeat(pages, parts, axis=0),
    )


def _fill(
    heat: npt.NDArray[np.float64],
    fast: npt.NDArray[np.float64],
    rows: npt.NDArray[np.uint64],
    bins: npt.NDArray[np.uint64],
    bin_heat: npt.NDArray[np.float64],
    pages: npt.NDArray[np.float64],
) -> None:
    """Fill one moment; a row has the mean of its bins."""
    row = np.searchsorted(rows, bins, side="right") - 1
    count = np.bincount(row, minlength=len(rows))
    total = np.bincount(row, pages.sum(axis=1), len(rows))
    parts = (
        (heat, np.bincount(row, bin_heat, len(rows)), count),
        (fast, np.bincount(row, pages[:, 0], len(rows)), total),
    )
    for column, sums, divisor in parts:
        np.divide(sums, divisor, out=column, where=divisor > 0)
