# SPDX-License-Identifier: MIT
"""Host cost per access in the timing model: prints a table, writes build/timing.json.

Every load and store of the emulated machine passes through the model, so its cost bounds the
machine's speed. Each row replays a stream of accesses by one CPU through the library that the QEMU
plugin calls; the last rows run two CPUs of one cache in two threads. Nanoseconds of CPU time per
access (a busy host does not raise it much), best of several runs.
"""

from __future__ import annotations

import json
import platform
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.access_model import AccessFlag, AccessModel, AccessStream
from hmd.base.units import MIB
from hmd.emulate.timing_params import NodeParams, TimingParams

COUNT = 2_000_000
RUNS = 5

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "timing.json"

DRAM = NodeParams(0, 2048 * MIB, 81_000, 81_000, 105.0, 105.0, 64, ((0.5, 1.1), (0.9, 2.0)))
OPTANE = NodeParams(
    2048 * MIB, 4096 * MIB, 305_000, 305_000, 39.4, 13.8, 256, ((0.5, 1.2), (0.9, 3.0))
)
PARAMS = TimingParams(
    nodes=(DRAM, OPTANE),
    vcpus=2,
    instruction_ps=100,
    llc_bytes=32 * MIB,
    llc_ways=16,
    llc_hit_ps=4000,
    mshrs=12,
    rob_instructions=352,
    chase_span_bytes=256,
    prefetch_streams=16,
    tlb_entries=64,
    tlb_ways=4,
    tlb_huge_entries=32,
    tlb_huge_ways=4,
    stlb_entries=1536,
    stlb_ways=12,
    stlb_hit_ps=2700,
    walk_ps=10_000,
)


def stream_of(
    address: npt.NDArray[np.uint64], flags: AccessFlag = AccessFlag.LOAD, vcpu: int = 0
) -> AccessStream:
    """Return a stream of 8-byte accesses, 4 instructions each, at node-1 addresses."""
    count = len(address)
    return AccessStream(
        vcpu=np.full(count, vcpu, np.uint8),
        instructions=np.arange(4, 4 * count + 4, 4, dtype=np.uint64),
        vaddr=address + np.uint64(1 << 40),
        paddr=address + np.uint64(DRAM.phys_end),
        size=np.full(count, 8, np.uint8),
        flags=np.full(count, flags, np.uint8),
        value=address,
    )


def addresses() -> dict[str, npt.NDArray[np.uint64]]:
    """Return the patterns, by name."""
    random = np.random.default_rng(1)
    rows = np.arange(COUNT, dtype=np.uint64)

    def within(size: int) -> npt.NDArray[np.uint64]:
        return random.integers(0, size // 8, COUNT, dtype=np.uint64) * 8

    return {
        "hits in L1 (16 KiB)": within(16 << 10),
        "hits in the LLC (8 MiB)": within(8 * MIB),
        "stream, 8 bytes per step": rows * 8 % np.uint64(1024 * MIB),
        "stream, a line per step": rows * 64 % np.uint64(1024 * MIB),
        "random over 1 GiB": within(1024 * MIB),
        "9 of 10 in L1, 1 random": np.where(rows % 10 > 0, within(16 << 10), within(1024 * MIB)),
    }


def later_by(stream: AccessStream, runs: int) -> AccessStream:
    """Return the stream of a CPU's later pass, with continued instruction counts."""
    return replace(stream, instructions=stream.instructions + np.uint64(4 * COUNT * runs))


def measure(streams: list[AccessStream]) -> float:
    """Return ns of CPU time per access, best of several runs on a warm model."""
    best = float("inf")
    with AccessModel(replace(PARAMS, vcpus=len(streams))) as model:
        for run in range(RUNS):
            later = [later_by(each, run) for each in streams]
            threads = [threading.Thread(target=model.replay, args=(each,)) for each in later]
            start = time.process_time()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            best = min(best, time.process_time() - start)
    return best / COUNT / len(streams) * 1e9


def main() -> int:
    """Measure, print and write the figures."""
    results: dict[str, float] = {}
    for name, address in addresses().items():
        results[name] = measure([stream_of(address)])
        results[f"{name}, stores"] = measure([stream_of(address, AccessFlag.STORE)])
    for name in ("hits in the LLC (8 MiB)", "9 of 10 in L1, 1 random"):
        both = [stream_of(addresses()[name], vcpu=cpu) for cpu in (0, 1)]
        results[f"two CPUs, {name}"] = measure(both)
    for name, nanoseconds in results.items():
        print(f"{name:36} {nanoseconds:6.1f} ns")
    OUTPUT.parent.mkdir(exist_ok=True)
    document = {"machine": platform.machine(), "accesses": COUNT, "ns_per_access": results}
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
