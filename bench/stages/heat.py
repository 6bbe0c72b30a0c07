# SPDX-License-Identifier: MIT
"""Cost of heat and decisions: prints a table, writes build/heat.json.

CPU time of one core, best of several runs (a busy host does not raise it much), with its target.
Samples are those of a program with 90 % of its accesses to a tenth of its memory, in random order.
The table of a million pages is full: every page is resident and was sampled.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy.builtin.histogram import Histogram
from hmd.policy.plan import MachineView
from hmd.sample.access_batch import AccessBatch

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "heat.json"
CHUNKS = 2048
PAGES = CHUNKS * CHUNK_PAGES
SAMPLES = 1_000_000
RUNS = 7


@dataclass(frozen=True, slots=True)
class HeatFigure:
    """A measured figure, its unit and its target."""

    name: str
    value: float
    unit: str


def best_s(work: Callable[[], object], runs: int = RUNS) -> float:
    """Return the least CPU time of ``work``."""
    times = []
    for _ in range(runs):
        begun_s = time.thread_time()
        work()
        times.append(time.thread_time() - begun_s)
    return min(times)


def batch_of(samples: int, pages: int, seed: int = 1) -> AccessBatch:
    """Return samples of one process: 90 % to a tenth of its pages."""
    random = np.random.default_rng(seed)
    page = random.integers(0, pages, samples)
    hot = random.random(samples) < 0.9
    page[hot] = random.integers(0, pages // 10, int(hot.sum()))
    return AccessBatch.of(page.astype(np.uint64) * np.uint64(PAGE_BYTES), period=199)


def full_table(settings: HeatSettings, chunks: int = CHUNKS) -> HeatTable:
    """Return a table whose pages are all resident, a tenth of them on the fast node."""
    table = HeatTable(settings)
    table.track_processes([ProcessId(1, 1)])
    node = np.ones((chunks, CHUNK_PAGES), np.int8)
    node[-chunks // 10 :] = 0
    table.record_nodes(0, np.arange(chunks, dtype=np.uint64) * np.uint64(CHUNK_BYTES), node)
    return table


def machine() -> MachineView:
    """Return a fast and a slow node; the fast one is full to its headroom."""
    nodes = (Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 34, (20, 10), 1))
    memory = (NodeMemory(0, 1 << 30, 21 << 20), NodeMemory(1, 1 << 34, 1 << 33))
    return MachineView(Topology(nodes), memory, 0.0, 1.0, 1 << 40)


def fresh(table: HeatTable, machine: MachineView) -> PageView:
    """Return a view of a table that has changed since the last one."""
    table.discard_rates()
    return table.view(machine.topology)


def measure() -> list[HeatFigure]:
    """Return all figures."""
    never = HeatSettings(min_window_samples=1 << 40)
    always = HeatSettings(min_window_samples=1, window_pages_per_sample=1e9)
    table, batch = full_table(never), batch_of(SAMPLES, PAGES)
    table.update(batch)
    count_s = best_s(lambda: table.update(batch))
    small, small_batch = full_table(never, 64), batch_of(65_000, 64 * CHUNK_PAGES)
    small.update(small_batch)
    small_s = best_s(lambda: small.update(small_batch))
    cooled = full_table(always)
    for seed in range(4):
        cooled.update(batch_of(SAMPLES, PAGES, seed))
    doubted = full_table(HeatSettings(min_window_samples=SAMPLES, window_pages_per_sample=1e9))
    for samples in (SAMPLES, SAMPLES // 2):
        doubted.update(batch_of(samples, PAGES, samples))
    one = batch_of(1, PAGES)
    fold_s = best_s(lambda: cooled.update(one))
    policy, view = Histogram(), machine()
    first = policy.plan(fresh(cooled, view), view)
    plan_s = best_s(lambda: policy.plan(fresh(cooled, view), view))
    for _ in range(3):
        plan = policy.plan(fresh(cooled, view), view)
        cooled.record_moves(plan, plan.to_node, np.zeros(len(plan), np.bool_))
    still_s = best_s(lambda: policy.plan(fresh(cooled, view), view))
    plan = policy.plan(fresh(cooled, view), view)
    rates_s = best_s(lambda: fresh(cooled, view).rate)
    doubted_s = best_s(lambda: fresh(doubted, view).rate)
    return [
        HeatFigure("samples counted, 4 GiB of memory", SAMPLES / count_s / 1e6, "M/s"),
        HeatFigure("samples counted, 128 MiB of memory", 65_000 / small_s / 1e6, "M/s"),
        HeatFigure("cooling of 1 M pages at the end of a sample window", fold_s * 1e3, "ms"),
        HeatFigure("rates of 1 M pages", rates_s * 1e3, "ms"),
        HeatFigure(
            "rates of 1 M pages within a window, with change detection", doubted_s * 1e3, "ms"
        ),
        HeatFigure(f"plan of {len(first):,} moves, 1 M pages", plan_s * 1e3, "ms"),
        HeatFigure(f"plan of {len(plan):,} moves, 1 M pages", still_s * 1e3, "ms"),
        HeatFigure("heat table, per page", cooled.stats.bytes / PAGES, "B"),
        HeatFigure("kernels loaded from numba's cache", load_s() * 1e3, "ms"),
    ]


def load_s() -> float:
    """Return the seconds in which a fresh process loads all kernels, without importing numba."""
    code = (
        "import time, numba, numpy; t = time.process_time();"
        "from hmd.policy import registry; registry.warm(); print(time.process_time() - t)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(3)
    ]
    return min(runs)


def main() -> int:
    """Measure, print and write the figures."""
    figures = measure()
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        print(f"{figure.name:{width}}  {figure.value:8.1f} {figure.unit:4}")
    OUTPUT.parent.mkdir(exist_ok=True)
    result = {"machine": platform.processor() or platform.machine()}
    text = json.dumps({**result, "figures": [asdict(figure) for figure in figures]}, indent=1)
    OUTPUT.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
