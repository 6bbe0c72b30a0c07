# SPDX-License-Identifier: MIT
"""The plot of the Grafana dashboard from a real Prometheus: docs/images/dashboard.png.

    python -m bench.monitoring.dashboard TRACE [SECONDS]   a recorded program's misses (300 s)

TRACE is a miss recording, by `hmd simulate --record` or of the suite (build/suite/streams). The
daemon's heat, policy and mover run on it in modelled time, with a quarter of its memory fast. Each
tick of 10 modelled ms is passed to an observer, one per second, and Prometheus scrapes the metrics.
The memory that it shows is that of this process, with the recording. Needs the extra plot.

The dashboard's panels in Grafana's arrangement, drawn from the answers of a Prometheus.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.monitoring.prometheus import DashboardPanel, Prometheus, Series, panels
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.metrics.demand import measure_demand
from hmd.metrics.exporter import MetricsServer
from hmd.metrics.observer import (
    ObservedConfig,
    Observer,
    ResidencyCounts,
    heat_pages,
    resident_pages,
)
from hmd.metrics.status import Stage, TickWatch
from hmd.policy.builtin.benefit import Benefit
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import RecordTime
from hmd.sample.sampler import CAPABILITIES, SamplerStats
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.pmu import PmuSettings, SimulatedPmu
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings

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

ADDRESS = "127.0.0.1:9744"
TICK_S = 1.0
DEMAND_TICKS = 10
FAST_SHARE = 0.25
RATE_INTERVAL = "8s"


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


class SampledProgram:
    """The PMU of a simulated machine, with the interface of the daemon's samplers."""

    name, detail = "simulated", "misses"
    capabilities = CAPABILITIES["emulated"]
    pair_period, outside_cpu_s, record_time = None, 0.0, RecordTime()

    def __init__(self, machine: SimulatedMachine, sampling: PmuSettings) -> None:
        self._pmu = SimulatedPmu(machine, sampling)
        self.period = sampling.period
        self.periods: tuple[int, ...] = (self.period,)
        self.stats = SamplerStats()

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""
        batch = self._pmu.read()
        self.stats.samples += len(batch)
        self.stats.wakeups += bool(len(batch))
        return batch

    def set_period(self, period: int) -> int:
        """Ignore the request: the period is fixed."""
        return self.period

    def track(self, processes: object) -> None:
        """Ignore the request: there is one program."""

    def close(self) -> None:
        """Free nothing."""


class ObservedSimulation:
    """The daemon over a simulated machine, and an observer that publishes its ticks."""

    def __init__(self, machine: SimulatedMachine, name: str) -> None:
        self.machine = machine
        self.daemon = SimulatedDaemon(machine, Benefit(), SimulationSettings())
        sampler = SampledProgram(machine, self.daemon.settings.sampling)
        inputs = self.daemon.inputs
        self.daemon.inputs = replace(
            inputs,
            machine=replace(inputs.machine, sampler=sampler),
            tracked=replace(inputs.tracked, targets=(name,)),
        )
        setting = ObservedConfig(
            "dashboard", False, TICK_S, 0.01, 0.01, self.daemon.state.policy.name, (name,)
        )
        self.observer = Observer(setting, machine.topology, sampler)

    def tick(self) -> None:
        """Run the program for a tick, then the daemon's stages."""
        timer, tick = self.daemon.timer, self.daemon.tick()
        heat, topology = self.daemon.state.heat, self.machine.topology
        if self.observer.latest.ticks % DEMAND_TICKS == 0:
            shares = {each.name: each.fast_share for each in self.observer.latest.targets}
            self.observer.demand = measure_demand(
                heat, topology, tick.targets, np.ones(len(tick.targets)), shares
            )
        timer.run(Stage.OBSERVE, lambda: self.observer.observe(tick, self._places()), None)
        self.observer.record_observe_time(
            timer.seconds[Stage.OBSERVE], Stage.OBSERVE in timer.failed
        )

    def _places(self) -> ResidencyCounts:
        heat, topology = self.daemon.state.heat, self.machine.topology
        return ResidencyCounts(
            resident_pages(heat, topology), heat_pages(heat, topology), heat.stats
        )


def main(trace: Path, seconds: float) -> None:
    """Run the simulation, scrape its metrics, draw the panels."""
    stream, preset = MissStream.read(trace), load("dram-pm")
    name = trace.stem.split("-")[0]
    fast_pages = int(stream.user_pages * FAST_SHARE)
    with (
        SimulatedMachine(stream, preset, fast_pages) as machine,
        tempfile.TemporaryDirectory() as folder,
    ):
        daemon = ObservedSimulation(machine, name)
        server = MetricsServer(ADDRESS, lambda: daemon.observer.latest, TickWatch().health)
        with Prometheus(Path(folder), {"hmd": ADDRESS}) as prometheus:
            begun_s = time.time()
            ticks = run(daemon, begun_s + seconds)
            # The last tick is shorter: the program ended in it.
            draw(prometheus, begun_s + 3, time.time() - 2 * TICK_S, RATE_INTERVAL, PICTURE)
        server.close()
        state = "its end" if machine.done else f"{100 * machine.row / len(stream):.0f} % of it"
        print(f"{name}: {ticks} ticks to {state}, {machine.program_s:.3f} s of it; {PICTURE}")


def run(daemon: ObservedSimulation, end_s: float) -> int:
    """Run a tick per ``TICK_S`` until a time or the program's end; returns the number of ticks."""
    ticks, due_s = 0, time.time()
    while not daemon.machine.done and due_s < end_s:
        daemon.tick()
        ticks += 1
        due_s = max(due_s + TICK_S, time.time())
        time.sleep(max(0.0, due_s - time.time()))
    return ticks


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name a TRACE: python -m bench.monitoring.dashboard TRACE [SECONDS]")
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 300.0)
