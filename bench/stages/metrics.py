# SPDX-License-Identifier: MIT
"""Cost of metrics with many processes: prints a table, writes build/metrics.json.

Ten thousand processes of a thousand targets on four nodes of two tiers: a scrape by an HTTP client
over loopback, and the observer's part of a tick. CPU time (a busy host does not raise it much),
best and median of several runs, with its target.
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import HeatStats
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology
from hmd.metrics.exporter import MetricsServer
from hmd.metrics.observer import ObservedConfig, Observer, ResidencyCounts
from hmd.metrics.savings import SavingsTracker
from hmd.metrics.status import HEAT_LOG2, Stage, TickWatch
from hmd.metrics.tick_record import TickRecord
from hmd.migrate.status import MoveOutcome, MoveStatus
from hmd.policy.plan import Plan
from hmd.sample.access_batch import AccessBatch
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import open_sampler

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "metrics.json"
ADDRESS = "127.0.0.1:9743"
PROCESSES, TARGETS, NODES = 10_000, 1000, 4
SAMPLES, MOVES = 100_000, 4096
RUNS = 50
HEADERS = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}


@dataclass(frozen=True, slots=True)
class MetricsFigure:
    """A measured figure, its unit and its target."""

    name: str
    best: float
    middle: float
    unit: str


def main() -> int:
    """Measure, print and write the figures."""
    topology = Topology(
        tuple(
            Node(n, (n,) if n < 2 else (), 64 << 30, (10,) * NODES, n // 2, 90 + 200 * (n // 2))
            for n in range(NODES)
        )
    )
    names = tuple(f"target{number % TARGETS}" for number in range(PROCESSES))
    setting = ObservedConfig("bench", False, 1.0, 0.01, 0.01, "histogram", names)
    sampler = open_sampler(SampleSettings(sampler="faults", period=1)).sampler
    observer = Observer(setting, topology, sampler)
    places = ResidencyCounts(
        np.full((PROCESSES, NODES), 1000, np.int64),
        np.ones((2, len(HEAT_LOG2)), np.int64),
        HeatStats(bytes=1 << 30),
    )
    ticks = [tick_of(names, seed) for seed in range(2)]
    turn = iter(range(10**9))
    observed = times(lambda: observer.observe(ticks[next(turn) % 2], places), 10)
    tracker = SavingsTracker(topology)
    followed = times(lambda: tracker.add(ticks[next(turn) % 2]), RUNS)
    server = MetricsServer(ADDRESS, lambda: observer.latest, TickWatch().health)
    try:
        scraped = times(scrape, RUNS)
        packed = scrape()
    finally:
        server.close()
        sampler.close()
    text = gzip.decompress(packed)
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    figures = [
        MetricsFigure("series", series, series, ""),
        MetricsFigure("answer", len(packed) / 1024, len(packed) / 1024, "KiB"),
        MetricsFigure("scrape", min(scraped) * 1e3, statistics.median(scraped) * 1e3, "ms"),
        MetricsFigure(
            "observe stage", min(observed) * 1e3, statistics.median(observed) * 1e3, "ms"
        ),
        MetricsFigure("its savings", min(followed) * 1e3, statistics.median(followed) * 1e3, "ms"),
    ]
    print(
        f"{PROCESSES} processes of {TARGETS} targets, {SAMPLES} samples and {MOVES} moves per tick"
    )
    print(f"{'':15}{'best':>10}{'middle':>10}  unit")
    for one in figures:
        print(f"{one.name:15}{one.best:10.1f}{one.middle:10.1f}  {one.unit}")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return 0


def scrape() -> bytes:
    """Return the metrics as Prometheus requests them: OpenMetrics, compressed."""
    request = urllib.request.Request(f"http://{ADDRESS}/metrics", headers=HEADERS)
    with urllib.request.urlopen(request, timeout=60) as answer:
        packed: bytes = answer.read()
    return packed


def times(work: Callable[[], object], runs: int) -> list[float]:
    """Return the CPU time of each run in seconds, of the server's thread and the client."""
    seconds = []
    for _ in range(runs):
        begun_s = time.process_time()
        work()
        seconds.append(time.process_time() - begun_s)
    return seconds


def tick_of(targets: tuple[str, ...], seed: int) -> TickRecord:
    """Return a tick of random samples and moves; the parity of ``seed`` is the moves' direction."""
    random = np.random.default_rng(seed)
    processes = tuple(ProcessId(number, 1) for number in range(PROCESSES))
    page = random.integers(0, 1000, SAMPLES).astype(np.uint64)
    batch = AccessBatch.of(
        page * np.uint64(PAGE_BYTES),
        random.integers(0, PROCESSES, SAMPLES).astype(np.int32),
        period=1009,
    )
    source, target = (2, 0) if seed % 2 else (0, 2)
    plan = Plan(
        processes,
        (np.arange(MOVES) % PROCESSES).astype(np.int32),
        np.arange(MOVES, dtype=np.uint64) % np.uint64(1000) * np.uint64(PAGE_BYTES),
        np.ones(MOVES, np.uint32),
        np.full(MOVES, source, np.int16),
        np.full(MOVES, target, np.int16),
        np.ones(MOVES, np.float32),
        np.zeros(MOVES, np.int32),
    )
    outcome = MoveOutcome(
        np.full(MOVES, MoveStatus.MOVED, np.int16),
        plan.to_node,
        plan.pages,
        {(source, target): MOVES},
        {MoveStatus.MOVED: MOVES},
        calls=1,
        seconds=0.1,
    )
    node = random.integers(0, NODES, SAMPLES).astype(np.int16)
    spent = dict.fromkeys(Stage, 0.01)
    return TickRecord(float(seed), processes, targets, batch, node, plan, outcome, stage_s=spent)


if __name__ == "__main__":
    sys.exit(main())
