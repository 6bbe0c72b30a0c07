# SPDX-License-Identifier: MIT
"""Memory and CPU time of plans of a heat table of ten million rows.

    python -m bench.scale.plan_memory [--rows 10000000] [--publish]

All pages are counted one by one, half of them on each of two nodes, with samples of a tenth of
them. For each policy, and for the moves that administrators request, it prints the peak of what one
tick's plan allocates in addition to the table, and its CPU time. The rates of all rows, 8 bytes
each, are allocated in every case. ``--publish`` writes docs/results/plan_memory.json.

The peak of this process's memory.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from bench.documents.markdown import measured_with
from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.policy import registry
from hmd.policy.admin import drain_moves, pin_moves
from hmd.policy.plan import MachineView, Plan
from hmd.policy.planning import idle_pages
from hmd.sample.access_batch import AccessBatch
from hmd.tick.tick import PAGEOUT_ROWS, POLICY_ROWS

PUBLISHED: Final = Path("docs/results/plan_memory.json")
TOPOLOGY: Final = Topology((Node(0, (0,), 1 << 40, (10, 20), 0), Node(1, (), 1 << 40, (20, 10), 1)))
TICKS: Final = 4
BUDGET_BYTES: Final = 1 << 30


def filled(rows: int) -> HeatTable:
    """Return a table of so many pages, all with their own counts."""
    chunks = rows // CHUNK_PAGES
    heat = HeatTable(HeatSettings(max_page_slots=chunks))
    heat.track_processes([ProcessId(1, 1)])
    for begin in range(0, chunks, 1024):
        some = np.arange(begin, min(begin + 1024, chunks), dtype=np.uint64)
        node = np.repeat((some % np.uint64(2)).astype(np.int8)[:, None], CHUNK_PAGES, axis=1)
        heat.record_nodes(0, some * np.uint64(CHUNK_BYTES), node)
    random = np.random.default_rng(1)
    for _ in range(TICKS):
        heat.update(_samples(random.integers(0, rows, rows // 10 // TICKS)))
    return heat


def _samples(pages: np.ndarray[tuple[int], np.dtype[np.int64]]) -> AccessBatch:
    return AccessBatch.of(pages.astype(np.uint64) * np.uint64(PAGE_BYTES), period=100)


def plans(heat: HeatTable) -> dict[str, Callable[[], Plan]]:
    """Return a function for each kind of plan."""
    memory = tuple(NodeMemory(node, 1 << 40, 1 << 39) for node in (0, 1))
    machine = MachineView(TOPOLOGY, memory, 1.0, 1.0, BUDGET_BYTES)
    nobody, slow = np.zeros(1, np.bool_), np.array([[False, True]])

    def drain() -> Plan:
        return drain_moves(heat.rows_to_evacuate(TOPOLOGY, nobody, slow, POLICY_ROWS), machine, {1})

    def pin() -> Plan:
        return pin_moves(
            heat.rows_to_evacuate(TOPOLOGY, nobody, slow, POLICY_ROWS), machine, np.zeros(1, int)
        )

    def page_out() -> Plan:
        pages = heat.rows_to_evacuate(TOPOLOGY, nobody, slow, PAGEOUT_ROWS, longest_idle=True)
        return idle_pages(pages, machine, np.ones(1), BUDGET_BYTES)

    def planned_by(name: str) -> Callable[[], Plan]:
        policy = registry.create(name)
        return lambda: policy.plan(heat.view(TOPOLOGY, nobody, POLICY_ROWS), machine)

    requested = {"drain": drain, "pin": pin, "page-out": page_out}
    return {**requested, **{name: planned_by(name) for name in registry.names()}}


def measure(heat: HeatTable, plan: Callable[[], Plan]) -> dict[str, float]:
    """Return the peak of the second plan, in MiB, its CPU time and its moves."""
    plan()
    heat.discard_rates()
    tracemalloc.start()
    begun_s = time.thread_time()
    moves = len(plan())
    cpu_s = time.thread_time() - begun_s
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"peak_mib": peak / 2**20, "cpu_s": cpu_s, "moves": moves}


def main() -> None:
    """Measure every plan and print a table."""
    parser = argparse.ArgumentParser(description="Memory and CPU time of plans of a large table.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    registry.warm()
    heat = filled(args.rows)
    found = {}
    print(f"{'plan':14}{'peak MiB':>10}{'CPU s':>8}{'moves':>9}")
    for name, plan in plans(heat).items():
        one = found[name] = measure(heat, plan)
        print(f"{name:14}{one['peak_mib']:10.0f}{one['cpu_s']:8.2f}{one['moves']:9.0f}", flush=True)
    if args.publish:
        document = {
            **measured_with(),
            "rows": args.rows // CHUNK_PAGES * CHUNK_PAGES,
            "table_mib": heat.chunks.nbytes / 2**20,
            "worst_mib": max(one["peak_mib"] for one in found.values()),
            "worst_cpu_s": max(one["cpu_s"] for one in found.values()),
            "plans": found,
        }
        PUBLISHED.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()


def peak_mib() -> float:
    """Return this process's peak memory in MiB; ru_maxrss would include its parent's before exec.

    VmHWM of proc_pid_status(5).
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024
