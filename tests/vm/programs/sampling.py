# SPDX-License-Identifier: MIT
"""Sample programs in the guest, and print the result as one JSON line.

    sampling.py GATHER

Runs GATHER on each node, one that is not tracked, and one that forks. The result is
checked by tests/vm/dram_pm/test_sampling.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmd.linux.emulator_memory import SharedMemory, find_device
from hmd.linux.page_calls import query_nodes
from hmd.linux.procfs import ProcessId, identify
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.emulated_pebs import open_emulated
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import open_sampler

ENOUGH = 400
ENOUGH_STORES = 40
PERIOD = 23
PATIENCE_S = 120
MIB = 32


@dataclass
class Program:
    popen: subprocess.Popen[str]
    process: ProcessId
    loads: int
    stores: int
    size: int


def start(gather: str, *prefix: str, fork: bool = False) -> list[Program]:
    argv = [*prefix, gather, str(MIB), *(["fork"] if fork else [])]
    popen = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert popen.stdout is not None
    programs = []
    for _ in range(1 + fork):
        pid, loads, stores, size = map(int, popen.stdout.readline().split())
        process = identify(pid)
        assert process is not None
        programs.append(Program(popen, process, loads, stores, size))
    return sorted(programs, key=lambda program: program.process.pid)


def stop(programs: list[Program]) -> None:
    programs[0].popen.kill()
    programs[0].popen.wait()
    assert programs[0].popen.stdout is not None
    programs[0].popen.stdout.close()


def gather_rows(sampler: RingSampler, processes: int, dropped: int = 0) -> list[AccessBatch]:
    """Read until each process has enough rows and so many were dropped, or patience ends.

    Stores are sampled far more rarely than loads.
    """
    counts, stores = np.zeros((2, processes), np.int64)
    batches = []
    deadline = time.monotonic() + PATIENCE_S
    dropped += sampler.stats.dropped
    while time.monotonic() < deadline:
        enough = counts.min() >= ENOUGH and stores.min() >= ENOUGH_STORES
        if enough and sampler.stats.dropped >= dropped:
            break
        time.sleep(0.2)
        batch = sampler.read()
        counts += np.bincount(batch.process, minlength=processes)
        stores += np.bincount(batch.process[batch.kind == Kind.STORE], minlength=processes)
        batches.append(batch)
    return batches


def column(batches: list[AccessBatch], name: str, index: int) -> Any:
    return np.concatenate([getattr(b, name)[b.process == index] for b in batches])


def share_within(addresses: Any, start: int, size: int) -> float:
    return float(((addresses >= start) & (addresses < start + size)).mean())


def seen(batches: list[AccessBatch], index: int, program: Program) -> dict[str, Any]:
    address, kind = column(batches, "address", index), column(batches, "kind", index)
    loads, stores = address[kind == Kind.LOAD], address[kind == Kind.STORE]
    nodes = query_nodes(program.process.pid, np.unique(address & ~np.uint64(4095)))
    latency = column(batches, "latency_ns", index)[kind == Kind.LOAD]
    return {
        "rows": len(address),
        "loads_in_place": share_within(loads, program.loads, program.size),
        "stores_in_place": share_within(stores, program.stores, program.size),
        "node_share": [float((nodes == node).mean()) for node in (0, 1)],
        "load_latency_ns": float(np.median(latency)),
        "cpus": sorted(set(column(batches, "cpu", index).tolist())),
        "distinct": len(np.unique(address)),
    }


def on_each_node(sampler: RingSampler, gather: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in (0, 1):
        programs = start(gather, "numactl", f"--membind={node}")
        sampler.track([programs[0].process])
        found[f"node{node}"] = seen(gather_rows(sampler, 1), 0, programs[0])
        stop(programs)
        sampler.read()  # what it did before it ended
        found[f"after_exit{node}"] = len(sampler.read())
        sampler.track([])  # the next program fills its memory by stores
    return found


def beside_another(sampler: RingSampler, gather: str) -> dict[str, Any]:
    other, ours = start(gather, "numactl", "--membind=0"), start(gather, "numactl", "--membind=1")
    sampler.track([ours[0].process])
    dropped = sampler.stats.dropped
    batches = gather_rows(sampler, 1, dropped=ENOUGH)
    found = seen(batches, 0, ours[0])
    address = column(batches, "address", 0)
    found["of_other"] = share_within(address, other[0].loads, 2 * other[0].size)
    found["dropped"] = sampler.stats.dropped - dropped
    stop(other)
    stop(ours)
    return found


def after_fork(sampler: RingSampler, gather: str) -> dict[str, Any]:
    """Parent and child share the pages they load from; which one stored distinguishes them."""
    programs = start(gather, fork=True)
    sampler.track([program.process for program in programs])
    batches = gather_rows(sampler, 2)
    found = {name: seen(batches, i, programs[i]) for i, name in enumerate(("parent", "child"))}
    stop(programs)
    return found


def counted(sampler: RingSampler, gather: str) -> dict[str, Any]:
    """What was read, against the samples that the machine wrote and the misses it counted."""
    device = find_device()
    assert device is not None
    programs = start(gather)
    found: dict[str, Any] = {}
    with SharedMemory.open(device) as memory:
        for period in (97, 997):
            given = sampler.set_period(period)
            # A full ring says how many records it lost only with the next one that it takes.
            sampler.track([programs[0].process])
            time.sleep(0.5)
            settle(sampler)
            before, read_before = totals(memory), sampled(sampler)
            sampler.track([programs[0].process])
            first = now = totals(memory)
            stores = 0
            deadline = time.monotonic() + PATIENCE_S
            # Counters are a millisecond of running old, and a busy host may stop a vCPU for long:
            # over some seconds that is nothing.
            earliest = time.monotonic() + 5
            while time.monotonic() < earliest or (
                sampled(sampler) - read_before < 5000 and time.monotonic() < deadline
            ):
                time.sleep(0.1)
                stores += store_accesses(memory, now, now := totals(memory))
                sampler.read()
            last = totals(memory)
            stores += store_accesses(memory, now, last)
            settle(sampler)
            after = totals(memory)
            passed = {name: last[name] - first[name] for name in last}
            taken = (passed["load_samples"] + passed["lost"]) * given
            found[str(period)] = {
                "read": sampled(sampler) - read_before,
                "written": after["written"] - before["written"] + after["lost"] - before["lost"],
                "share_of_misses": taken / max(1, passed["misses"]),
                "share_of_lines": taken / max(1, passed["lines"]),
                "share_of_stores": stores / max(1, passed["stores"]),
            }
    stop(programs)
    return found


def settle(sampler: RingSampler) -> None:
    """Stop sampling, and read what an access that was under way may still write."""
    sampler.track([])
    time.sleep(0.1)
    sampler.read()


def store_accesses(memory: SharedMemory, before: dict[str, int], now: dict[str, int]) -> int:
    """The stores that samples of stores since ``before`` represent; a read changes their period."""
    return (now["store_samples"] - before["store_samples"]) * memory.store_period


def totals(memory: SharedMemory) -> dict[str, int]:
    counters = [memory.counters(vcpu) for vcpu in range(memory.vcpus)]
    nodes = [node for counted in counters for node in counted.nodes]
    return {
        "written": sum(c.load_samples + c.store_samples for c in counters),
        "load_samples": sum(c.load_samples for c in counters),
        "store_samples": sum(c.store_samples for c in counters),
        "stores": sum(c.stores for c in counters),
        "lost": sum(c.lost_samples for c in counters),
        "misses": sum(n.load_misses for n in nodes),
        "lines": sum(n.load_misses + n.prefetched_lines for n in nodes),
    }


def sampled(sampler: RingSampler) -> int:
    return sampler.stats.samples + sampler.stats.dropped + sampler.stats.lost


def in_kernel_mode(sampler: RingSampler, gather: str) -> dict[str, Any]:
    """The kernel clears a buffer for read(2), and copies out of it for write(2)."""
    del gather
    sampler.close()
    found: dict[str, Any] = {}
    for kernel_mode in (False, True):
        opened = open_emulated(SampleSettings(period=PERIOD, kernel_mode=kernel_mode))
        copier = subprocess.Popen(
            ["dd", "if=/dev/zero", "bs=4M"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        with copier, subprocess.Popen(["cat"], stdin=copier.stdout, stdout=subprocess.DEVNULL):
            process = identify(copier.pid)
            assert process is not None
            opened.track([process])
            rows, deadline = {"LOAD": 0, "STORE": 0}, time.monotonic() + PATIENCE_S
            earliest = time.monotonic() + 5
            while time.monotonic() < earliest or (
                kernel_mode and min(rows.values()) < ENOUGH_STORES and time.monotonic() < deadline
            ):
                time.sleep(0.2)
                kinds = opened.read().kind
                for kind in (Kind.LOAD, Kind.STORE):
                    rows[kind.name] += int((kinds == kind).sum())
            copier.kill()
        found[str(kernel_mode)] = {**rows, "kernel": opened.stats.kernel_addresses}
        opened.close()
    return found


SCENARIOS: tuple[Callable[[RingSampler, str], dict[str, Any]], ...] = (
    on_each_node,
    beside_another,
    after_fork,
    counted,
    in_kernel_mode,
)


def main(gather: str) -> None:
    # The machine's counters of misses are of user mode.
    chosen = open_sampler(SampleSettings(period=PERIOD, kernel_mode=False))
    assert isinstance(chosen.sampler, RingSampler)
    found: dict[str, Any] = {"sampler": chosen.sampler.name, "reason": chosen.reason}
    for scenario in SCENARIOS:
        found[scenario.__name__] = scenario(chosen.sampler, gather)
        chosen.sampler.track([])
        chosen.sampler.set_period(PERIOD)
    found["corrupt"] = chosen.sampler.stats.corrupt
    chosen.sampler.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
