"""Tables of docs/results/tensors.json; :mod:`bench.documents.tables` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.documents.markdown_table import table
from bench.tensors.planners import geomean

Results = Mapping[str, Any]

_IN_PLACE = (
    "lru-free",
    "autotm-static",
    "autotm-sync",
    "autotm",
    "sentinel",
    "deeptm",
    "portfolio",
)


def tier_sweeps(results: Results) -> str:
    """Return the shares of the ideal for other host memories and other flash."""
    names = ("g10", "g10@1.394", "portfolio")
    head = ["trace", "rules", "tiers", *names, "bound"]
    return table(head, _shares(results, names, _swept, bound=True), text=3)


def in_place_steps(results: Results) -> str:
    """Return the shares of the ideal where kernels compute from DRAM and persistent memory."""
    head = ["trace", "rules", "tiers", *_IN_PLACE]
    return table(head, _shares(results, _IN_PLACE, _dram, bound=False), text=3)


def programs(results: Results) -> str:
    """Return how far the price of each integer program is from the simulator's, and its gap."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    names = ("autotm-static", "autotm-sync", "autotm", "portfolio")
    for row in results["tensors"]["rows"]:
        if _dram(row["tiers"]) and row["rules"] == "strict" and row["objective_seconds"]:
            cells = found.setdefault((row["trace"], row["tiers"]), {})
            difference = row["objective_seconds"] / row["seconds"] - 1
            cells[row["planner"]] = f"{100 * difference:+.1f} % ({100 * row['gap']:.2f} %)"
    rows = [[*key, *(cells.get(name, "-") for name in names)] for key, cells in found.items()]
    return table(["trace", "tiers", *names], rows, text=2)


def made_steps(results: Results) -> str:
    """Return the least and the mean ratio of speeds of ``portfolio`` on made steps, per shape.

    The last column is the speed of ``portfolio`` over that of the lower bound, under strict rules.
    """
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    shares: dict[str, list[float]] = {}
    for row in results["tensors"]["rows"]:
        if row["tiers"].startswith("made"):
            cells = times.setdefault((row["trace"], row["rules"], row["tiers"]), {})
            cells[row["planner"]] = row["seconds"]
            if row["planner"] == "portfolio" and row["rules"] == "strict":
                share = row["bound_seconds"] / row["seconds"]
                shares.setdefault(row["trace"], []).append(share)
    ratios: dict[tuple[str, str], list[float]] = {}
    for (trace, _, _), cells in times.items():
        for planner, seconds in cells.items():
            if planner != "portfolio":
                ratios.setdefault((trace, planner), []).append(seconds / cells["portfolio"])
    planners = list(dict.fromkeys(planner for _, planner in ratios))
    rows = [
        [
            trace,
            *(_least_and_mean(ratios.get((trace, planner), [])) for planner in planners),
            _least_and_mean(shares.get(trace, [])),
        ]
        for trace in dict.fromkeys(trace for trace, _ in ratios)
    ]
    return table(["step", *planners, "bound (strict)"], rows, text=1)


def _least_and_mean(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    return f"{min(ratios):.3f} ({geomean(ratios):.2f})"


def noise(results: Results) -> str:
    """Return what plans lose, in points, to noise of the kernels' times that they do not know."""
    rows = [
        [
            row["trace"],
            row["rules"],
            f"± {100 * row['noise']:.0f} %",
            f"{row['seeds']}",
            f"{row['mean_loss_points']:.3f}",
            f"{row['worst_loss_points']:.3f}",
        ]
        for row in results["tensors"]["noise"]
    ]
    return table(["trace", "rules", "noise", "seeds", "mean loss", "worst loss"], rows, text=3)


def _swept(tiers: str) -> bool:
    return tiers.startswith(("host", "flash"))


def _dram(tiers: str) -> bool:
    return tiers.startswith("dram-pm")


def _shares(
    results: Results, names: tuple[str, ...], chosen: Callable[[str], bool], *, bound: bool
) -> list[list[str]]:
    """Return rows of the chosen systems: trace, rules, tiers, share of the ideal per planner."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in results["tensors"]["rows"]:
        if chosen(row["tiers"]):
            cells = found.setdefault((row["trace"], row["rules"], row["tiers"]), {})
            cells[row["planner"]] = f"{row['ideal_seconds'] / row['seconds']:.4f}"
            cells["bound"] = f"{row['ideal_seconds'] / row['bound_seconds']:.4f}"
    columns = (*names, "bound") if bound else names
    return [[*key, *(cells.get(name, "-") for name in columns)] for key, cells in found.items()]
