"""Memory nodes and tiers as plain records.

``Topology`` is fixed at start (nodes, CPUs, distances, speeds, tiers); ``NodeMemory`` is what
changes from tick to tick. Tier 0 is the fastest.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

_DRAM_NS = 90.0


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node. Speeds are HMAT figures, None where firmware gives none.

    ``distances`` are SLIT distances (10 is local) to the nodes of the topology, in its order.
    """

    id: int
    cpus: tuple[int, ...]
    total_bytes: int
    distances: tuple[int, ...]
    tier: int
    read_latency_ns: int | None = None
    write_latency_ns: int | None = None
    read_bandwidth_mbps: int | None = None
    write_bandwidth_mbps: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes with memory, by id; ``tier_source`` names the source of the ranking."""

    nodes: tuple[Node, ...]
    tier_source: str = "sysfs"

    @property
    def tiers(self) -> tuple[tuple[int, ...], ...]:
        """Node ids of each tier, fastest tier first."""
        ranks = sorted({node.tier for node in self.nodes})
        return tuple(tuple(n.id for n in self.nodes if n.tier == rank) for rank in ranks)

    @property
    def latency_ns(self) -> tuple[float, ...]:
        """Read latency of each node by id: the firmware's figure, or that of DRAM without one.

        HBM has the latency of DRAM: it is faster by bandwidth.
        """
        known = {node.id: float(node.read_latency_ns or _DRAM_NS) for node in self.nodes}
        return tuple(known.get(node, _DRAM_NS) for node in range(max(known, default=-1) + 1))

    def without(self, gone: Container[int]) -> Topology:
        """Return the topology without these nodes; tiers that become empty are removed."""
        kept = [node.id not in gone for node in self.nodes]
        return replace(
            self,
            nodes=tuple(
                replace(
                    node,
                    distances=tuple(d for d, k in zip(node.distances, kept, strict=False) if k),
                )
                for node, keep in zip(self.nodes, kept, strict=True)
                if keep
            ),
        )

    @property
    def one_tier(self) -> bool:
        """True where all nodes are in one tier."""
        return len(self.tiers) < 2


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Memory of a node now, in bytes (/sys/devices/system/node/nodeN/meminfo).

    ``reserve_bytes`` of the free memory are the kernel's own
    (:mod:`hmd.machine.nodes.zone_reserves`). ``cache_bytes`` of page cache the kernel gives up for
    moves (:mod:`hmd.machine.nodes.page_cache`).
    """

    node: int
    total_bytes: int
    free_bytes: int
    reserve_bytes: int = 0
    cache_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """Bytes that moves to the node can fill; below 0 where the reserve is not free."""
        return self.free_bytes - self.reserve_bytes + self.cache_bytes


@dataclass(frozen=True, slots=True)
class NodeUse:
    """Use of a node's memory now, in bytes (/sys/devices/system/node/nodeN/meminfo).

    ``program_bytes`` are anonymous and mapped pages, ``cache_bytes`` pages of files and shared
    memory that no process maps, ``locked_bytes`` the locked part of both, ``kernel_bytes`` slabs,
    stacks and page tables. They do not add up to ``used_bytes``: the kernel counts no more by node.
    """

    total_bytes: int
    used_bytes: int
    program_bytes: int
    cache_bytes: int
    locked_bytes: int
    kernel_bytes: int
    hugetlb_pages: int
