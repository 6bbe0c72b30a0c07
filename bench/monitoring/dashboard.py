# SPDX-License-Identifier: MIT
"""The picture of the Grafana dashboard from a real Prometheus: docs/images/dashboard.png.

    python -m bench.monitoring.dashboard [PROGRAM] [RUNS]   a program of the suite (drift, 4 runs)

The program runs a few times in the emulated machine, with a third of its memory fast, next to the
daemon, whose metrics a Prometheus on this host gets every second. The picture has the rows ``ROWS``
in Grafana's arrangement, drawn from that server's answers. Seconds are those of the guest's clock.
Needs the extra plot.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.compare.comparison_case import (
    ComparisonCase,
    compared_digest,
    compared_program,
    run_trial,
)
from bench.compare.guest_services import Pace, running_daemon
from bench.compare.policies import FOLDER
from bench.compare.systems import FIRST
from bench.compare.testbed import FIRST_TOUCH, Testbed, footprint_bytes, stage
from bench.monitoring.prometheus import DashboardPanel, Prometheus, Series, panels
from bench.suite.inputs import prepare
from hmd.emulate.demo.measure import service
from hmd.emulate.vm.images import warm_kernels

COLUMNS, WIDTH_IN, ROW_IN = 24, 22.0, 0.36
POINTS = 240
COLOURS = 64
MARGIN = {"left": 0.7, "right": 0.1, "top": 0.32, "bottom": 0.75}
"""Margins of a panel in inches, for ticks, title and legend."""
SCALES = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")),
    "Bps": ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "percentunit": ((0.01, "%"),),
}

_SHORT = 5
"""Characters of a unit that the ticks of an axis have room for; longer ones are in the title."""

ROWS = ("Overview", "Tiers", "Targets", "Decisions and moves", "Sampling", "Cost of hmd")
RATIO = "1:2"
PACE = Pace(1.0)
ADDRESS = "127.0.0.1:9744"
RATE_INTERVAL = "8s"


def draw(
    prometheus: Prometheus, begin_s: float, end_s: float, rate_interval: str, path: Path
) -> None:
    """Query the data of all panels between two Unix times, and write the plot as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    found = _arranged(rate_interval)
    height = max(panel.raw["gridPos"]["y"] + panel.raw["gridPos"]["h"] for panel in found)
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


def _arranged(rate_interval: str) -> list[DashboardPanel]:
    """Return the panels of ``ROWS``, with each row below the one before."""
    found, top = [], 1
    for row in ROWS:
        of_row = [panel for panel in panels(rate_interval=rate_interval) if panel.row == row]
        places = [panel.raw["gridPos"] for panel in of_row]
        moved = top - min(place["y"] for place in places)
        for place in places:
            place["y"] += moved
        top = 1 + max(place["y"] + place["h"] for place in places)
        found += of_row
    return found


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
    from matplotlib.ticker import MultipleLocator

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
    axes.xaxis.set_major_locator(MultipleLocator(60))
    axes.xaxis.set_major_formatter(lambda second, _: f"{second // 60:.0f}:{second % 60:02.0f}")
    short = unit if len(unit) <= _SHORT else ""
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g} {short}".rstrip())
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.tick_params(labelsize=9, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(
        panel.title if short == unit else f"{panel.title} ({unit})", fontsize=10, loc="left"
    )
    if not series:
        return
    columns = min(len(series), 4)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.12),
        ncol=columns,
        fontsize=9,
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
        axes.text(0, row, f" {name}: {value:.3g} {unit}", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_axis_off()
    axes.set_title(panel.title, fontsize=10, loc="left")


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
    axes.set_title(panel.title, fontsize=10, loc="left")


def _name(legend: str, series: Series) -> str:
    """Return a legend with its labels filled in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend)


def _scale(unit: str, most: float) -> tuple[float, str]:
    """Return the divisor of values, and the unit of the result."""
    if unit in SCALES:
        last = SCALES[unit][-1]
        return next((pair for pair in SCALES[unit] if abs(most) >= pair[0]), last)
    return 1.0, unit.removeprefix("suffix: ").replace("none", "")


PICTURE = Path(__file__).resolve().parents[2] / "docs/images/dashboard.png"

_COPY = f"""
while sleep 1; do
    curl --silent --fail http://{ADDRESS}/metrics > "$1.new" && mv "$1.new" "$1"
done"""


@contextlib.contextmanager
def served(ready: Testbed) -> Iterator[str]:
    """Serve the guest's metrics on this host, a copy of each second; yields the address."""
    copy = ready.folder / "metrics"
    copy.unlink(missing_ok=True)
    said = bytearray()
    words = service(["sh", "-c", _COPY, "sh", str(copy)])
    job = ready.machine.start(words, stdout=said.extend, stderr=said.extend)
    handler = partial(_QuietHandler, directory=str(ready.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while not copy.exists():
                time.sleep(0.2)
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            job.kill()


class _QuietHandler(SimpleHTTPRequestHandler):
    extensions_map: dict[str, str] = {"": "text/plain; version=0.0.4"}  # noqa: RUF012

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main(name: str = "drift", *, runs: int) -> None:
    """Run the program next to the daemon, scrape the metrics, draw the panels."""
    warm_kernels()
    make = partial(prepare, compared_program(name), FOLDER.parent / "suite/inputs")
    footprint = footprint_bytes(name, compared_digest(name), make, FOLDER)
    command, fast_bytes = make(), ComparisonCase(name, RATIO, FIRST.name).fast_bytes(footprint)
    with (
        stage([command], FOLDER / "share") as ready,
        running_daemon(ready, "benefit", PACE, metrics=ADDRESS) as daemon,
        served(ready) as address,
        tempfile.TemporaryDirectory() as folder,
        Prometheus(Path(folder), {"hmd": address}) as prometheus,
    ):
        begun_s = time.time()
        for _ in range(runs):
            run_trial(ready, command, FIRST_TOUCH, fast_bytes, service=daemon.moving())
        draw(prometheus, begun_s + 3, time.time() - 2, RATE_INTERVAL, PICTURE)
    print(f"{name}, {runs} runs in {time.time() - begun_s:.0f} s: {PICTURE}")


if __name__ == "__main__":
    main(*sys.argv[1:2], runs=int(sys.argv[2]) if len(sys.argv) > 2 else 4)
