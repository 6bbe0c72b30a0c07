# SPDX-License-Identifier: MIT
"""The daemon's stages over synthetic memory and programs, in virtual time.

Heat, sweep, policy, mover, observer and heat map are the daemon's; what the kernel would answer
comes from arrays. So a page with minutes of history, moves both ways and failures is made in a
second, and is the same each time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.heat.settings import HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.mappings import Mappings, anonymous_mappings
from hmd.linux.page_calls import MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.metrics.heat_history import HeatHistory
from hmd.metrics.observer import (
    ObservedConfig,
    Observer,
    ResidencyCounts,
    heat_pages,
    resident_pages,
)
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import Mover, MoverSettings, Pageout
from hmd.policy import registry
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep
from hmd.sample.access_batch import AccessBatch
from hmd.sample.periods import RecordTime
from hmd.sample.sampler import CAPABILITIES, SamplerStats
from hmd.tick.stage_runner import StageTimer
from hmd.tick.tick import Machine as TickMachine
from hmd.tick.tick import TickInputs, TickLimits, TickState, Tracked, tick

FAST, SLOW = 0, 2
PAGE = 4096
MIB_PAGES = 256
FAST_BYTES, SLOW_BYTES = 144 << 20, 1 << 30
STARTED_S = 1_700_000_000.0
PINNED_EVERY = 97
"""One in this many pages of ``sqlite`` cannot be moved (EBUSY)."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of ``mib`` MiB with ``samples`` samples per tick; its hot set may drift."""

    process: ProcessId
    name: str
    target: str
    mib: int
    samples: int
    hot_share: float
    drifts: bool = False

    @property
    def base(self) -> int:
        """Address of its first page."""
        return 0x7F00_0000_0000 + self.process.pid * (1 << 30)

    def pages(self, tick: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """Pages of this tick's samples: nine in ten in the hot set."""
        count, hot = self.mib * MIB_PAGES, round(self.mib * MIB_PAGES * self.hot_share)
        first = (tick // 60 * 2 * hot if self.drifts else count // 3) % count
        page = (first + (rng.random(self.samples) ** 2 * hot).astype(np.int64)) % count
        return np.where(rng.random(self.samples) < 0.9, page, rng.integers(0, count, self.samples))


PROGRAMS = (
    Program(ProcessId(2101, 11), "redis-server", "redis", 128, 3000, 0.2, drifts=True),
    Program(ProcessId(2340, 12), "sqlite3", "sqlite", 96, 1500, 0.5),
    Program(ProcessId(2391, 13), "python3", "batch", 160, 500, 1.0),
)


class Sampler:
    """A sampler whose samples are drawn, with the figures that the observer reads."""

    name, detail, period = "pmu", "loads", 1009
    capabilities = CAPABILITIES["pmu"]
    periods: tuple[int, ...] = (1009,)
    pair_period: int | None = None
    outside_cpu_s = 0.0
    record_time = RecordTime()

    def __init__(self, draw: Callable[[], AccessBatch]) -> None:
        self.stats = SamplerStats()
        self._draw = draw

    def set_period(self, period: int) -> int:
        return period

    def track(self, processes: object) -> None: ...

    def read(self) -> AccessBatch:
        batch = self._draw()
        self.stats.samples += len(batch)
        return batch

    def close(self) -> None: ...


class Memory:
    """Residency of pages: the kernel interface that the sweep and the mover use."""

    def __init__(self) -> None:
        self.node = {p.process.pid: np.full(p.mib * MIB_PAGES, SLOW, np.int16) for p in PROGRAMS}
        # First touch: the program that came first has the fast node to itself.
        self.node[PROGRAMS[2].process.pid][: FAST_BYTES // PAGE - 4096] = FAST
        self.program = {p.process.pid: p for p in PROGRAMS}

    def stat(self, pid: int) -> ProcessStat | None:
        program = self.program[pid]
        name = program.name.encode()
        return ProcessStat(pid, program.process.start_ticks, 1, name, b"R", 0, 0, 0)

    def mappings(self, pid: int) -> Mappings:
        base, size = self.program[pid].base, len(self.node[pid]) * PAGE
        return anonymous_mappings(np.array([base], np.uint64), np.array([base + size], np.uint64))

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        del pid, mappings
        return np.empty(0, np.uint64)

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        page = self._page(pid, addresses)
        here = (page >= 0) & (page < len(self.node[pid]))
        found = self.node[pid][np.where(here, page, 0)]
        return np.where(here, found, -errno.ENOENT).astype(np.int16)

    query_nodes = nodes

    def move_pages(
        self,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        del flags
        page, target = self._page(pid, addresses), int(nodes[0])
        status = nodes.astype(np.int32)
        pinned = (page % PINNED_EVERY == 0) & (self.program[pid].name == "sqlite3")
        status[pinned] = -errno.EBUSY
        room = np.cumsum(~pinned) <= self.free_bytes(target) // PAGE
        status[~pinned & ~room] = -errno.ENOMEM
        self.node[pid][page[~pinned & room]] = target
        return 0, status

    def free_bytes(self, node: int) -> int:
        taken = sum(int(np.count_nonzero(column == node)) for column in self.node.values())
        return {FAST: FAST_BYTES, SLOW: SLOW_BYTES}[node] - taken * PAGE

    def _page(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return (addresses.astype(np.int64) - self.program[pid].base) // PAGE


class Machine:
    """The daemon's tick over a synthetic machine."""

    def __init__(self, policy: str = "histogram", dry_run: bool = False) -> None:
        self.now_s = 100.0
        self.topology = Topology(
            (
                Node(FAST, (0, 1), FAST_BYTES, (10, 20), tier=0),
                Node(SLOW, (), SLOW_BYTES, (20, 10), tier=1),
            )
        )
        self.memory, self.sampler = Memory(), Sampler(self._batch)
        self.heat = HeatTable(HeatSettings(), self.topology.latency_ns)
        self.heat.track_processes([p.process for p in PROGRAMS])
        self._state = TickState(
            heat=self.heat,
            sweep=ResidencySweep(memory=ModelledMemory(self.memory), clock=lambda: 0.0),
            policy=registry.create(policy),
            mover=Mover(
                MoverSettings(rate_bytes_per_s=8 << 20, burst_s=2, dry_run=dry_run),
                lambda: self.now_s,
                self.memory,
                stat=self.memory.stat,
                page_filter=lambda _, addresses: np.ones(len(addresses), np.bool_),
            ),
            pageout=Pageout(),
        )
        self._machine = TickMachine(
            topology=self.topology,
            sampler=self.sampler,
            node_memory=self._node_memory,
            stat=self.memory.stat,
        )
        self._tracked = Tracked(self.heat.processes, tuple(p.target for p in PROGRAMS))
        self.observer = Observer(
            ObservedConfig(
                "/etc/hmd/hmd.yaml",
                dry_run,
                tick_s=1.0,
                cpu_quota=0.01,
                overhead=0.01,
                policy=policy,
                targets=tuple(p.target for p in PROGRAMS),
            ),
            self.topology,
            self.sampler,
            clock=lambda: self.now_s,
            now=lambda: STARTED_S,
        )
        self.observer._names = {p.process: p.name for p in PROGRAMS}
        self.heat_map = HeatHistory(self.topology)
        self._rng = np.random.default_rng(5)

    def tick(self) -> TickRecord:
        """Advance the clock by a second and run one tick."""
        self.now_s += 1.0
        inputs = TickInputs(now_s=self.now_s, machine=self._machine, tracked=self._tracked)
        timer = StageTimer(clock=lambda: 0.0)
        self._state, record = tick(self._state, inputs, TickLimits(1.0), timer)
        self.observer.observe(
            record,
            ResidencyCounts(
                resident_pages(self.heat, self.topology),
                heat_pages(self.heat, self.topology),
                self.heat.stats,
            ),
        )
        self.heat_map.record(record, self.heat)
        return record

    def _node_memory(self, topology: Topology, now_s: float) -> tuple[NodeMemory, ...]:
        del now_s
        return tuple(
            NodeMemory(n.id, n.total_bytes, self.memory.free_bytes(n.id)) for n in topology.nodes
        )

    def _batch(self) -> AccessBatch:
        tick = int(self.now_s)
        pages = [p.pages(tick, self._rng) for p in PROGRAMS]
        process = np.repeat(np.arange(len(PROGRAMS)), [len(p) for p in pages]).astype(np.int32)
        address = np.concatenate(
            [p.base + page * PAGE for p, page in zip(PROGRAMS, pages, strict=True)]
        ).astype(np.uint64)
        return AccessBatch.of(address, process, period=self.sampler.period)
