# SPDX-License-Identifier: MIT
"""Processes of up to 10^6 mappings: what hmd's readings cost, and what their target sees of them.

``python -m bench.stages.many_mappings [--publish]`` prints a table, writes build/mappings.json,
with ``--publish`` docs/results/mappings.json. Needs root for more mappings than vm.max_map_count,
which it sets and puts back. The target (bench/workloads/many_mappings.c) has a mapping per page.

Costs are CPU times in ms: ``text_ms`` of all of maps as columns, ``refresh_ms`` of what the sweep
reads instead, ``query_ms`` of a query for the mappings of 4,096 pages at random, as many as a plan
has, and ``step_ms`` the longest step of the sweep of 10 ms. Latencies are elapsed times that the
target measures of mmap(2) of 64 KiB and of the first write to a page, in us: ``alone``, with hmd's
readings of a tick every 0.1 s (``hmd``), and with the whole text every 0.1 s (``text``). Rounds of
the three take turns, and the median of each is taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.documents.markdown import measured_with
from bench.scale.tick_cost import raised
from hmd.base.units import PAGE_BYTES
from hmd.emulate.assets import compile_static
from hmd.heat.table import HeatTable
from hmd.linux.mappings import mapping_pieces, mappings_at, read_mappings
from hmd.linux.procfs import ProcessId, identify
from hmd.migrate import MovableMappings
from hmd.residency.sweep import ResidencySweep
from hmd.sample.access_batch import AccessBatch

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT: Final = ROOT / "build/mappings.json"
RESULTS: Final = ROOT / "docs/results/mappings.json"
SOURCE: Final = ROOT / "bench/workloads/many_mappings.c"

COUNTS: Final = (1_000, 100_000, 1_000_000)
PLAN_PAGES: Final = 4096
TICK_S: Final = 0.1
ROUND_S: Final = 2.0
ROUNDS: Final = 5
SWEEP_STEPS: Final = 60
_WARM_STEPS: Final = 10
FIELDS: Final = ("mmap_p50", "mmap_p99", "mmap_most", "fault_p50", "fault_p99", "fault_most")

Addresses = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MappedTarget:
    """A process with many mappings, which begin at ``start``."""

    process: ProcessId
    start: int
    mappings: int
    _child: subprocess.Popen[str]

    def measure(self, seconds: float) -> dict[str, float]:
        """Return latencies of mmap(2) and page faults in us."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(f"{seconds}\n")
        self._child.stdin.flush()
        words = self._child.stdout.readline().split()
        return {name: int(word) / 1e3 for name, word in zip(FIELDS, words, strict=False)}

    def pages(self, generator: np.random.Generator) -> Addresses:
        """Return as many pages as a plan has, at random."""
        numbers = generator.integers(0, self.mappings, PLAN_PAGES).astype(np.uint64)
        return numbers * np.uint64(PAGE_BYTES) + np.uint64(self.start)


@contextmanager
def mapped_target(mappings: int) -> Iterator[MappedTarget]:
    """Run a process with this many mappings."""
    words = [str(compile_static(SOURCE)), str(mappings)]
    with (
        raised({"vm/max_map_count": mappings + 1000}),
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
    ):
        assert child.stdout is not None
        start = int(child.stdout.readline(), 16)
        process = identify(child.pid)
        assert process is not None
        yield MappedTarget(process, start, mappings, child)
        child.kill()


def cpu_ms(action: Callable[[], object], times: int = 3) -> float:
    """Return the CPU time of a call, the best of some."""
    costs_s = []
    for _ in range(times):
        begun_s = time.thread_time()
        action()
        costs_s.append(time.thread_time() - begun_s)
    return round(min(costs_s) * 1e3, 2)


class Follower:
    """What hmd reads of a process's mappings in a tick: a step of the sweep, a plan's filter."""

    def __init__(self, target: MappedTarget) -> None:
        self._target, self._random = target, np.random.default_rng(1)
        self._filter, self._sweep, self._heat = MovableMappings(), ResidencySweep(), HeatTable()
        self._heat.track_processes([target.process])

    def tick(self) -> None:
        """Read once."""
        self._heat.update(self._sweep.attribute_to_owner(AccessBatch.empty(), self._heat))
        self._sweep.step(self._heat)
        self._filter(self._target.process, self._target.pages(self._random))

    def step_ms(self) -> float:
        """Return the CPU time of the longest of some steps of the sweep."""
        for _ in range(_WARM_STEPS):
            self.tick()  # loads kernels
        costs_ms = []
        for _ in range(SWEEP_STEPS):
            self._heat.update(AccessBatch.empty())
            costs_ms.append(cpu_ms(lambda: self._sweep.step(self._heat), 1))
        return max(costs_ms)


@contextmanager
def repeated(action: Callable[[], object] | None) -> Iterator[None]:
    """Call something in a thread, once per tick."""
    over = threading.Event()

    def run() -> None:
        while action is not None and not over.wait(TICK_S):
            action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def row_of(target: MappedTarget) -> dict[str, Any]:
    """Return the figures of one target."""
    pid, generator = target.process.pid, np.random.default_rng(0)
    pages = target.pages(generator)
    follower = Follower(target)
    row: dict[str, Any] = {
        "mappings": target.mappings,
        "text_ms": cpu_ms(lambda: read_mappings(pid), 1),
        "refresh_ms": cpu_ms(lambda: sum(len(piece) for piece in mapping_pieces(pid))),
        "refresh_rows": sum(len(piece) for piece in mapping_pieces(pid)),
        "query_ms": cpu_ms(lambda: mappings_at(pid, pages)),
        "step_ms": follower.step_ms(),
    }
    modes: dict[str, Callable[[], object] | None] = {
        "alone": None,
        "hmd": follower.tick,
        "text": lambda: read_mappings(pid),
    }
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for _ in range(ROUNDS):
        for mode, action in modes.items():
            with repeated(action):
                found[mode].append(target.measure(ROUND_S))
    row["latency_us"] = {
        mode: {name: round(statistics.median(one[name] for one in rows), 2) for name in FIELDS}
        for mode, rows in found.items()
    }
    return row


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", action="store_true", help="write docs/results/mappings.json")
    publish = parser.parse_args().publish
    rows = []
    for count in COUNTS:
        with mapped_target(count) as target:
            rows.append(row_of(target))
        print(json.dumps(rows[-1]), flush=True)
    document = {
        **measured_with(),
        "plan_pages": PLAN_PAGES,
        "tick_s": TICK_S,
        "rows": rows,
        "size": {str(row["mappings"]): row for row in rows},
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    (RESULTS if publish else OUTPUT).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
