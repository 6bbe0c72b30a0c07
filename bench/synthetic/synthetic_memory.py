"""The memory of a synthetic program: its pages' nodes, behind the protocols of sweep and mover.

Moves are made at once and cost nothing. A move into a node without room raises ``ValueError``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.machine.nodes.topology import Node, NodeMemory, Topology
from hmd.machine.pages.mappings import MappingAccess, MappingKind, Mappings
from hmd.machine.pages.move_pages import MoveFlags
from hmd.machine.process_id import ProcessId, ProcessStat
from hmd.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES

BASE = 0x7F00_0000_0000
"""Where the program's memory begins: an address as mmap returns them."""

CPU_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""Clock ticks in which the kernel counts CPU time."""

PROCESS = ProcessId(1000, 1)


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
        return Mappings(
            start,
            start + np.uint64(len(self.node) * PAGE_BYTES),
            np.full(1, MappingKind.ANON, np.uint8),
            np.full(1, MappingAccess.READ | MappingAccess.WRITE, np.uint8),
            np.zeros(1, np.bool_),
            np.zeros(1, np.bool_),
            np.zeros(1, np.int64),
            ("",),
        )

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
