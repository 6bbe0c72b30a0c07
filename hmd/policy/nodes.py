# SPDX-License-Identifier: MIT
"""The machine at one tick as arrays by node, and the wait for accesses by process.

Every policy starts from :func:`nodes_of`, in a few microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Float32s, Float64s, Int8s, Int32s, Uint16s, kernel
from hmd.base.units import PAGE_BYTES
from hmd.heat.counting import run_end
from hmd.policy.plan import FastLimits, MachineView

if TYPE_CHECKING:
    from hmd.heat.view import PageView

UNKNOWN_SHARE: Final = 0.02
"""Share of a node that stays free where it is not known what programs allocate."""
MAX_ALLOCATION_SHARE: Final = 1 / 8
"""The most of the fastest tier that stays free for allocations."""

# Multipliers of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", OOPSLA 2014).
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machine as arrays by node id; ids without memory have tier -1.

    ``room`` is the number of pages that a node can take beyond its ``headroom``, below 0 where that
    is not free. ``near``, shape ``(nodes, nodes)``, has for each node all nodes, nearest first.
    ``tier_bytes`` is the memory of each tier, ``limits`` how it is shared, ``tick_s`` the length of
    a tick.
    """

    tier: npt.NDArray[np.int64]
    room: npt.NDArray[np.int64]
    headroom: npt.NDArray[np.int64]
    near: npt.NDArray[np.int64]
    tiers: int
    tier_bytes: Sequence[int] = (0,)
    limits: FastLimits | None = None
    tick_s: float = 1.0

    @property
    def fast_bytes(self) -> int:
        """The memory of the fastest tier."""
        return self.tier_bytes[0]

    def by_tier(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sums of a column of nodes over each tier."""
        return np.array([values[self.tier == tier].sum() for tier in range(self.tiers)], np.int64)

    def tier_sums(self, values: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
        """Return the sums over each tier of a column of nodes, which may end before the last."""
        tier = self.tier[: len(values)]
        known = tier >= 0
        return np.bincount(tier[known], values[known], self.tiers).astype(np.float64)

    def can_move(self, pages: PageView, machine: MachineView) -> bool:
        """Return whether any move is possible: two tiers, pages, and budget for one."""
        return self.tiers >= 2 and machine.budget_bytes >= PAGE_BYTES and len(pages) > 0

    @property
    def relieve(self) -> npt.NDArray[np.bool_]:
        """Whether less than half of a tier's headroom is free, per tier."""
        return self.by_tier(self.room) < -self.by_tier(self.headroom) / 2


def nodes_of(machine: MachineView, headroom_fraction: float | None, headroom_bytes: int) -> Nodes:
    """Return the machine's nodes as arrays.

    ``headroom_fraction`` of a node's memory, and at least ``headroom_bytes``, stays free on every
    tier but the last, which keeps ``headroom_bytes``. Where it is None, the fastest tier keeps free
    what programs are expected to allocate, at most ``MAX_ALLOCATION_SHARE`` of it.
    """
    topology = machine.topology
    ranks = sorted({node.tier for node in topology.nodes})
    size = max((node.id for node in topology.nodes), default=-1) + 1
    tier = np.full(size, -1, np.int64)
    room, headroom = np.zeros(size, np.int64), np.zeros(size, np.int64)
    distance = np.full((size, size), np.iinfo(np.int64).max)
    for node in topology.nodes:
        tier[node.id] = ranks.index(node.tier)
        for other, hops in zip(topology.nodes, node.distances, strict=False):
            distance[node.id, other.id] = hops
    known = [m for m in machine.memory if m.node < size and tier[m.node] >= 0]
    sizes = [0] * max(len(ranks), 1)
    for memory in known:
        sizes[tier[memory.node]] += memory.total_bytes
    fast = sizes[0]
    for memory in known:
        keep = headroom_bytes
        if tier[memory.node] < len(ranks) - 1:
            share = UNKNOWN_SHARE if headroom_fraction is None else headroom_fraction
            expected = machine.allocation_bytes
            if headroom_fraction is None and expected is not None and tier[memory.node] == 0:
                share = min(expected / fast, MAX_ALLOCATION_SHARE) if fast else UNKNOWN_SHARE
            keep = max(keep, int(share * memory.total_bytes))
        headroom[memory.node] = keep // PAGE_BYTES
        room[memory.node] = (memory.room_bytes - keep) // PAGE_BYTES
    near = np.argsort(distance, axis=1, kind="stable").astype(np.int64)
    return Nodes(tier, room, headroom, near, len(ranks), sizes, machine.limits, machine.tick_s)


def hashed(address: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return a number from 0 to 1 per page, by its address alone: pages are spread by it."""
    x = address // np.uint64(PAGE_BYTES)
    x = (x ^ x >> np.uint64(30)) * _MIX_1
    x = (x ^ x >> np.uint64(27)) * _MIX_2
    return (x ^ x >> np.uint64(31)).astype(np.float64) / 2.0**64


@kernel
def add_waits(
    process: Int32s, size: Uint16s, rate: Float32s, wait_ns: Float64s, node: Int8s, sums: Float64s
) -> None:
    """Add accesses per second times ``wait_ns`` of their node to ``sums`` by process."""
    begin = 0
    while begin < len(process):
        end, total = run_end(process, begin, len(process)), 0.0
        for row in range(begin, end):
            on = node[row]
            if 0 <= on < len(wait_ns):
                total += np.float64(rate[row]) * wait_ns[on] * size[row]
        sums[process[begin]] += total
        begin = end
