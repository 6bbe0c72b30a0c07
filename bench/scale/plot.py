"""The plot of the cost of a tick: CPU time and memory over the memory that is tracked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.scale.scaled_samples import PATTERNS

PAGES: Final = {4: "4 KiB", 2048: "2 MiB"}
"""Sizes of pages in KiB, and their labels."""


def draw(document: Mapping[str, Any], path: Path, policy: str) -> None:
    """Write a PNG file with the rows of a policy; both scales of each panel are logarithmic.

    Lines are of one process. Other numbers of processes have a mark each.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in document["rows"] if row["policy"] == policy]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
    for (page_kib, label), style in zip(PAGES.items(), ("-", ":"), strict=True):
        for pattern, colour in zip(PATTERNS, ("tab:blue", "tab:orange", "tab:green"), strict=True):
            chosen = sorted(
                (row for row in rows if (row["page_kib"], row["pattern"]) == (page_kib, pattern)),
                key=lambda row: int(row["tracked_gib"]),
            )
            for axis, value in zip(axes, (cost_ms, resident_mib), strict=True):
                one = [row for row in chosen if row["processes"] == 1]
                axis.plot(
                    [row["tracked_gib"] for row in one],
                    [value(row) for row in one],
                    style,
                    color=colour,
                    marker="o",
                    markersize=3,
                    label=f"{pattern}, {label}",
                )
                for row in chosen:
                    if row["processes"] > 1:
                        axis.plot(row["tracked_gib"], value(row), "x", color=colour)
    axes[0].set_ylabel("CPU time of heat and decisions per tick, ms")
    axes[1].set_ylabel("peak resident set, MiB")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("tracked memory, GiB (x: in 1,000 processes)")
        axis.grid(visible=True, which="both", linewidth=0.3)
    axes[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def cost_ms(row: Mapping[str, Any]) -> float:
    """Return the CPU time of heat and decisions."""
    return float(row["heat_ms"] + row["decide_ms"])


def resident_mib(row: Mapping[str, Any]) -> float:
    """Return the peak resident set."""
    return float(row["rss_mib"])
