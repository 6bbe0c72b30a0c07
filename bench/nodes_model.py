# SPDX-License-Identifier: MIT
"""Threads on two sockets in the timing model alone: hmd next to first touch and interleaving.

    python -m bench.nodes_model [PROGRAM,...] [--steps 60000] [--publish]

The programs of bench/workloads/parts.c as streams of accesses of four CPUs, on the preset
two-socket without a kernel: the timing library of the emulated machine says what each access takes,
and hmd's tick samples every ``PERIOD``-th miss and moves pages, every ``TICK_STEPS`` steps. A move
costs the time of a copy by the kernel, of all CPUs together. Milliseconds are modelled, and of the
last tick those of its steps alone. It takes seconds where :mod:`bench.nodes` takes minutes, and has
no NUMA balancing. ``--publish`` writes the part ``model`` of docs/results/nodes.json.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.access_model import AccessCosts, AccessFlag, AccessModel, AccessStream, CacheLevel
from bench.documents.markdown import table
from bench.nodes import HMD, publish
from bench.synthetic.synthetic_run import BASE, SyntheticRun, Tier
from hmd.base.units import LINE_BYTES, MOVE_NS, PAGE_BYTES
from hmd.emulate.preset import Preset, load, with_cpus
from hmd.emulate.timing_params import timing_params
from hmd.linux.topology import Node, Topology
from hmd.policy import registry
from hmd.sample.access_batch import AccessBatch

CPUS: Final = 4
PART_LINES: Final = 1 << 16  # 4 MiB
PERIOD: Final = 37
TICK_STEPS: Final = 2000
LOAD_INSTRUCTIONS: Final = 6
CHAINS: Final = {"partitions": 4, "local": 4, "chase": 1, "handover": 4, "table": 4, "mixed": 4}
"""Programs, and in how many chains each of their threads loads at once."""

_MULTIPLIER, _INCREMENT = np.uint64(2862933555777941757), np.uint64(3037000493)

Lines = npt.NDArray[np.int64]


def two_sockets() -> Preset:
    """Return the preset with a cache for each of its four CPUs."""
    preset = with_cpus(load("two-socket"), CPUS)
    cache = preset.cache.model_copy(update={"count": CPUS})
    return preset.model_copy(update={"cache": cache})


def topology_of(preset: Preset) -> Topology:
    """Return the nodes as the kernel shows them; DRAM is the first tier."""
    return Topology(
        tuple(
            Node(
                number,
                node.cpus,
                node.size,
                (preset.distances or ())[number],
                0 if node.cpus else 1,
                round(node.read_latency_ns),
                round(node.write_latency_ns),
                round(node.read_bandwidth_gbps * 1000),
                round(node.write_bandwidth_gbps * 1000),
            )
            for number, node in enumerate(preset.nodes)
        )
    )


class Program:
    """The accesses of a program's threads; ``pages`` is how many it has.

    ``local``: each thread has initialised what it uses.
    """

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._half, self._done = name, steps // 2, 0
        self.chains, self.local = CHAINS[name], name == "local"
        parts = CPUS + (name == "mixed")
        self.pages = parts * PART_LINES * LINE_BYTES // PAGE_BYTES
        cycle = CPUS * PART_LINES if name == "table" else PART_LINES
        self._mask = np.uint64(cycle - 1)
        starts = [cycle // self.chains * chain for chain in range(self.chains)]
        starts += [0] if name == "mixed" else []
        self._at = np.tile(np.array(starts, np.uint64), (CPUS, 1))

    def accesses(self, steps: int) -> tuple[Lines, Lines]:
        """Return the lines that are read and those whose address they hold, ``(steps, CPUS, n)``.

        The first ``chains`` of ``n`` are updated, but for a table.
        """
        part = np.arange(CPUS)
        if self._name == "handover" and self._done >= self._half:
            part = (part + CPUS // 2) % CPUS
        if self._name == "table":
            part = np.zeros(CPUS, np.int64)
        base = np.repeat((part * PART_LINES)[:, None], self._at.shape[1], axis=1)
        base[:, self.chains :] = CPUS * PART_LINES
        line = np.empty((steps + 1, *base.shape), np.int64)
        for step in range(steps + 1):
            line[step] = self._at.astype(np.int64) + base
            if step < steps:
                self._at = (self._at * _MULTIPLIER + _INCREMENT) & self._mask
        self._done += steps
        return line[:-1], line[1:]

    @property
    def updates(self) -> bool:
        """Whether the chains are updated."""
        return self._name != "table"


@dataclass(slots=True)
class _Totals:
    """What a run took, in ns, and how many pages moved; ``last_ns`` is of the last steps."""

    total_ns: float = 0.0
    last_ns: float = 0.0
    moves: int = 0


class ModelledRun(SyntheticRun):
    """A program on the preset's machine, whose first thread has touched all pages, or interleaved.

    The threads of ``local`` have each touched their own.
    """

    period = PERIOD

    def __init__(self, program: Program, *, interleaved: bool) -> None:
        preset = two_sockets()
        self._params, self._program = timing_params(preset), program
        self._model, self._instructions = AccessModel(self._params), np.uint64(0)
        self._batch = AccessBatch.empty()
        count = program.pages
        page = np.arange(count)
        first = page % 2 if interleaved else page * 2 // count * program.local
        super().__init__(
            registry.create(registry.DEFAULT, {}),
            tuple(Tier(node.size // PAGE_BYTES) for node in preset.nodes),
            np.ones(count),
            first.astype(np.int8),
            samples_per_tick=0,
            latency_ns=lambda _: [node.read_latency_ns for node in preset.nodes],
            ranks=[0 if node.cpus else 1 for node in preset.nodes],
        )
        inputs = self.ticks.inputs
        machine = replace(inputs.machine, topology=topology_of(preset))
        self.ticks.inputs = replace(inputs, machine=machine)

    def read(self) -> AccessBatch:
        """Return every ``PERIOD``-th miss of the last steps."""
        return self._batch

    def finish(self, steps: int, *, moving: bool) -> _Totals:
        """Run the program, with ticks in which hmd moves pages or without; return what it took."""
        totals, clock_ps = _Totals(), 0
        for _ in range(steps // TICK_STEPS):
            now_ps = self._steps()
            totals.last_ns = (now_ps - clock_ps) / 1000
            totals.total_ns, clock_ps = totals.total_ns + totals.last_ns, now_ps
            if moving:
                self.tick()
                moves = int(self.plan.pages.sum())
                totals.moves += moves
                totals.total_ns += moves * MOVE_NS / CPUS
        return totals

    def _steps(self) -> int:
        """Make the accesses of ``TICK_STEPS`` steps; return the machine's clock, in ps."""
        line, held = self._program.accesses(TICK_STEPS)
        cpu = np.broadcast_to(np.arange(CPUS, dtype=np.uint8)[None, :, None], line.shape)
        chains = line.shape[2]
        step = np.arange(TICK_STEPS * chains, dtype=np.uint64).reshape(-1, 1, chains)
        at = self._instructions + step * np.uint64(LOAD_INSTRUCTIONS)
        at = np.broadcast_to(at, line.shape)
        self._instructions = at[-1, -1, -1] + np.uint64(LOAD_INSTRUCTIONS)
        store = np.zeros((*line.shape, 2), np.bool_)
        store[..., 1] = True
        kept = np.ones_like(store)
        kept[..., self._program.chains :, 1] = False
        kept[..., 1] &= self._program.updates
        twice = [np.repeat(each.reshape(-1), 2) for each in (cpu, at, line, held)]
        cpu, at, line, held = (each[kept.reshape(-1)] for each in twice)
        stores = store[kept]
        later = stores.astype(np.uint64)
        address = (BASE + line * LINE_BYTES).astype(np.uint64)
        page = line * LINE_BYTES // PAGE_BYTES
        start = np.array([node.phys_start for node in self._params.nodes])
        stream = AccessStream(
            vcpu=np.ascontiguousarray(cpu),
            instructions=at + later * np.uint64(2),
            vaddr=address + later * np.uint64(8),
            paddr=(start[self.node[page]] + line * LINE_BYTES).astype(np.uint64),
            size=np.full(len(cpu), 8, np.uint8),
            flags=np.where(stores, AccessFlag.STORE, AccessFlag.LOAD).astype(np.uint8),
            value=(BASE + held * LINE_BYTES).astype(np.uint64),
        )
        costs = AccessCosts.empty(len(cpu))
        clock_ps = self._model.replay(stream, costs)
        missed = np.flatnonzero((costs.level == CacheLevel.MEMORY) & ~stores)[::PERIOD]
        latency_ns = costs.latency_ps[missed] // 1000
        batch = AccessBatch.of(address[missed], latency_ns=latency_ns, period=PERIOD)
        self._batch = replace(batch, cpu=stream.vcpu[missed].astype(np.uint16))
        return clock_ps


def main() -> int:
    """Run the programs under each placement; print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="?", default=",".join(CHAINS))
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    lines = []
    for name in args.programs.split(","):
        cells = [name]
        for system, interleaved in (("localalloc", False), ("interleave", True), (HMD, False)):
            run = ModelledRun(Program(name, args.steps), interleaved=interleaved)
            found = run.finish(args.steps, moving=system == HMD)
            cells.append(f"{found.total_ns * 1e-6:.2f} ({found.last_ns * 1e-6:.3f})")
            row = {"program": name, "system": system, "seconds": round(found.total_ns * 1e-9, 6)}
            rows.append({**row, "last_tick_s": round(found.last_ns * 1e-9, 9)})
        lines.append([*cells, str(found.moves)])
    headers = ["program", "localalloc, ms", "interleave, ms", "hmd, ms", "pages moved"]
    print(table(headers, lines, text=1))
    if args.publish:
        command = f"python -m bench.nodes_model --steps {args.steps} --publish"
        publish(rows, command, "model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
