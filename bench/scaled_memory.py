"""Terabytes of simulated memory in few bytes, behind the protocols of sweep and mover.

Pages lie as their chunk of 2 MiB does, until a move brings single pages elsewhere. Moves are made
at once and cost nothing; one into a node without room raises ``ValueError``.
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from hmd.machine.mappings import MappingAccess, MappingKind, Mappings
from hmd.machine.move_pages import MoveFlags
from hmd.machine.process_id import ProcessId, ProcessStat
from hmd.machine.topology import Node, NodeMemory, Topology
from hmd.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES

BASE = 0x7000_0000_0000
"""Where the memory of each process begins."""

FAST, SLOW = 0, 1
_FIRST_PID = 1000

Addresses = npt.NDArray[np.uint64]


class ScaledMemory:
    """Processes of equal size, with a tenth of their memory on a fast node that has little room.

    Each has ``chunks`` chunks in one mapping, all resident, the first tenth of them on the fast
    node. With ``huge`` every chunk is a huge page.
    """

    def __init__(self, processes: int, chunks: int, *, huge: bool) -> None:
        self.processes = tuple(ProcessId(_FIRST_PID + i, 1) for i in range(processes))
        self.chunks, self.huge = chunks, huge
        self._node = np.full((processes, chunks), SLOW, np.int8)
        self._node[:, : max(chunks // 10, 1)] = FAST
        self._split: dict[tuple[int, int], npt.NDArray[np.int8]] = {}
        pages = processes * chunks * HUGE_PAGE_PAGES
        fast = int(np.count_nonzero(self._node == FAST)) * HUGE_PAGE_PAGES
        self._total = np.array([fast + fast // 16 + HUGE_PAGE_PAGES, 2 * pages], np.int64)
        self._used = np.array([fast, pages - fast], np.int64)

    def topology(self) -> Topology:
        """Return a fast and a slow node."""
        fast, slow = (self._total * PAGE_BYTES).tolist()
        return Topology(
            (
                Node(FAST, (0,), fast, (10, 20), 0, 90),
                Node(SLOW, (), slow, (20, 10), 1, 300),
            )
        )

    def memory(self) -> tuple[NodeMemory, ...]:
        """Return how much of each node is free."""
        free = ((self._total - self._used) * PAGE_BYTES).tolist()
        total = (self._total * PAGE_BYTES).tolist()
        return tuple(NodeMemory(node, total[node], free[node]) for node in (FAST, SLOW))

    def stat(self, pid: int) -> ProcessStat:
        """Return /proc/PID/stat."""
        return ProcessStat(pid, 1, 1, b"program", b"R", 0, 0, 0)

    def mappings(self, pid: int) -> Mappings:
        """Return the only mapping of a process."""
        del pid
        start = np.array([BASE], np.uint64)
        return Mappings(
            start,
            start + np.uint64(self.chunks * HUGE_PAGE_BYTES),
            np.full(1, MappingKind.ANON, np.uint8),
            np.full(1, MappingAccess.READ | MappingAccess.WRITE, np.uint8),
            np.zeros(1, np.bool_),
            np.zeros(1, np.bool_),
            np.zeros(1, np.int64),
            ("",),
        )

    def huge_pages(self, pid: int, mappings: Mappings) -> Addresses:
        """Return the starts of huge pages."""
        del pid, mappings
        count = self.chunks if self.huge else 0
        return np.uint64(BASE) + np.arange(count, dtype=np.uint64) * np.uint64(HUGE_PAGE_BYTES)

    def nodes(self, pid: int, addresses: Addresses) -> npt.NDArray[np.int16]:
        """Return the node of each page, -ENOENT outside the mapping."""
        process = pid - _FIRST_PID
        chunk, page = _places(addresses)
        inside = (chunk >= 0) & (chunk < self.chunks)
        chunk = np.where(inside, chunk, 0)
        found = self._node[process, chunk]
        if self._split:
            begins = np.append(True, chunk[1:] != chunk[:-1])
            for one in chunk[begins].tolist():
                pages = self._split.get((process, one))
                if pages is not None:
                    rows = chunk == one
                    found[rows] = pages[page[rows]]
        return np.where(inside, found, -errno.ENOENT).astype(np.int16)

    query_nodes = nodes

    def move_pages(
        self, pid: int, addresses: Addresses, nodes: npt.NDArray[np.int32], flags: MoveFlags, /
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """Move pages at once; raises ``ValueError`` where the node has no room for them."""
        del flags
        process, target = pid - _FIRST_PID, int(nodes[0])
        chunk, page = _places(addresses)
        order = np.argsort(chunk, kind="stable")
        chunks, first = np.unique(chunk[order], return_index=True)
        for one, pages in zip(chunks.tolist(), np.split(page[order], first[1:]), strict=True):
            self._move(process, one, pages, target)
        if self._used[target] > self._total[target]:
            raise ValueError(f"node {target} has no room for {len(addresses)} pages")
        return 0, nodes.astype(np.int32)

    def _move(self, process: int, chunk: int, pages: npt.NDArray[np.int64], target: int) -> None:
        """Move some pages of a chunk: all of them where it is a huge page."""
        key = (process, chunk)
        now = self._split.get(key)
        if now is None:
            now = np.full(HUGE_PAGE_PAGES, self._node[process, chunk], np.int8)
        moved = np.arange(HUGE_PAGE_PAGES) if self.huge else pages
        self._used -= np.bincount(now[moved], minlength=2)
        self._used[target] += len(moved)
        now[moved] = target
        if (now == target).all():
            self._node[process, chunk] = target
            self._split.pop(key, None)
        else:
            self._split[key] = now


def _places(addresses: Addresses) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return chunk and page within the chunk of each address."""
    page = (addresses.astype(np.int64) - BASE) // PAGE_BYTES
    return page // HUGE_PAGE_PAGES, page % HUGE_PAGE_PAGES
