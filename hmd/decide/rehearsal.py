"""A policy against a program of known heat: samples are drawn, pages move at once and for free.

Takes a policy and a program, gives tick by tick how much of the accesses the fast tier served
and how many pages moved. For tuning and for tests of policies; what moves cost is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.decide.plan import MachineView, Plan, Policy
from hmd.heat.geometry import CHUNK_PAGES
from hmd.heat.heat_settings import HeatSettings
from hmd.heat.heat_table import HeatTable
from hmd.machine.process_id import ProcessId
from hmd.machine.topology import Node, NodeMemory, Topology
from hmd.sample.access_batch import AccessBatch
from hmd.units import PAGE_BYTES

#: Where the rehearsed program's memory begins: an address as mmap gives them.
BASE = 0x7F00_0000_0000
_PROCESS = ProcessId(1000, 1)


@dataclass(frozen=True, slots=True)
class RehearsalTick:
    """What a tick came to: share of accesses on the fastest tier after it, and 4 KiB moved."""

    fast_share: float
    promoted_pages: int
    demoted_pages: int

    @property
    def moved_pages(self) -> int:
        """All 4 KiB pages that were moved."""
        return self.promoted_pages + self.demoted_pages


@dataclass(frozen=True, slots=True)
class Tier:
    """A node of a tier of its own: its size, and what others use of it."""

    total_pages: int
    used_pages: int = 0


class Rehearsal:
    """One program on a machine of one node a tier, under one policy.

    ``weights`` is how often each page of the program is accessed, in any unit, and may be
    replaced between ticks; ``node`` says where each page starts. Every move is checked: from
    where the page is, to a node that has room. ``huge`` chunks move as one. ``latency_ns`` gives
    how long a load waits for each node where the fastest serves this share of all; None: not known.
    """

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
    ) -> None:
        self._latency_ns = latency_ns
        self.heat = HeatTable(heat, latency_ns(0.0) if latency_ns else ())
        self.heat.track([_PROCESS])
        self.weights = weights
        self.node = node.copy()
        self.samples_per_tick = samples_per_tick
        self.budget_bytes = budget_bytes
        self.plan = Plan.empty()
        self.policy = policy
        self._tiers = tiers
        self._random = np.random.default_rng(seed)
        chunks = -(-len(weights) // CHUNK_PAGES)
        starts = BASE + np.arange(chunks, dtype=np.uint64) * np.uint64(CHUNK_PAGES * PAGE_BYTES)
        nodes = np.full(chunks * CHUNK_PAGES, -1, np.int8)
        nodes[: len(node)] = node
        self.heat.place(0, starts, nodes.reshape(chunks, CHUNK_PAGES), huge)

    @property
    def machine(self) -> MachineView:
        """The machine as a policy sees it."""
        nodes = tuple(
            Node(
                i,
                (0,) if i == 0 else (),
                tier.total_pages * PAGE_BYTES,
                tuple(10 + 10 * abs(i - j) for j in range(len(self._tiers))),
                i,
            )
            for i, tier in enumerate(self._tiers)
        )
        memory = tuple(
            NodeMemory(i, tier.total_pages * PAGE_BYTES, self.free_pages(i) * PAGE_BYTES)
            for i, tier in enumerate(self._tiers)
        )
        return MachineView(Topology(nodes), memory, 0.0, 1.0, self.budget_bytes)

    def free_pages(self, node: int) -> int:
        """Return the free 4 KiB pages of a node."""
        tier = self._tiers[node]
        return tier.total_pages - tier.used_pages - int(np.count_nonzero(self.node == node))

    @property
    def fast_share(self) -> float:
        """Share of the program's accesses that go to the fastest tier."""
        return float(self.weights[self.node == 0].sum() / self.weights.sum())

    def sample(self) -> AccessBatch:
        """Draw a tick's samples."""
        n = self.samples_per_tick
        ladder = np.cumsum(self.weights)
        page = np.searchsorted(ladder, self._random.random(n) * ladder[-1], side="right")
        waits = np.zeros(len(self._tiers))
        if self._latency_ns is not None:
            waits[:] = self._latency_ns(self.fast_share)
        address = BASE + page.astype(np.uint64) * np.uint64(PAGE_BYTES)
        return AccessBatch(
            np.zeros(n, np.int32),
            address,
            np.zeros(n, np.uint8),
            np.zeros(n, np.uint16),
            np.zeros(n, np.uint32),
            np.zeros(n, np.uint64),
            waits[self.node[page]].astype(np.uint32),
            np.full(n, 101, np.uint32),
        )

    def tick(self) -> RehearsalTick:
        """Sample, decide and move once."""
        self.heat.update(self.sample())
        self.plan = plan = self.policy.plan(self.heat, self.machine)
        promoted = self._apply(plan)
        self.heat.settle(plan, plan.to_node, np.zeros(len(plan), np.bool_))
        return RehearsalTick(self.fast_share, promoted, int(plan.pages.sum()) - promoted)

    def _apply(self, plan: Plan) -> int:
        """Move pages in order; returns how many 4 KiB went up."""
        free = [self.free_pages(i) for i in range(len(self._tiers))]
        first = ((plan.address - np.uint64(BASE)) // np.uint64(PAGE_BYTES)).tolist()
        promoted = 0
        for page, size, source, target in zip(
            first, plan.pages.tolist(), plan.from_node.tolist(), plan.to_node.tolist(), strict=True
        ):
            pages = self.node[page : page + size]
            if (pages != source).any():
                raise ValueError(f"page {page} is not on node {source}")
            free[source] += size
            free[target] -= size
            if free[target] < 0:
                raise ValueError(f"node {target} is full at page {page}")
            pages[:] = target
            promoted += size if target < source else 0
        return promoted


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
