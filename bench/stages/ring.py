# SPDX-License-Identifier: MIT
"""Cost of reading samples: prints a table, writes build/ring.json.

CPU time of one core, best of several runs, for a ring of PMU records: draining it, the whole read
(drain, process of each row, columns of the selected rows), and the nodes of samples' pages.

Perf rings in memory that a benchmark writes as the kernel would, one per CPU.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES
from hmd.heat.table import HeatTable
from hmd.linux.procfs import identify
from hmd.metrics.observer import sample_nodes
from hmd.sample.access_batch import Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.perf_ring import HEADER_BYTES, RecordColumns, Ring, SampleType
from hmd.sample.periods import PRIME_PERIODS
from hmd.sample.ring_sampler import RingControl, RingSampler

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "ring.json"
TYPE = (
    *(SampleType.TID, SampleType.TIME, SampleType.ADDR, SampleType.CPU),
    *(SampleType.PERIOD, SampleType.WEIGHT, SampleType.DATA_SRC),
)
SAMPLES = 50_000
PAGES = 32 * CHUNK_PAGES
BASE = 0x7F00_0000_0000
RUNS = 15

SAMPLE_TYPE = SampleType.TID | SampleType.ADDR | SampleType.CPU | SampleType.WEIGHT

RECORD = np.dtype(
    [
        *(("type", "<u4"), ("misc", "<u2"), ("size", "<u2"), ("pid", "<u4"), ("tid", "<u4")),
        *(("address", "<u8"), ("cpu", "<u4"), ("reserved", "<u4"), ("weight", "<u8")),
    ]
)
"""A sample of ``SAMPLE_TYPE`` (PERF_RECORD_SAMPLE, perf_event_open(2))."""

_SAMPLE = 9

_HEAD = 1024
"""Offset of data_head in struct perf_event_mmap_page."""


class Switch(RingControl):
    """A control without effect: the benchmark writes the ring."""

    def start(self) -> None:
        """Do nothing."""

    stop = close = start

    def set_period(self, period: int, store_multiplier: int) -> None:
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
        "pmu",
        "",
        [ring],
        Switch(),
        TrackedPids(),
        period=41,
        periods=(41,),
        read_rows=SAMPLES,
    )
    sampler.track([us])
    heat = HeatTable()
    heat.track_processes([us])
    starts = BASE + np.arange(PAGES // CHUNK_PAGES, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    heat.record_nodes(0, starts, np.ones((len(starts), CHUNK_PAGES), np.int8))
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


class WrittenRing:
    """A ring of ``pages`` pages of data; samples beyond its room are lost."""

    def __init__(self, cpu: int, pages: int) -> None:
        self._cpu = cpu
        self._memory = np.zeros(HEADER_BYTES + pages * 4096, np.uint8)
        self._words = self._memory[_HEAD : _HEAD + 16].view(np.uint64)
        self.ring = Ring.over(self._memory, SAMPLE_TYPE, Kind.LOAD)

    def write(self, addresses: npt.NDArray[np.uint64]) -> None:
        """Append samples of this process."""
        data = self._memory[HEADER_BYTES:]
        head, tail = (int(word) for word in self._words)
        room = (len(data) - (head - tail)) // RECORD.itemsize
        records = np.zeros(min(len(addresses), room), RECORD)
        records["type"], records["size"], records["cpu"] = _SAMPLE, RECORD.itemsize, self._cpu
        records["pid"] = records["tid"] = os.getpid()
        records["address"] = addresses[: len(records)]
        written = records.view(np.uint8)
        start = head % len(data)
        first = min(len(written), len(data) - start)
        data[start : start + first] = written[:first]
        data[: len(written) - first] = written[first:]
        self._words[0] = head + len(written)


def sampler_over(rings: list[WrittenRing]) -> RingSampler:
    """Return the sampler of these rings, which follows this process."""
    sampler = RingSampler(
        "pmu",
        f"{len(rings)} written rings",
        [each.ring for each in rings],
        Switch(),
        TrackedPids(),
        period=1009,
        periods=PRIME_PERIODS,
    )
    process = identify(os.getpid())
    assert process is not None
    sampler.track([process])
    return sampler
