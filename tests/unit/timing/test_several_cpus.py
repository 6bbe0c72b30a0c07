# SPDX-License-Identifier: MIT
"""Several CPUs on one cache, each in a thread of its own: the counts of one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.access_model import AccessFlag, AccessModel, AccessStream
from tests.unit.timing.conftest import Columns, Machine

CHUNK = 1000
CHUNKS = 60
# Sixteen times the cache of the test machine, from which each CPU takes lines; a part is hot.
LINES = 64 << 10
HOT_LINES = 1 << 10


def chunk(columns: Columns, cpu: int, number: int) -> AccessStream:
    rng = np.random.default_rng((cpu, number))
    line = np.where(
        rng.random(CHUNK) < 0.6, rng.integers(0, HOT_LINES, CHUNK), rng.integers(0, LINES, CHUNK)
    ).astype(np.uint64)
    stores = np.where(rng.random(CHUNK) < 0.3, int(AccessFlag.STORE), 0)
    start = 4 * CHUNK * number
    return columns(line * np.uint64(64), vcpu=cpu, start=start, flags=stores.tolist())


def in_turn(model: AccessModel, streams: list[list[AccessStream]]) -> None:
    for chunks in zip(*streams, strict=True):
        for each in chunks:
            model.replay(each)


def at_once(model: AccessModel, streams: list[list[AccessStream]]) -> None:
    """Run each CPU in its thread; no CPU is more than a chunk ahead of another."""
    barrier = threading.Barrier(len(streams))

    def run(chunks: list[AccessStream]) -> None:
        for each in chunks:
            barrier.wait()
            model.replay(each)

    threads = [threading.Thread(target=run, args=(chunks,)) for chunks in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def figures(model: AccessModel, cpus: int) -> npt.NDArray[np.float64]:
    """Return cache hits, lines read, bytes written and busy time, over all CPUs."""
    rows: list[list[Any]] = []
    for cpu in range(cpus):
        counters = model.counters(cpu)
        nodes = counters.nodes
        read = sum(n.load_misses + n.store_misses + n.prefetched_lines for n in nodes)
        written = sum(n.write_bytes for n in nodes)
        rows.append([counters.llc_hits, read, written, counters.busy_ps])
    return np.sum(rows, axis=0).astype(np.float64)


@pytest.mark.parametrize("cpus", [1, 2, 4])
def test_cpus_at_once_counts_equal_cpus_in_turn(
    machine: Machine, columns: Columns, cpus: int
) -> None:
    streams = [[chunk(columns, cpu, n) for n in range(CHUNKS)] for cpu in range(cpus)]
    found = []
    ways: list[Callable[[AccessModel, list[list[AccessStream]]], None]] = [in_turn, at_once]
    for run in ways:
        model = machine(vcpus=cpus)
        run(model, streams)
        found.append(figures(model, cpus))
    serial, parallel = found
    assert serial[0] > 10_000 < serial[1]
    assert parallel == pytest.approx(serial, rel=0.01)
