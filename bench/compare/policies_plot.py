"""The plot of the comparison: speed of each system over first touch, by program and ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.compare.comparison_case import SWEPT, THP
from bench.compare.systems import FIRST

WHOLE = ("all-fast", "all-slow")

_FAMILIES = {"kernel-tiering": "Purples", "damon": "Greens", "hmd": "Oranges"}
"""Colour maps by the start of a system's name; systems that move no page are grey."""


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write a PNG file with one panel per ratio and one group of bars per program."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    took = {
        (c["program"], c["ratio"], c["system"]): c["modelled_seconds"] for c in document["cases"]
    }
    ratios = [r for r in document["ratios"] if any(key[1] == r for key in took)]
    systems = [
        s
        for s in document["systems"]
        if s not in WHOLE and s != FIRST.name and not s.endswith((SWEPT, THP))
    ]
    programs = document["programs"]
    if not ratios or not systems:
        return
    height = 3.2 * len(ratios) + 0.6
    figure, axes = plt.subplots(len(ratios), 1, figsize=(12, height), squeeze=False)
    colours = _colours(systems)
    for axis, ratio in zip(axes[:, 0], ratios, strict=True):
        width = 0.85 / len(systems)
        for number, system in enumerate(systems):
            at = [row - 0.42 + (number + 0.5) * width for row in range(len(programs))]
            axis.bar(
                at,
                [_speed(took, name, ratio, system) for name in programs],
                width,
                label=system,
                color=colours[system],
            )
        _mark(axis, [_speed(took, name, ratio, "all-fast", of="whole") for name in programs], ":")
        _mark(axis, [_speed(took, name, ratio, "oracle") for name in programs], "-")
        axis.axhline(1, color="black", linewidth=0.6)
        axis.set_xticks(range(len(programs)), programs, rotation=20, ha="right")
        axis.set_ylabel(f"{ratio}: speed over first touch")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), fontsize="small", ncols=6, loc="upper center"
    )
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.6 / height))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _colours(systems: Sequence[str]) -> dict[str, Any]:
    """Return a colour per system: a shade of its family, the last one darkest."""
    import matplotlib

    family = {s: next((f for f in _FAMILIES if s.startswith(f)), "") for s in systems}
    members = {f: [s for s in systems if family[s] == f] for f in set(family.values())}
    return {
        system: matplotlib.colormaps[_FAMILIES.get(name, "Greys")](
            0.25 + 0.5 * (members[name].index(system) + 1) / len(members[name])
        )
        for system, name in family.items()
    }


def _mark(axis: Any, heights: Sequence[float], style: str) -> None:
    """Draw a line over each program's bars; none where the height is 0."""
    for row, height in enumerate(heights):
        if height:
            axis.hlines(height, row - 0.45, row + 0.45, "black", style, linewidth=1)


def _speed(took: Mapping[Any, float], program: str, ratio: str, system: str, of: str = "") -> float:
    """Return first touch's runtime over that of a system; 0 where either is missing.

    ``of`` is the system's ratio where that is another.
    """
    base = took.get((program, ratio, FIRST.name))
    mine = took.get((program, of or ratio, system))
    return base / mine if base and mine else 0.0
