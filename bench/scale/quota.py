# SPDX-License-Identifier: MIT
"""CPU time of the daemon over its quota, by what costs most: writes docs/results/quota.json.

The daemon's tick with its CPU budget, over simulated address spaces: a quarter of an hour of their
clock, in which only the CPU time is real. Programs make 100 million accesses per second, which the
sampling period divides. ``used`` is CPU time over the length of ticks, as a share of one CPU,
``ticks_s`` their mean length, ``plans`` their share with a plan. In the case of 512 CPUs the rings
are real, of one process, and another thread writes them. ``python -m bench.scale.quota [WORD...]``
runs the cases whose names contain a word; the file keeps the rows of others.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from bench.documents.markdown import measured_with
from bench.scale.scaled_memory import ScaledSamples
from bench.scale.tick_cost import ScaleCase, ScaledRun
from bench.stages.ring import WrittenRing, sampler_over
from hmd.base.units import GIB, HUGE_PAGE_BYTES, HUGE_PAGE_PAGES
from hmd.metrics.heat_history import HeatHistory
from hmd.metrics.observer import (
    ObservedConfig,
    Observer,
    ResidencyCounts,
    heat_pages,
    resident_pages,
)
from hmd.metrics.status import Stage
from hmd.metrics.tick_record import TickRecord
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import PRIME_PERIODS, PeriodControl, PeriodSettings, RecordTime
from hmd.sample.ring_sampler import MAX_READ_ROWS
from hmd.sample.sampler import CAPABILITIES, Sampler, SamplerStats
from hmd.tick.cpu_budget import BudgetSettings, CostMeter, CpuBudget
from hmd.tick.stage_runner import StageTimer

RESULTS = Path(__file__).resolve().parents[2] / "docs/results/quota.json"
ACCESSES_PER_S = 100_000_000
SECONDS = 900.0
MAX_TICK_S = 60.0
RING_PAGES = 16


@dataclass(frozen=True, slots=True)
class QuotaCase:
    """Memory in so many processes, the quota, and CPUs with rings (0: samples without rings)."""

    name: str
    tracked_gib: int
    processes: int
    quota: float
    cpus: int = 0


CASES = (
    QuotaCase("1 TiB, 1 %", 1024, 1, 0.01),
    QuotaCase("1 TiB, 5 %", 1024, 1, 0.05),
    QuotaCase("1 TiB in 1,000 processes, 1 %", 1024, 1000, 0.01),
    QuotaCase("40 GiB in 10,000 processes, 1 %", 40, 10_000, 0.01),
    QuotaCase("512 CPUs' rings, 1 %", 16, 1, 0.01, 512),
    QuotaCase("4 GiB, 1 %", 4, 1, 0.01),
)


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A measured case; ``asked`` and ``used`` are shares of one CPU."""

    case: str
    asked: float
    used: float
    ticks_s: float
    plans: float
    period: int


class PacedSamples(ScaledSamples):
    """A ``Sampler`` whose samples are drawn before the tick that reads them."""

    name = detail = "scaled"
    capabilities = CAPABILITIES["pmu"]
    periods: tuple[int, ...] = PRIME_PERIODS
    pair_period: int | None = None
    outside_cpu_s = 0.0
    record_time = RecordTime()

    def __init__(self, processes: int, pages: int) -> None:
        super().__init__("zipf", processes, pages, 0)
        self.stats = SamplerStats()
        self.period = PRIME_PERIODS[len(PRIME_PERIODS) // 2]
        self._drawn_batch = AccessBatch.empty()

    def draw(self, count: int) -> AccessBatch:
        """Draw the samples of the next read."""
        self.count = min(count, MAX_READ_ROWS)
        self.stats.lost += count - self.count
        self._drawn_batch = super().read()
        return self._drawn_batch

    def read(self) -> AccessBatch:
        """Return the samples that were drawn."""
        self.stats.samples += len(self._drawn_batch)
        return self._drawn_batch

    def set_period(self, period: int) -> int:
        """Set the period."""
        self.period = period
        return period

    def track(self, processes: object) -> None:
        """Do nothing: samples are of all processes."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class QuotaRun(ScaledRun):
    """The daemon's loop over a simulated machine, with its observer, at the pace of the budget."""

    def __init__(self, case: QuotaCase) -> None:
        super().__init__(ScaleCase(case.tracked_gib, case.processes, 4, "zipf", "histogram"))
        chunks = case.tracked_gib * GIB // HUGE_PAGE_BYTES // case.processes
        pages = case.processes * chunks * HUGE_PAGE_PAGES
        self._samples = PacedSamples(case.processes, pages)
        self._rings = [WrittenRing(cpu, RING_PAGES) for cpu in range(case.cpus)]
        self.sampler: Sampler = sampler_over(self._rings) if self._rings else self._samples
        inputs = self.ticks.inputs
        self._topology = inputs.machine.topology
        self.ticks.inputs = replace(inputs, machine=replace(inputs.machine, sampler=self.sampler))
        period = PeriodControl(PeriodSettings(case.quota), PRIME_PERIODS, self.sampler.period)
        self.budget = CpuBudget(BudgetSettings(case.quota, 1.0, MAX_TICK_S), period)
        self._meter = CostMeter(self.sampler)
        setting = ObservedConfig("", False, 1.0, case.quota, 0.01, "histogram", ("scaled",))
        self._observer = Observer(setting, self._topology, self.sampler)
        self._heat_map = HeatHistory(self._topology)
        self._timer = StageTimer()
        self._places: ResidencyCounts | None = None
        self._counted_s = float("-inf")

    def run(self, seconds: float) -> tuple[float, float, int, int]:
        """Return the CPU time, the length of all ticks, their number, and those with a plan."""
        elapsed_s, ticks, plans = 0.0, 0, 0
        with ThreadPoolExecutor(1) as writer:
            begun_s = time.thread_time()
            while elapsed_s < seconds:
                # In another thread, whose CPU time is not that of the tick.
                writer.submit(self._write).result()
                elapsed_s += self.budget.tick_s
                self._now_s += self.budget.tick_s
                planned = self._paced_tick()
                ticks, plans = ticks + 1, plans + planned
            return time.thread_time() - begun_s, elapsed_s, ticks, plans

    def _write(self) -> None:
        count = round(ACCESSES_PER_S * self.budget.tick_s / self.sampler.period)
        batch = self._samples.draw(count)
        for each, part in zip(
            self._rings, np.array_split(batch.address, max(len(self._rings), 1)), strict=False
        ):
            each.write(part)

    def _paced_tick(self) -> bool:
        timer, now_s = self._timer, self._now_s
        timer.begin()
        limits = self.budget.limits()
        self._meter.start(now_s - limits.tick_s)
        record = self.ticks.tick(now_s, limits, timer)
        timer.run(Stage.OBSERVE, lambda: self._observe(record), None)
        costs = self._meter.measure(now_s, timer.cpu_s)
        self.budget.update(costs, record, load_changed=False)
        self._observer.set_cpu_budget(self.budget.status(0.0))
        return bool(record.planned)

    def _observe(self, tick: TickRecord) -> None:
        heat, topology = self.heat, self._topology
        by_heat = self._places.heat_pages if self._places else None
        if by_heat is None or tick.now_s - self._counted_s >= 10.0:
            self._counted_s, by_heat = tick.now_s, heat_pages(heat, topology)
        self._places = ResidencyCounts(resident_pages(heat, topology), by_heat, replace(heat.stats))
        self._observer.observe(tick, self._places)
        self._heat_map.record(tick, heat)


def measure(case: QuotaCase, seconds: float = SECONDS) -> QuotaRow:
    """Run a case in this process."""
    run = QuotaRun(case)
    cpu_s, elapsed_s, ticks, plans = run.run(seconds)
    return QuotaRow(
        case.name,
        case.quota,
        round(cpu_s / elapsed_s, 5),
        round(elapsed_s / ticks, 2),
        round(plans / ticks, 2),
        run.sampler.period,
    )


def main(words: list[str]) -> int:
    """Measure, print and write the rows."""
    chosen = [case for case in CASES if not words or any(word in case.name for word in words)]
    found = json.loads(RESULTS.read_text())["quota"] if RESULTS.exists() else []
    rows = {row["case"]: row for row in found}
    print(f"{'case':34} {'asked':>7} {'used':>7} {'tick s':>7} {'plans':>6} {'period':>7}")
    for case in chosen:
        row = measure(case)
        rows[row.case] = asdict(row)
        print(
            f"{row.case:34} {row.asked:7.2%} {row.used:7.2%} {row.ticks_s:7.2f} {row.plans:6.2f}"
            f" {row.period:7}",
            flush=True,
        )
        known = [rows[each.name] for each in CASES if each.name in rows]
        result = {**measured_with(), "quota": known}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
