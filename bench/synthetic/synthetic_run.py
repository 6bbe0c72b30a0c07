# SPDX-License-Identifier: MIT
"""A policy against a program of known heat, over the daemon's tick: page moves take no time.

Takes a policy and a program; gives, tick by tick, the share of accesses that the fast tier served
and how many pages moved. For tests of policies and bench/stages/policy.py. Samples are drawn at
random from the program's access rates. The machine checks every move: the page is where the plan
expects it, and the target node has room.

The memory of a synthetic program: its pages' nodes, behind the protocols of sweep and mover.

Moves are made at once and cost nothing. A move into a node without room raises ``ValueError``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.synthetic.modelled_ticks import modelled_ticks
from hmd.base.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.heat.settings import HeatSettings
from hmd.heat.table import HeatTable
from hmd.linux.mappings import Mappings, anonymous_mappings
from hmd.linux.page_calls import MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.metrics.tick_record import TickRecord
from hmd.migrate import MoverSettings, MoveStatus
from hmd.policy.plan import MachineView, Plan, Policy
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep, SweepSettings
from hmd.sample.access_batch import AccessBatch
from hmd.sample.sampler import CAPABILITIES
from hmd.tick.tick import TickLimits

BASE = 0x7F00_0000_0000
"""Where the program's memory begins: an address as mmap returns them."""

CPU_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""Clock ticks in which the kernel counts CPU time."""

PROCESS = ProcessId(1000, 1)

_TICK_S = 1.0
_ALL_PAGES = SweepSettings(pages_per_step=1 << 40)


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of one node: its size, what others use of it, and its idle latency if known."""

    total_pages: int
    used_pages: int = 0
    latency_ns: int | None = None


class SyntheticMemory:
    """Where the program's pages are: what the sweep and the mover ask of the kernel.

    ``node``, shape ``(pages,)``, is the node of each page; chunks that are ``huge`` move whole.
    ``ranks`` is the rank of the tier of each node; by default each node is a tier.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        node: npt.NDArray[np.int8],
        huge: npt.NDArray[np.bool_] | None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.node = node.copy()
        self._tiers = tiers
        self._ranks = range(len(tiers)) if ranks is None else ranks
        huge = np.zeros(0, np.bool_) if huge is None else huge
        starts = np.flatnonzero(huge).astype(np.uint64) * np.uint64(HUGE_PAGE_BYTES)
        self._huge = np.uint64(BASE) + starts
        self._ran_s = 0.0

    def run(self, seconds: float) -> None:
        """Let the program run, which takes a CPU's time."""
        self._ran_s += seconds

    def topology(self) -> Topology:
        """Return the nodes, each as far from the next."""
        count = len(self._tiers)
        return Topology(
            tuple(
                Node(
                    number,
                    (0,) if number == 0 else (),
                    tier.total_pages * PAGE_BYTES,
                    tuple(10 + 10 * abs(number - other) for other in range(count)),
                    self._ranks[number],
                    tier.latency_ns,
                )
                for number, tier in enumerate(self._tiers)
            )
        )

    def memory(self) -> tuple[NodeMemory, ...]:
        """Return how much of each node is free."""
        return tuple(
            NodeMemory(number, tier.total_pages * PAGE_BYTES, self.free_pages(number) * PAGE_BYTES)
            for number, tier in enumerate(self._tiers)
        )

    def free_pages(self, node: int) -> int:
        """Return the free 4 KiB pages of a node."""
        tier = self._tiers[node]
        return tier.total_pages - tier.used_pages - int(np.count_nonzero(self.node == node))

    def stat(self, pid: int) -> ProcessStat:
        """Return /proc/PID/stat."""
        ticks = int(self._ran_s * CPU_TICKS_PER_S)
        return ProcessStat(pid, PROCESS.start_ticks, 1, b"program", b"R", 0, ticks, 0)

    def mappings(self, pid: int) -> Mappings:
        """Return the program's only mapping."""
        del pid
        start = np.array([BASE], np.uint64)
        return anonymous_mappings(start, start + np.uint64(len(self.node) * PAGE_BYTES))

    def huge_pages(self, pid: int, mappings: Mappings) -> npt.NDArray[np.uint64]:
        """Return the starts of huge pages."""
        del pid, mappings
        return self._huge

    def nodes(self, pid: int, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int16]:
        """Return the node of each page, -ENOENT beyond the mapping."""
        del pid
        page = page_number(addresses)
        there = (page >= 0) & (page < len(self.node))
        found = self.node[np.where(there, page, 0)]
        return np.where(there, found, -errno.ENOENT).astype(np.int16)

    query_nodes = nodes

    def move_pages(
        self,
        pid: int,
        addresses: npt.NDArray[np.uint64],
        nodes: npt.NDArray[np.int32],
        flags: MoveFlags,
        /,
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """Move pages at once; raises ``ValueError`` where the node has no room for them."""
        del pid, flags
        target = int(nodes[0])
        for address, page in zip(addresses, page_number(addresses).tolist(), strict=True):
            self.node[page : page + (HUGE_PAGE_PAGES if address in self._huge else 1)] = target
        if self.free_pages(target) < 0:
            raise ValueError(f"node {target} has no room for {len(addresses)} pages")
        return 0, nodes.astype(np.int32)


def page_number(addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the program's page at each address."""
    return (addresses.astype(np.int64) - BASE) // PAGE_BYTES


@dataclass(frozen=True, slots=True)
class SyntheticTick:
    """A tick: share of accesses on the fastest tier after it, and 4 KiB pages that moved."""

    fast_share: float
    promoted_pages: int
    demoted_pages: int

    @property
    def moved_pages(self) -> int:
        """All 4 KiB pages that moved."""
        return self.promoted_pages + self.demoted_pages


class SyntheticRun:
    """One program on a machine of one node per tier, or with tiers of ``ranks``, under one policy.

    ``weights``, shape ``(pages,)``, is how often each page is accessed, in any unit, and may be
    replaced between ticks; ``node`` says where each page starts. Chunks that are ``huge`` move
    whole. ``latency_ns`` gives how long a load waits for each node where the fastest serves this
    share of all; None: not known. ``record`` is that of the last tick.
    """

    name = "synthetic"
    capabilities = CAPABILITIES["pmu"]
    period = 101

    def __init__(
        self,
        policy: Policy,
        tiers: tuple[Tier, ...],
        weights: npt.NDArray[np.float64],
        node: npt.NDArray[np.int8],
        *,
        samples_per_tick: int,
        huge: npt.NDArray[np.bool_] | None = None,
        heat: HeatSettings | None = None,
        budget_bytes: int = 1 << 40,
        seed: int = 1,
        latency_ns: Callable[[float], Sequence[float]] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.weights = weights
        self.samples_per_tick = samples_per_tick
        self.policy = policy
        self.record: TickRecord | None = None
        self._latency_ns = latency_ns
        self._random = np.random.default_rng(seed)
        self._now_s = 0.0
        self._memory = memory = SyntheticMemory(tiers, node, huge, ranks)
        table = HeatTable(heat, latency_ns(0.0) if latency_ns else ())
        table.track_processes([PROCESS])
        self.ticks = modelled_ticks(
            memory,
            self,
            table,
            ResidencySweep(_ALL_PAGES, ModelledMemory(memory), clock=lambda: 0.0),
            policy,
            # A bucket that holds one tick's budget and is full at each.
            MoverSettings(rate_bytes_per_s=budget_bytes, burst_s=_TICK_S),
            target=self.name,
            clock=lambda: self._now_s,  # stands still while pages move
        )
        self.ticks.state.sweep.step(table)

    @property
    def heat(self) -> HeatTable:
        """The heat table."""
        return self.ticks.state.heat

    @property
    def node(self) -> npt.NDArray[np.int8]:
        """The node of each page, shape ``(pages,)``."""
        return self._memory.node

    @property
    def plan(self) -> Plan:
        """The plan of the last tick."""
        return self.record.plan if self.record else Plan.empty()

    @property
    def machine(self) -> MachineView:
        """The machine as a policy sees it now."""
        budget = self.ticks.state.mover.plan_bytes(self._now_s)
        memory = self._memory.memory()
        return MachineView(self.ticks.inputs.machine.topology, memory, self._now_s, _TICK_S, budget)

    def free_pages(self, node: int) -> int:
        """Return the free 4 KiB pages of a node."""
        return self._memory.free_pages(node)

    @property
    def fast_share(self) -> float:
        """Share of the program's accesses that go to the fastest tier."""
        return float(self.weights[self.node == 0].sum() / self.weights.sum())

    def set_period(self, period: int) -> int:
        """Ignore the request: the number of samples is fixed."""
        return self.period

    def read(self) -> AccessBatch:
        """Draw a tick's samples."""
        n = self.samples_per_tick
        ladder = np.cumsum(self.weights)
        page = np.searchsorted(ladder, self._random.random(n) * ladder[-1], side="right")
        waits = np.zeros(len(self.ticks.inputs.machine.topology.nodes))
        if self._latency_ns is not None:
            waits[:] = self._latency_ns(self.fast_share)
        address = BASE + page.astype(np.uint64) * np.uint64(PAGE_BYTES)
        return AccessBatch.of(
            address, latency_ns=waits[self.node[page]].astype(np.uint32), period=self.period
        )

    def tick(self) -> SyntheticTick:
        """Run one tick; raises ``ValueError`` where a planned move could not be made."""
        before = self.node.copy()
        self._now_s += _TICK_S
        self._memory.run(_TICK_S)
        self.record = record = self.ticks.tick(self._now_s, TickLimits(_TICK_S))
        if record.outcome is None:
            return SyntheticTick(self.fast_share, 0, 0)
        _check_sources(record.plan, before)
        if (record.outcome.status != MoveStatus.MOVED).any():
            raise ValueError(f"pages could not be moved: {record.outcome.pages}")
        moved = record.outcome.moved
        up = sum(pages for (source, target), pages in moved.items() if target < source)
        return SyntheticTick(self.fast_share, up, sum(moved.values()) - up)


def hot_blocks(
    pages: int, hot_pages: int, block_pages: int, seed: int, hot_share: float = 0.9
) -> npt.NDArray[np.float64]:
    """Return weights: ``hot_share`` of accesses to random blocks, the rest over all pages."""
    blocks = pages // block_pages
    hot = np.random.default_rng(seed).permutation(blocks)[: hot_pages // block_pages]
    weights = np.full(pages, (1 - hot_share) / pages)
    for block in hot.tolist():
        weights[block * block_pages : (block + 1) * block_pages] += hot_share / hot_pages
    return weights


def _check_sources(plan: Plan, node: npt.NDArray[np.int8]) -> None:
    """Raise ``ValueError`` where a plan expects a page elsewhere than on its ``node``."""
    first = page_number(plan.address)
    last = first + plan.pages.astype(np.int64) - 1
    wrong = (node[first] != plan.from_node) | (node[last] != plan.from_node)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"page {first[row]} is not on node {plan.from_node[row]}")
