"""The picture of the comparison: each system's speed on each program and ratio, of all fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WHOLE = ("all-fast", "all-slow")


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw a panel a ratio, a group of bars a program, into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    took = {
        (c["program"], c["ratio"], c["system"]): c["modelled_seconds"] for c in document["cases"]
    }
    ratios = [r for r in document["ratios"] if any(key[1] == r for key in took)]
    systems = [s for s in document["systems"] if s not in WHOLE]
    programs = document["programs"]
    if not ratios or not systems:
        return
    figure, axes = plt.subplots(len(ratios), 1, figsize=(10, 2.7 * len(ratios)), squeeze=False)
    colours = plt.get_cmap("tab20")
    for axis, ratio in zip(axes[:, 0], ratios, strict=True):
        width = 0.85 / len(systems)
        for number, system in enumerate(systems):
            at = [row - 0.42 + (number + 0.5) * width for row in range(len(programs))]
            axis.bar(
                at,
                [_speed(took, name, ratio, system) for name in programs],
                width,
                label=system,
                color=colours(number),
            )
        _mark(axis, [_speed(took, name, "whole", "all-slow") for name in programs], ":")
        _mark(axis, [_speed(took, name, ratio, "oracle") for name in programs], "-")
        axis.axhline(1, color="black", linewidth=0.6)
        axis.set_xticks(range(len(programs)), programs)
        axis.set_ylabel(f"{ratio}: speed of all fast")
    axes[0, 0].legend(fontsize="x-small", ncols=8, loc="lower left", bbox_to_anchor=(0, 1))
    figure.suptitle("black: static oracle; dotted: all slow", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _mark(axis: Any, heights: Sequence[float], style: str) -> None:
    for row, height in enumerate(heights):
        axis.hlines(height, row - 0.45, row + 0.45, color="black", linestyle=style, linewidth=1)


def _speed(took: Mapping[Any, float], program: str, ratio: str, system: str) -> float:
    """Return the runtime with all fast over a system's, 0 where either is missing."""
    whole = took.get((program, "whole", "all-fast"))
    mine = took.get((program, ratio, system))
    return whole / mine if whole and mine else 0.0
