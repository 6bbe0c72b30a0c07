"""A heat map as a picture: time across, address up, coloured by heat, and by tier beside it.

Takes the answer of ``{"command": "heatmap"}``, writes a PNG (or whatever matplotlib knows by its
suffix). Rows are parts of the address space that ever had pages, in order of address; gaps
between them are left out. matplotlib is imported here only, and only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.errors import MissingError, TargetError

MAX_ROWS = 512
CHUNK_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Grid:
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


def grid(document: Mapping[str, Any], pid: int, most_rows: int = MAX_ROWS) -> Grid:
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
    return Grid(rows * np.uint64(CHUNK_BYTES), times - times[0], heat, fast)


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


def draw(document: Mapping[str, Any], pid: int, file: Path, title: str | None = None) -> None:
    """Write the picture of a process's heat map.

    Raises ``TargetError`` where there is none of it, ``MissingError`` without matplotlib.
    """
    seen = grid(document, pid)
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingError(
            "pictures need matplotlib: pip install 'hmd[plot]', or take --json"
        ) from None
    mpl.use("agg")
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm

    figure, (left, right) = pyplot.subplots(1, 2, sharey=True, figsize=(12, 6), layout="tight")
    warmest = float(np.nanmax(seen.heat, initial=0.0)) or 1.0
    edges = _edges(seen.seconds)
    floor = np.arange(len(seen.address) + 1)
    hot = left.pcolormesh(
        edges,
        floor,
        np.maximum(seen.heat, warmest / 1e3),
        cmap="inferno",
        norm=LogNorm(warmest / 1e3, warmest),
    )
    figure.colorbar(hot, ax=left, label="heat (cooled accesses a page)")
    tier = right.pcolormesh(edges, floor, seen.fast, cmap="coolwarm_r", vmin=0, vmax=1)
    figure.colorbar(tier, ax=right, label="share of pages on the fastest tier")
    left.set_title(title or f"heat, pid {pid}")
    right.set_title("tier")
    marks = np.linspace(0, len(seen.address) - 1, min(9, len(seen.address))).astype(int)
    left.set_yticks(marks + 0.5, [f"{seen.address[i]:x}" for i in marks.tolist()])
    left.set_ylabel("address (parts without memory left out)")
    for axes in (left, right):
        axes.set_xlabel("seconds")
    try:
        figure.savefig(file, dpi=120)
    except (OSError, ValueError) as error:
        raise MissingError(f"cannot write the picture {file}: {error}") from None
    finally:
        pyplot.close(figure)


def _edges(seconds: npt.NDArray[np.float64]) -> Sequence[float]:
    """Return the edges of cells that begin at these times."""
    last = seconds[-1] - seconds[-2] if len(seconds) > 1 else 1.0
    edges: list[float] = [*seconds.tolist(), float(seconds[-1] + (last or 1.0))]
    return edges
