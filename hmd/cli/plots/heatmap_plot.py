"""The plot of a heat map: time on x, address on y, coloured by heat (left) and by tier (right)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.cli.plots.plotting import load_pyplot, save_plot
from hmd.observe.heat_grid import grid


def draw(document: Mapping[str, Any], pid: int, file: Path, title: str | None = None) -> None:
    """Write the plot of one process's heat map.

    Raises TargetError where the document has none of this process, and what ``plotting`` raises.
    """
    seen = grid(document, pid)
    pyplot = load_pyplot("or use --json")
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
    figure.colorbar(hot, ax=left, label="heat (accesses per page and second)")
    tier = right.pcolormesh(edges, floor, seen.fast, cmap="coolwarm_r", vmin=0, vmax=1)
    figure.colorbar(tier, ax=right, label="share of pages on the fastest tier")
    left.set_title(title or f"heat, pid {pid}")
    right.set_title("tier")
    marks = np.linspace(0, len(seen.address) - 1, min(9, len(seen.address))).astype(int)
    left.set_yticks(marks + 0.5, [f"{seen.address[i]:x}" for i in marks.tolist()])
    left.set_ylabel("address (parts without memory left out)")
    for axes in (left, right):
        axes.set_xlabel("seconds")
    save_plot(figure, file)


def _edges(seconds: npt.NDArray[np.float64]) -> Sequence[float]:
    """Return the edges of cells that begin at these times."""
    last = seconds[-1] - seconds[-2] if len(seconds) > 1 else 1.0
    edges: list[float] = [*seconds.tolist(), float(seconds[-1] + (last or 1.0))]
    return edges
