# SPDX-License-Identifier: MIT
"""Seconds from the moment a hot set moves until 90 % of its accesses are fast again.

    python -m bench.scale.reaction [GIB:CPUS...] [--publish]

The daemon's tick with its default configuration, over simulated address spaces. 90 % of accesses go
to 1/64 of memory, which lies together; the fast node has a quarter more than that. Each CPU misses
its caches ten million times per second. When the first hot set lies there and nothing has changed
for some minutes, which gives ``idle_cpu_share``, it moves to memory that was cold, right after a
tick. The clock goes on by the wait for each tick, its CPU time, which is real, and the time of
copies: a page takes as long as the mover takes in the emulated machine (``engine`` of
docs/results/scale.json), and as much CPU time. ``copy_seconds`` is that time for a hot set and what
gives way to it; ``cpu_share`` is the daemon's use while it follows, as a share of all CPUs.

The rows of DAMON and of the kernel's tiering are models of their documented settings, in which
finding costs nothing but intervals, and copies as much as hmd's:

- DAMON (scripts/mem_tier.sh of damo): regions are aggregated every 100 ms at first, and 1,000 at
  most; a hot set is a region of its own after as many halvings as separate it from all memory, each
  one aggregation; schemes migrate 200 MiB per second.
- Kernel tiering (numa_balancing mode 2): a task's memory is scanned at 256 MiB per 100 ms, which is
  MAX_SCAN_WINDOW, 2560 MiB per second (kernel/sched/fair.c); a page of the hot set moves when the
  scan has come to it, at 65,536 MB per second at most. The scan comes to the hot set after half of
  the memory on average, and the copies go on while it passes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.documents.markdown import measured_with
from bench.scale.quota import PacedSamples
from bench.scale.scaled_memory import BASE, CPUS, FAST, ScaledMemory
from bench.scale.tick_cost import RESULTS as SCALE
from bench.synthetic.modelled_ticks import modelled_ticks
from hmd.base.units import GIB, HUGE_PAGE_BYTES, MIB, PAGE_BYTES
from hmd.config import loads
from hmd.daemon import settings
from hmd.daemon.service import PAGE_COUNT_S
from hmd.daemon.stages import LOOK_S
from hmd.heat.table import HeatTable
from hmd.linux.own_process import keep_freed_memory
from hmd.linux.page_calls import MoveFlags
from hmd.metrics.heat_history import HeatHistory
from hmd.metrics.observer import Observer, ResidencyCounts, heat_pages, resident_pages
from hmd.metrics.status import Stage
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import Mover
from hmd.policy import registry
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import PRIME_PERIODS, PeriodControl
from hmd.tick.cpu_budget import AccessSums, CostMeter, CpuBudget, tick_gain
from hmd.tick.stage_runner import StageTimer

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT: Final = ROOT / "build/reaction.json"
PUBLISHED: Final = ROOT / "docs/results/reaction.json"
CASES: Final = ("64:64", "64:128", "1024:64", "1024:128", "4096:64", "4096:128")
MISSES_PER_CPU_S: Final = 10_000_000
HOT_PART: Final = 64
"""The hot set is one part in so many of memory."""
RECOVERED: Final = 0.9
SETTLE_S: Final = 1200.0
CALM_S: Final = 600.0
FOLLOW_S: Final = 3600.0
SCAN_BYTES_PER_S: Final = 2560 * MIB
DAMON_BYTES_PER_S: Final = 200 * MIB
AGGREGATION_S: Final = 0.1
QUERY_S: Final = 0.2e-6


@dataclass(frozen=True, slots=True)
class ReactionRow:
    """A case; ``seconds_to_recover`` None: not within an hour."""

    tracked_gib: int
    cpus: int
    system: str
    seconds_to_recover: float | None
    copy_seconds: float
    cpu_share: float | None


class CopiedMemory(ScaledMemory):
    """Memory whose moves and queries take time: ``copied_s``. ``model_s`` is what the model took.

    Other processes' pages are queried in 0.2 µs each.
    """

    def __init__(self, chunks: int, fast: int, bytes_per_s: float) -> None:
        super().__init__(1, chunks, huge=False, fast=fast)
        self.copied_s = self.model_s = 0.0
        self._page_s = PAGE_BYTES / bytes_per_s

    def move_pages(
        self,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """Move pages, in the time that the mover takes."""
        begun_s = time.thread_time()
        moved = super().move_pages(pid, addresses, nodes, flags)
        self.model_s += time.thread_time() - begun_s
        self.copied_s += len(addresses) * self._page_s
        return moved

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        """Return the node of each page, as the sweep asks."""
        begun_s = time.thread_time()
        found = super().nodes(pid, addresses)
        self.model_s += time.thread_time() - begun_s
        self.copied_s += len(addresses) * QUERY_S
        return found

    query_nodes = nodes


class HotSetSamples(PacedSamples):
    """90 % of accesses go to ``hot`` pages from ``first`` on."""

    def __init__(self, pages: int, hot: int) -> None:
        super().__init__(1, pages)
        self.first, self.hot = pages // 2, hot

    def read(self) -> AccessBatch:
        """Return the samples that were drawn, each of the period's accesses."""
        batch = super().read()
        return replace(batch, period=np.full(len(batch), self.period, np.uint32))

    def _drawn(self, n: int) -> npt.NDArray[np.int64]:
        page = self._random.integers(0, self._pages, n)
        is_hot = self._random.random(n) < 0.9
        page[is_hot] = self.first + self._random.integers(0, self.hot, int(is_hot.sum()))
        return page


class ReactionRun:
    """The daemon's loop over a simulated machine; its clock has real CPU time, modelled waits."""

    def __init__(self, gib: int, cpus: int, bytes_per_s: float) -> None:
        config = loads("", "defaults")
        chunks = gib * GIB // HUGE_PAGE_BYTES
        hot = chunks // HOT_PART
        self.cpus, self.memory = cpus, CopiedMemory(chunks, hot + hot // 4, bytes_per_s)
        memory = self.memory
        self.samples = HotSetSamples(gib * GIB // PAGE_BYTES, hot * HUGE_PAGE_BYTES // PAGE_BYTES)
        self.topology = replace(memory.topology())
        self.heat = HeatTable(settings.heat_settings(config), self.topology.latency_ns)
        self.heat.track_processes(memory.processes)
        memory.place_all(self.heat)
        sweep = ResidencySweep(
            settings.sweep_settings(config, self.topology), ModelledMemory(memory)
        )
        self.now_s = self.cpu_s = 0.0
        self.held: list[AccessBatch] = []
        self.ticks = modelled_ticks(
            memory,
            self.samples,
            self.heat,
            sweep,
            settings.policy(config),
            settings.mover_settings(config),
            target="scaled",
            clock=self._clock,
        )
        mover = Mover(
            settings.mover_settings(config),
            self._clock,
            memory,
            stat=memory.stat,
            page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
        )
        self.ticks.state = replace(self.ticks.state, mover=mover)
        budget = replace(settings.budget_settings(config, self.topology), cpus=cpus)
        period = PeriodControl(settings.period_settings(config), PRIME_PERIODS, self.samples.period)
        self.budget = CpuBudget(budget, period)
        self._meter = CostMeter(self.samples)
        setting = settings.observer_setting(config, "", self.topology)
        self._observer = Observer(setting, self.topology, self.samples)
        self._heat_map = HeatHistory(self.topology)
        self._timer = StageTimer()
        self._places: ResidencyCounts | None = None
        self._counted_s = float("-inf")
        self._saved_s = self._busy_s = 0.0
        self._short = False

    def _clock(self) -> float:
        return time.thread_time() + self.memory.copied_s - self.memory.model_s

    def run(self, until_s: float, recovered: float | None = None) -> bool:
        """Run ticks until a time, or until the hot set has this share of it on the fast node."""
        while self.now_s < until_s:
            if recovered is not None and self.fast_share() >= recovered:
                return True
            waited_s = self._wait(max(self.budget.tick_s - self._busy_s, 0.0))
            begun_s = self._clock()
            self._tick(waited_s)
            self._busy_s = self._clock() - begun_s
            self.now_s += self._busy_s
            self.cpu_s += self._busy_s
        return recovered is None

    def fast_share(self) -> float:
        """Return the share of the hot set that the fast node has."""
        page = self.samples.first + np.arange(0, self.samples.hot, 64)
        address = np.uint64(BASE) + page.astype(np.uint64) * np.uint64(PAGE_BYTES)
        pid = self.memory.processes[0].pid
        return float((self.memory.nodes(pid, address) == FAST).mean())

    def _draw(self, seconds: float) -> None:
        """Let the programs run, whose samples cost the daemon nothing until it reads them."""
        begun_s = time.thread_time()
        self.memory.run(seconds * self.cpus / CPUS)
        accesses = self.cpus * MISSES_PER_CPU_S * seconds
        self.samples.draw(round(accesses / self.samples.period))
        self._meter.exclude(time.thread_time() - begun_s)

    def _wait(self, wait_s: float) -> float:
        """Wait for a tick, and in calm times look at samples meanwhile."""
        waited_s, allowance, self._short = 0.0, self.budget.allowance, False
        assert allowance is not None
        while self.budget.is_calm and wait_s - waited_s > LOOK_S:
            self._draw(LOOK_S)
            waited_s += LOOK_S
            self.now_s += LOOK_S
            begun_s = time.thread_time()
            batch = self.samples.read()
            self.held.append(batch)
            node = self.heat.nodes_at(batch.process, batch.address)
            changed = allowance.watch.is_changed(AccessSums.of(batch, node, self.topology, LOOK_S))
            self.cpu_s += time.thread_time() - begun_s
            if changed:
                allowance.search()
                self.samples.draw(0)
                self._short = True
                return waited_s
        # Programs ran during the last tick, too.
        self._draw(wait_s - waited_s + self._busy_s)
        self.now_s += wait_s - waited_s
        return wait_s

    def _tick(self, waited_s: float) -> None:
        timer, now_s = self._timer, self.now_s
        timer.begin()
        self._meter.start(now_s - waited_s, self.memory.copied_s)
        model_s = self.memory.model_s
        limits = self.budget.limits()
        if self._short:
            limits = replace(limits, tick_s=waited_s)
        self.ticks.inputs = replace(self.ticks.inputs, held=tuple(self.held))
        self.held.clear()
        record = self.ticks.tick(now_s, limits, timer)
        timer.run(Stage.OBSERVE, lambda: self._observe(record), None)
        self._meter.exclude(self.memory.model_s - model_s)
        costs = self._meter.measure(now_s, timer.cpu_s, self.memory.copied_s)
        saved_s = self._observer.latest.savings.net_s
        gain = tick_gain(record, self.topology, self.cpus, saved_s - self._saved_s)
        self._saved_s = saved_s
        many = 2 * record.moved_bytes >= GIB
        self.budget.update(costs, record, load_changed=many, gain=gain)
        self._observer.set_cpu_budget(self.budget.status(0.0))

    def _observe(self, tick: TickRecord) -> None:
        heat = self.heat
        by_heat = self._places.heat_pages if self._places else None
        due = tick.now_s - self._counted_s >= PAGE_COUNT_S
        if by_heat is None or (due and (tick.planned or not self.budget.is_calm)):
            self._counted_s, by_heat = tick.now_s, heat_pages(heat, self.topology)
        self._places = ResidencyCounts(
            resident_pages(heat, self.topology), by_heat, replace(heat.stats)
        )
        self._observer.observe(tick, self._places)
        self._heat_map.record(tick, heat)


def measure(gib: int, cpus: int, bytes_per_s: float) -> tuple[ReactionRow, float]:
    """Return hmd's row, and the share of a CPU that it used while nothing changed."""
    keep_freed_memory()
    registry.warm(policies=(registry.DEFAULT,))
    run = ReactionRun(gib, cpus, bytes_per_s)
    run.run(SETTLE_S, RECOVERED)
    print(f"first found after {run.now_s:.0f} s, {run.cpu_s:.1f} s of CPU", file=sys.stderr)
    run.run(run.now_s + CALM_S)
    begun_s, used_s = run.now_s, run.cpu_s
    run.run(run.now_s + CALM_S)
    idle = (run.cpu_s - used_s) / (run.now_s - begun_s)
    run.samples.first //= 2
    begun_s, used_s, copied_s = run.now_s, run.cpu_s, run.memory.copied_s
    found = run.run(run.now_s + FOLLOW_S, RECOVERED)
    seconds = run.now_s - begun_s
    print(f"copied for {run.memory.copied_s - copied_s:.1f} s", file=sys.stderr)
    return ReactionRow(
        gib,
        cpus,
        "hmd",
        round(seconds, 1) if found else None,
        copy_seconds(gib, bytes_per_s),
        round((run.cpu_s - used_s) / seconds / cpus, 5),
    ), idle


def copy_seconds(gib: int, bytes_per_s: float) -> float:
    """Return how long it takes to copy 90 % of a hot set, and as many pages that give way."""
    return round(2 * RECOVERED * gib * GIB / HOT_PART / bytes_per_s, 1)


def modelled(gib: int, cpus: int, bytes_per_s: float) -> list[ReactionRow]:
    """Return the rows of DAMON and of kernel tiering."""
    hot = RECOVERED * gib * GIB / HOT_PART
    damon_s = math.log2(HOT_PART) * AGGREGATION_S + hot / DAMON_BYTES_PER_S
    scan_s = (gib * GIB / 2 + hot) / SCAN_BYTES_PER_S
    copy_s = copy_seconds(gib, bytes_per_s)
    return [
        ReactionRow(gib, cpus, "DAMON (modelled)", round(damon_s, 1), copy_s, None),
        ReactionRow(gib, cpus, "kernel tiering (modelled)", round(scan_s, 1), copy_s, None),
    ]


def main() -> int:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description="Seconds until a hot set that moved is fast.")
    parser.add_argument("cases", nargs="*", default=list(CASES), help="GiB:CPUs")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    movers = json.loads(SCALE.read_text())["engine"]["movers"]
    speed = next(m["mib_per_s"] for m in movers if (m["page_kib"], m["mover"]) == (4, "hmd")) * MIB
    rows: list[dict[str, Any]] = []
    idle: dict[str, float] = {}
    for gib, cpus in ((int(part) for part in case.split(":")) for case in args.cases):
        row, share = measure(gib, cpus, speed)
        idle[f"{gib}:{cpus}"] = round(share, 5)
        for one in (row, *modelled(gib, cpus, speed)):
            rows.append(asdict(one))
            print(
                f"{gib:5} GiB {cpus:4} CPUs {one.system:26} {one.seconds_to_recover} s,"
                f" copies {one.copy_seconds} s, CPU {one.cpu_share}",
                flush=True,
            )
        print(f"idle: {share:.3%} of a CPU", flush=True)
    document = {
        **measured_with(),
        "rows": rows,
        "idle_cpu_share": max(idle.values()),
        "idle_by_case": idle,
    }
    for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
