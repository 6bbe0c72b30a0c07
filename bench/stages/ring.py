"""Cost of reading samples: prints a table, writes build/ring.json.

CPU time of one core, best of several runs, for a ring of PMU records: draining it, the whole read
(drain, process of each row, columns of the selected rows), and the nodes of samples' pages.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hmd.heat.geometry import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.heat_table import HeatTable
from hmd.machine.process_id import identify
from hmd.observe.residency_counts import sample_nodes
from hmd.sample.access_batch import Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.perf_ring import HEADER_BYTES, RecordColumns, Ring, SampleType
from hmd.sample.pid_attribution import TrackedPids
from hmd.sample.ring_sampler import RingSampler
from hmd.units import PAGE_BYTES

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "ring.json"
TYPE = (
    *(SampleType.TID, SampleType.TIME, SampleType.ADDR, SampleType.CPU),
    *(SampleType.PERIOD, SampleType.WEIGHT, SampleType.DATA_SRC),
)
SAMPLES = 50_000
PAGES = 32 * CHUNK_PAGES
BASE = 0x7F00_0000_0000
RUNS = 15


class Switch:
    """A control without effect: the benchmark writes the ring."""

    cpus, record_s, now_s, thins_stores = (0,), 0.0, 0.0, False

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def set_period(self, period: int, store_factor: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def main() -> None:
    """Measure, print and write."""
    memory = ring_of_samples()
    ring = Ring.over(memory, sum_of(TYPE), Kind.LOAD)
    tail = memory[1032:1040].view(np.uint64)

    def refill() -> None:
        tail[0] = 0

    us = identify(os.getpid())
    assert us is not None
    columns = RecordColumns(SAMPLES)
    sampler = RingSampler(
        "bench",
        "",
        [ring],
        Switch(),
        TrackedPids(),
        capabilities=CAPABILITIES["pmu"],
        period=41,
        ladder=(41,),
        read_rows=SAMPLES,
    )
    sampler.track([us])
    heat = HeatTable()
    heat.track([us])
    starts = BASE + np.arange(PAGES // CHUNK_PAGES, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    heat.place(0, starts, np.ones((len(starts), CHUNK_PAGES), np.int8))
    refill()
    batch = sampler.read()

    def drain() -> None:
        refill()
        columns.clear()
        ring.drain(columns)

    def read() -> None:
        refill()
        sampler.read()

    figures = {
        "drain": cost_ns(drain),
        "read": cost_ns(read),
        "nodes": cost_ns(lambda: sample_nodes(heat, batch)),
    }
    for name, each in figures.items():
        print(f"{name:8} {each:6.1f} ns per sample")
    document = {"ns_per_sample": figures, "samples": SAMPLES, "machine": platform.platform()}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")


def sum_of(types: tuple[SampleType, ...]) -> SampleType:
    """Return all fields as one type."""
    whole = SampleType(0)
    for each in types:
        whole |= each
    return whole


def ring_of_samples() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a full ring: 97 % of the samples are ours, the others of eight processes."""
    random = np.random.default_rng(1)
    words = np.zeros((SAMPLES, 1 + len(TYPE)), np.uint64)
    words[:, 0] = 9 | words.shape[1] * 8 << 48  # PERF_RECORD_SAMPLE and its size
    pid = np.where(random.random(SAMPLES) < 0.97, os.getpid(), random.integers(1, 9, SAMPLES))
    words[:, 1] = pid
    words[:, 3] = BASE + random.integers(0, PAGES, SAMPLES) * PAGE_BYTES
    words[:, 5] = 41
    words[:, 6] = random.integers(50, 200, SAMPLES)
    words[:, 7] = 2  # PERF_MEM_OP_LOAD
    data_bytes = 1 << (words.nbytes - 1).bit_length()
    memory = np.zeros(HEADER_BYTES + data_bytes, np.uint8)
    memory[HEADER_BYTES : HEADER_BYTES + words.nbytes] = words.reshape(-1).view(np.uint8)
    memory[1024:1032].view(np.uint64)[0] = words.nbytes
    return memory


def cost_ns(work: Callable[[], object]) -> float:
    """Return the least CPU time of a run, in ns per sample."""
    work()
    times = []
    for _ in range(RUNS):
        begun = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - begun)
    return min(times) / SAMPLES


if __name__ == "__main__":
    main()
