# SPDX-License-Identifier: MIT
"""Cost of estimates from long traces: time and memory versus samples, up to 10^8.

    python -m bench.suite.large_trace 10000000       one size; prints JSON

Writes two traces (a program of 1 GiB whose hot pages change in four phases), then reads and prices
them in a separate process, whose memory is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.scale.plan_memory import peak_mib
from hmd.base.units import PAGE_BYTES
from hmd.estimate import build_model, layout, side_by_side
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind
from hmd.trace.reader import TraceFile
from hmd.trace.trace import Ending, TracedProcess
from hmd.trace.writer import TraceWriter

SIZES = (10**6, 10**7, 10**8)
PAGES = 1 << 18
PHASES = 4
BATCH = 1 << 16
GAP_NS = 2000
FIRST = 0x7F00_0000_0000


def write(path: Path, samples: int, latency_ns: int, seed: int) -> None:
    """Write a run of loads of about ``latency_ns``; every 50th soon follows another."""
    rng = np.random.default_rng(seed)
    with TraceWriter(path, {"begin_ns": 0, "clock": "monotonic"}) as writer:
        writer.write_process(0, TracedProcess(1, "program"))
        for start in range(0, samples, BATCH):
            rows = min(BATCH, samples - start)
            at = np.arange(start, start + rows, dtype=np.uint64)
            phase = start * PHASES // samples
            hot = rng.random(rows) < 0.8
            page = np.where(
                hot, rng.integers(0, PAGES // 16, rows) + phase * PAGES // 16,
                rng.integers(0, PAGES, rows),
            ).astype(np.uint64)  # fmt: skip
            step = np.where(at % np.uint64(50) == 0, 100, 20_000).astype(np.uint64)
            zeros = {name: np.zeros(rows, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
            writer.add_samples(
                zeros
                | {
                    "time_ns": at * np.uint64(GAP_NS),
                    "address": np.uint64(FIRST) + page * np.uint64(PAGE_BYTES),
                    "thread": np.ones(rows, np.uint32),
                    "kind": np.where(rng.random(rows) < 0.2, Kind.STORE, Kind.LOAD).astype("u1"),
                    "latency_ns": rng.integers(latency_ns, 2 * latency_ns, rows).astype("<u4"),
                    "period": np.full(rows, 1009, np.uint32),
                    "instructions": at * np.uint64(20_000) + step,
                }
            )
        writer.write_ending(Ending(0, samples * GAP_NS, 0))


def price(slow: Path, fast: Path) -> dict[str, Any]:
    """Read both traces, build the model, price a layout; returns seconds and peak memory."""
    runs_s = -time.perf_counter()
    runs = side_by_side(TraceFile(slow), TraceFile(fast))
    runs_s += time.perf_counter()
    model = build_model(runs)
    half = layout.by_heat(runs.pages, len(runs.pages) // 2)
    model.estimate(half)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        model.estimate(half)
        times.append(time.perf_counter() - began)
    samples = int(runs.slow.samples.sum() + runs.fast.samples.sum())
    return {
        "samples": samples,
        "rows": len(model.page),
        "read_s": runs_s,
        "layout_s": min(times),
        "samples_per_second": samples / min(times),
        "peak_mib": peak_mib(),
    }


def measure(samples: int) -> dict[str, Any]:
    """Return the cost of two traces with ``samples`` samples in all, in a separate process."""
    with tempfile.TemporaryDirectory(prefix="hmd-large-") as name:
        files = Path(name) / "slow.hmdt", Path(name) / "fast.hmdt"
        for seed, (path, latency_ns) in enumerate(zip(files, (300, 100), strict=True)):
            write(path, samples // 2, latency_ns, seed)
        command = [sys.executable, "-m", "bench.suite.large_trace", *map(str, files)]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        size = sum(path.stat().st_size for path in files)
    return {**json.loads(found), "file_mib": size / (1 << 20)}


def cold_start_s() -> float:
    """Return the seconds to import numba and load the kernels from its cache."""
    code = (
        "import time; began = time.perf_counter(); "
        "from hmd.base.numba_kernels import warm; "
        "warm(tuple(f'hmd.estimate.{m}' for m in ('cost', 'overlap'))); "
        "print(time.perf_counter() - began)"
    )
    command = [sys.executable, "-c", code]
    return min(float(subprocess.check_output(command, text=True)) for _ in range(5))


if __name__ == "__main__":
    words = sys.argv[1:]
    print(json.dumps(price(*map(Path, words)) if len(words) == 2 else measure(int(words[0]))))
