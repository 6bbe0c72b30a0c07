# SPDX-License-Identifier: MIT
"""The picture of the Grafana dashboard from a real Prometheus: docs/images/dashboard.png.

    python -m bench.monitoring.dashboard [PROGRAM] [RUNS]   a program of the suite (drift, 4 runs)

The program runs a few times in the emulated machine, with a third of its memory fast, next to the
daemon, whose metrics a Prometheus on this host gets every second. The picture has the panels
``PANELS``, drawn from that server's answers. Needs the extra plot.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
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

STATS = ("State", "Last tick", "Fast share", "Stall time saved")
PANELS = (
    *("Memory of targets by tier", "Accesses by tier"),
    *("Memory with 90 % of accesses", "Runtime with other fast memory"),
    *("Moved", "Predicted and realised saving"),
    *("Samples", "Overhead of samples"),
    *("Time of stages", "Ping-pong"),
    *("CPU", "Memory"),
)
"""Of some fifty panels, those that fit a page which is read on a phone, where a pixel of three is
left: two columns, large letters."""

WIDTH_IN, ROW_IN, DPI = 10.0, 3.3, 100
POINTS = 240
COLOURS = 64
LINES = (
    *(("#003f5c", "-"), ("#d1495b", "--"), ("#66a182", "-."), ("#edae49", (0, (1, 1)))),
    *(("#8d6a9f", (0, (5, 1, 1, 1))), ("#777777", (0, (1, 3)))),
)
"""Colours that differ in grey too, and dashes."""
SCALES = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")),
    "Bps": ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "percentunit": ((0.01, "%"),),
}

RATIO = "1:2"
PACE = Pace(1.0)
ADDRESS = "127.0.0.1:9744"
RATE_INTERVAL = "20s"


def draw(
    prometheus: Prometheus, begin_s: float, end_s: float, rate_interval: str, path: Path
) -> None:
    """Query the data of all panels between two Unix times, and write the plot as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    found = {panel.title: panel for panel in panels(rate_interval=rate_interval)}
    rows = 1 + len(PANELS) // 2
    plt.rcParams.update({"font.size": 15, "axes.titlesize": 17, "axes.linewidth": 0.8})
    figure = plt.figure(figsize=(WIDTH_IN, (rows - 0.6) * ROW_IN), layout="constrained")
    grid = figure.add_gridspec(rows, 4, height_ratios=[0.4, *[1.0] * (rows - 1)])
    for column, title in enumerate(STATS):
        _figure(figure.add_subplot(grid[0, column]), found[title], prometheus, end_s)
    step_s = max(1.0, (end_s - begin_s) / POINTS)
    for place, title in enumerate(PANELS):
        row, left = 1 + place // 2, place % 2 * 2
        axes = figure.add_subplot(grid[row, left : left + 2])
        _lines(axes, found[title], prometheus, (begin_s, end_s, step_s))
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def _lines(
    axes: Any, panel: DashboardPanel, prometheus: Prometheus, when: tuple[float, float, float]
) -> None:
    from matplotlib.ticker import MaxNLocator

    defaults = panel.raw["fieldConfig"]["defaults"]
    overrides = panel.raw["fieldConfig"]["overrides"]
    below = overrides[0]["matcher"]["options"].strip("/") if overrides else None
    series = [
        (_name(query.legend, one), one)
        for query in panel.queries
        for one in prometheus.ask_range(query.expr, *when)
    ]
    # What stays zero needs no line, unless all does.
    series = [pair for pair in series if any(value for _, value in pair[1].points)] or series
    most = max((abs(value) for _, one in series for _, value in one.points), default=0.0)
    scale, unit = _scale(defaults["unit"], most)
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    floor: dict[float, float] = {}
    for (name, one), (colour, dashes) in zip(series, itertools.cycle(LINES), strict=False):
        sign = -1 if below and re.search(below, name) else 1
        seconds = [at - when[0] for at, _ in one.points]
        values = [sign * value / scale for _, value in one.points]
        if stacked:
            bases = [floor.get(at, 0.0) for at in seconds]
            values = [base + value for base, value in zip(bases, values, strict=True)]
            axes.fill_between(seconds, bases, values, color=colour, alpha=0.5, linewidth=0)
            floor.update(zip(seconds, values, strict=True))
        for after in range(len(seconds) - 1, 0, -1):  # a gap, not a line across it
            if seconds[after] - seconds[after - 1] > 2 * when[2]:
                seconds.insert(after, seconds[after - 1])
                values.insert(after, math.nan)
        axes.plot(seconds, values, linewidth=2, label=name, color=colour, linestyle=dashes)
    if not most:
        axes.set_ylim(-0.02, 1)
    elif defaults.get("min") == 0:
        axes.set_ylim(bottom=0)
    if defaults.get("max") is not None:
        axes.set_ylim(top=defaults["max"] / scale)
    axes.set_xlim(0, when[1] - when[0])
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=(1.2, 3, 6)))
    axes.xaxis.set_major_formatter(lambda second, _: f"{second // 60:.0f}:{second % 60:02.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.grid(alpha=0.3, linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel(unit or "ratio")
    axes.set_xlabel("min:s", loc="right", labelpad=-14, fontsize=12)
    if series:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.15, -0.12),
            ncol=2 if max(len(name) for name, _ in series) <= 16 else 1,
            fontsize=13,
            frameon=False,
            borderaxespad=0,
            handlelength=1.6,
            columnspacing=1,
        )


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
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=18, color=colour)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_alpha(0.2)
    axes.set_title(panel.title, fontsize=14, loc="left")


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
