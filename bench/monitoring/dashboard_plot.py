"""The dashboard's panels in Grafana's arrangement, drawn from the answers of a Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.monitoring.grafana import DashboardPanel, panels
from bench.monitoring.prometheus import Prometheus, Series

COLUMNS, WIDTH_IN, ROW_IN = 24, 22.0, 0.36
POINTS = 240
COLOURS = 64
MARGIN = {"left": 0.45, "right": 0.1, "top": 0.32, "bottom": 0.75}
"""Margins of a panel in inches, for ticks, title and legend."""
SCALES = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")),
    "Bps": ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "percentunit": ((0.01, "%"),),
}


def draw(
    prometheus: Prometheus, begin_s: float, end_s: float, rate_interval: str, path: Path
) -> None:
    """Query the data of all panels between two Unix times, and write the plot as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    found = panels(rate_interval=rate_interval)
    places = [panel.raw["gridPos"] for panel in found]
    height = max(place["y"] + place["h"] for place in places)
    figure = plt.figure(figsize=(WIDTH_IN, height * ROW_IN), facecolor="#f4f5f5")
    step_s = max(1.0, (end_s - begin_s) / POINTS)
    named = set()
    for panel in found:
        if panel.row not in named:
            named.add(panel.row)
            top = 1 - (panel.raw["gridPos"]["y"] - 0.35) / height
            figure.text(0.004, top, panel.row, fontsize=12, fontweight="bold", va="center")
        axes = figure.add_axes(_box(panel.raw["gridPos"], height, panel.kind))
        if panel.kind == "timeseries":
            _lines(axes, panel, prometheus, (begin_s, end_s, step_s))
        elif panel.kind == "bargauge":
            _bars(axes, panel, prometheus, end_s)
        else:
            _figure(axes, panel, prometheus, end_s)
    figure.savefig(path, dpi=75)
    plt.close(figure)
    with Image.open(path) as image:
        image.quantize(COLOURS).save(path, optimize=True)


def _box(place: Mapping[str, int], height: int, kind: str) -> tuple[float, float, float, float]:
    """Return the axes of a panel as shares of the figure: left, bottom, width, height."""
    margin = MARGIN if kind == "timeseries" else {**MARGIN, "left": 0.1, "bottom": 0.3}
    tall, column_in = height * ROW_IN, WIDTH_IN / COLUMNS
    left = place["x"] * column_in + margin["left"]
    bottom = tall - (place["y"] + place["h"]) * ROW_IN + margin["bottom"]
    wide = place["w"] * column_in - margin["left"] - margin["right"]
    high = place["h"] * ROW_IN - margin["top"] - margin["bottom"]
    return left / WIDTH_IN, bottom / tall, wide / WIDTH_IN, high / tall


def _lines(
    axes: Any, panel: DashboardPanel, prometheus: Prometheus, when: tuple[float, float, float]
) -> None:
    defaults = panel.raw["fieldConfig"]["defaults"]
    overrides = panel.raw["fieldConfig"]["overrides"]
    below = overrides[0]["matcher"]["options"].strip("/") if overrides else None
    series = [
        (_name(query.legend, one), one)
        for query in panel.queries
        for one in prometheus.ask_range(query.expr, *when)
    ]
    most = max((abs(value) for _, one in series for _, value in one.points), default=0.0)
    scale, unit = _scale(defaults["unit"], most)
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    floor: dict[float, float] = {}
    for name, one in series:
        sign = -1 if below and re.search(below, name) else 1
        seconds = [at - when[0] for at, _ in one.points]
        values = [sign * value / scale for _, value in one.points]
        if stacked:
            bases = [floor.get(at, 0.0) for at in seconds]
            tops = [base + value for base, value in zip(bases, values, strict=True)]
            axes.fill_between(seconds, bases, tops, alpha=0.4, linewidth=0)
            floor.update(zip(seconds, tops, strict=True))
            values = tops
        axes.plot(seconds, values, linewidth=1.2, label=name)
    if not most:
        axes.set_ylim(-0.02, 1)
    elif defaults.get("min") == 0:
        axes.set_ylim(bottom=0)
    if defaults.get("max") is not None:
        axes.set_ylim(top=defaults["max"] / scale)
    axes.set_xlim(0, when[1] - when[0])
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.tick_params(labelsize=7.5, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"{panel.title} ({unit})" if unit else panel.title, fontsize=9, loc="left")
    columns = min(max(len(series), 1), 4)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.12),
        ncol=columns,
        fontsize=7.5,
        frameon=False,
        borderaxespad=0,
        handlelength=1,
        columnspacing=1,
    )


def _bars(axes: Any, panel: DashboardPanel, prometheus: Prometheus, now_s: float) -> None:
    series = prometheus.ask(panel.queries[0].expr, now_s)
    scale, unit = _scale(panel.raw["fieldConfig"]["defaults"]["unit"], series[0].last)
    names = [_name(panel.queries[0].legend, one) for one in series]
    values = [one.last / scale for one in series]
    axes.barh(names, values, color="tab:green", alpha=0.5)
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        axes.text(0, row, f" {name}: {value:.3g} {unit}", va="center", fontsize=7.5)
    axes.invert_yaxis()
    axes.set_axis_off()
    axes.set_title(panel.title, fontsize=9, loc="left")


def _figure(axes: Any, panel: DashboardPanel, prometheus: Prometheus, now_s: float) -> None:
    defaults = panel.raw["fieldConfig"]["defaults"]
    answer = prometheus.ask(panel.queries[0].expr, now_s)
    text, colour = "no data", "tab:grey"
    if answer:
        value = answer[0].last
        scale, unit = _scale(defaults["unit"], value)
        text, colour = f"{value / scale:.3g} {unit}", "tab:green"
        for step in defaults["thresholds"]["steps"][1:]:
            colour = f"tab:{step['color']}" if value >= step["value"] else colour
        if "mappings" in defaults:
            state = defaults["mappings"][0]["options"][f"{value:.0f}"]
            text, colour = state["text"], f"tab:{state['color']}"
        if panel.raw["options"].get("textMode") == "name":
            text = _name(panel.queries[0].legend, answer[0]).replace(" ", "\n")
    size = 15 if "\n" not in text else 9
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=size, color=colour)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_alpha(0.2)
    axes.set_title(panel.title, fontsize=9, loc="left")


def _name(legend: str, series: Series) -> str:
    """Return a legend with its labels filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend)


def _scale(unit: str, most: float) -> tuple[float, str]:
    """Return the divisor of values, and the unit of the result."""
    if unit in SCALES:
        last = SCALES[unit][-1]
        return next((pair for pair in SCALES[unit] if abs(most) >= pair[0]), last)
    return 1.0, unit.removeprefix("suffix: ").replace("none", "")
