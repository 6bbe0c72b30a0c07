# SPDX-License-Identifier: MIT
"""The picture of docs/results/tensors.json: shares of the ideal over the sizes of memory tiers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[2]
PUBLISHED: Final = _ROOT / "docs/results/tensors.json"
RULES: Final = "strict"
PLANNERS: Final = {
    "g10": "tab:orange",
    "autotm": "tab:green",
    "sentinel": "tab:purple",
    "deeptm": "tab:brown",
    "portfolio": "tab:blue",
}

Point = tuple[float, float]


def sweeps(document: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, list[Point]]]:
    """Return points (size, share of the ideal) by sweep and trace, and by planner or ``bound``."""
    found: dict[tuple[str, str], dict[str, list[Point]]] = {}
    for row in document["rows"]:
        place = swept(row["tiers"])
        if place is None or row["rules"] != RULES:
            continue
        kind, size = place
        lines = found.setdefault((kind, row["trace"]), {})
        lines.setdefault(row["planner"], []).append((size, row["ideal_seconds"] / row["seconds"]))
        bound = size, row["ideal_seconds"] / row["bound_seconds"]
        if bound not in lines.setdefault("bound", []):
            lines["bound"].append(bound)
    return {key: lines for key, lines in found.items() if len(lines["bound"]) > 1}


def swept(tiers: str) -> tuple[str, float] | None:
    """Return the sweep and the size that rows name in their tiers; None of other rows."""
    words = tiers.split()
    if words[0] in ("host", "flash"):
        return f"{words[0]}, {words[2]}", float(words[1])
    if words[0] == "dram-pm,":
        return "DRAM, % of the peak", float(words[-1].rstrip("%"))
    return None


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write a PNG file with one panel per sweep and trace."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = sorted(sweeps(document).items())
    columns = 3
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(11, 2.9 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, ((kind, trace), lines) in zip(axes.flat, panels, strict=False):
        for planner, colour in PLANNERS.items():
            if planner in lines:
                points = zip(*sorted(lines[planner]), strict=True)
                axis.plot(*points, "o-", color=colour, label=planner, markersize=3)
        axis.plot(*zip(*sorted(lines["bound"]), strict=True), "k:", label="bound")
        axis.set_title(trace, fontsize="medium")
        axis.set_xlabel(kind)
        axis.set_ylabel("share of the ideal")
        axis.set_ylim(0, 1.05)
        axis.grid(visible=True, linewidth=0.3)
        axis.legend(fontsize="x-small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
