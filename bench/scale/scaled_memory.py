# SPDX-License-Identifier: MIT
"""Terabytes of simulated memory in few bytes, behind the protocols of sweep and mover.

Pages lie as their chunk of 2 MiB does, until a move brings single pages elsewhere: such a chunk has
a bit per page. Moves are made at once and cost nothing; one into a node without room raises
``ValueError``.

Samples of programs of any size: their pages are computed, not stored.

Pages are drawn over all processes together. ``zipf`` gives the page of rank r a weight of
r ** -0.99, and spreads ranks over memory; ``contiguous`` and ``scattered`` give 90 % of samples to
a tenth of the pages, which lie together or anywhere, ``sparse`` to one page in 1024, anywhere, and
``gibibyte`` to 1 GiB that lies together, however much memory there is.
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from bench.synthetic.synthetic_run import CPU_TICKS_PER_S
from hmd.base.units import GIB, HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.mappings import Mappings, anonymous_mappings
from hmd.linux.page_calls import MoveFlags
from hmd.linux.procfs import ProcessId, ProcessStat
from hmd.linux.topology import Node, NodeMemory, Topology
from hmd.sample.access_batch import AccessBatch
from hmd.sample.sampler import CAPABILITIES

BASE = 0x7000_0000_0000
"""Where the memory of each process begins."""

FAST, SLOW = 0, 1
CPUS = 4.0
"""As many as wait for 10 million misses of the slow node per second, one after another."""
_FIRST_PID = 1000
# Chunks whose pages are recorded at a time.
_PLACED_CHUNKS = 2048

Addresses = npt.NDArray[np.uint64]

PATTERNS = ("zipf", "contiguous", "scattered")
PERIOD = 101
_EXPONENT = 0.99
_HOT_SHARE = 0.9
_HOT_PAGES = {"contiguous": 0.1, "scattered": 0.1, "sparse": 1 / 1024}

# An odd multiplier permutes the numbers below a power of two (Knuth, TAOCP 2, 3.2.1.2).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class ScaledMemory:
    """Processes of equal size, with part of their memory on a fast node that has little room.

    Each has ``chunks`` chunks in one mapping, all resident, the first ``fast`` of them, by default
    a tenth, on the fast node. With ``huge`` every chunk is a huge page. Together they keep ``CPUS``
    CPUs busy while :meth:`run` has them run.
    """

    def __init__(self, processes: int, chunks: int, *, huge: bool, fast: int | None = None) -> None:
        self.processes = tuple(ProcessId(_FIRST_PID + i, 1) for i in range(processes))
        self.chunks, self.huge = chunks, huge
        self._node = np.full((processes, chunks), SLOW, np.int8)
        self._node[:, : max(chunks // 10, 1) if fast is None else fast] = FAST
        # The row of bits of each chunk, 0 of those without: bits of pages that lie elsewhere.
        self._row = np.zeros((processes, chunks), np.int32)
        self._bits = np.zeros((1, HUGE_PAGE_PAGES // 8), np.uint8)
        self._free = np.empty(0, np.int32)
        pages = processes * chunks * HUGE_PAGE_PAGES
        fast = int(np.count_nonzero(self._node == FAST)) * HUGE_PAGE_PAGES
        self._total = np.array([fast + fast // 16 + HUGE_PAGE_PAGES, 2 * pages], np.int64)
        self._used = np.array([fast, pages - fast], np.int64)
        self._ran_s = 0.0

    def run(self, seconds: float) -> None:
        """Let the processes run, which takes CPU time."""
        self._ran_s += seconds

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
        ticks = int(self._ran_s * CPUS / len(self.processes) * CPU_TICKS_PER_S)
        return ProcessStat(pid, 1, 1, b"program", b"R", 0, ticks, 0)

    def place_all(self, heat: HeatTable) -> None:
        """Record all pages in a table that tracks the processes, as a whole sweep would."""
        starts = np.uint64(BASE) + np.arange(self.chunks, dtype=np.uint64) * np.uint64(
            HUGE_PAGE_BYTES
        )
        for slot in range(len(self.processes)):
            for begin in range(0, self.chunks, _PLACED_CHUNKS):
                some = slice(begin, begin + _PLACED_CHUNKS)
                node = np.repeat(self._node[slot, some, None], HUGE_PAGE_PAGES, axis=1)
                heat.record_nodes(slot, starts[some], node, np.full(len(node), self.huge))

    def mappings(self, pid: int) -> Mappings:
        """Return the only mapping of a process."""
        del pid
        start = np.array([BASE], np.uint64)
        return anonymous_mappings(start, start + np.uint64(self.chunks * HUGE_PAGE_BYTES))

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
        if len(self._bits) > 1:
            some = np.flatnonzero(self._row[process, chunk])
            page = page[some]
            byte = self._bits[self._row[process, chunk[some]], page // 8]
            found[some] ^= (byte >> (page % 8).astype(np.uint8) & 1).astype(np.int8)
        return np.where(inside, found, -errno.ENOENT).astype(np.int16)

    query_nodes = nodes

    def move_pages(
        self, pid: int, addresses: Addresses, nodes: npt.NDArray[np.int32], flags: MoveFlags, /
    ) -> tuple[int, npt.NDArray[np.int32]]:
        """Move pages at once; raises ``ValueError`` where the node has no room for them."""
        del flags
        process, target = pid - _FIRST_PID, int(nodes[0])
        chunk, page = _places(addresses)
        chunks = np.unique(chunk)
        if self.huge:
            moved = chunks[self._node[process, chunks] != target]
            self._count(len(moved) * HUGE_PAGE_PAGES, target)
            self._node[process, moved] = target
            return 0, nodes.astype(np.int32)
        moved = ScaledMemory.nodes(self, pid, addresses) != target
        self._count(int(np.count_nonzero(moved)), target)
        self._give_bits(process, chunks)
        row, page = self._row[process, chunk[moved]], page[moved]
        np.bitwise_xor.at(self._bits, (row, page // 8), (1 << (page % 8)).astype(np.uint8))
        self._take_bits(process, chunks)
        return 0, nodes.astype(np.int32)

    def _count(self, pages: int, target: int) -> None:
        """Count pages that move to ``target`` from the other node."""
        self._used[target] += pages
        self._used[1 - target] -= pages
        if self._used[target] > self._total[target]:
            raise ValueError(f"node {target} has no room for {pages} pages")

    def _give_bits(self, process: int, chunks: npt.NDArray[np.int64]) -> None:
        """Give rows of bits to chunks that have none."""
        bare = chunks[self._row[process, chunks] == 0]
        if len(bare) > len(self._free):
            before = len(self._bits)
            more = max(before // 4, len(bare))
            self._bits = np.concatenate([self._bits, np.zeros((more, 64), np.uint8)])
            self._free = np.append(self._free, np.arange(before, before + more, dtype=np.int32))
        self._row[process, bare] = self._free[: len(bare)]
        self._free = self._free[len(bare) :]

    def _take_bits(self, process: int, chunks: npt.NDArray[np.int64]) -> None:
        """Take the rows of bits of chunks whose pages all lie on one node."""
        rows = self._row[process, chunks]
        every, none = ((self._bits[rows] == byte).all(axis=1) for byte in (255, 0))
        self._node[process, chunks[every]] ^= 1
        alike = every | none
        self._bits[rows[alike]] = 0
        self._row[process, chunks[alike]] = 0
        self._free = np.append(self._free, rows[alike])


def _places(addresses: Addresses) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return chunk and page within the chunk of each address."""
    page = (addresses.astype(np.int64) - BASE) // PAGE_BYTES
    return page // HUGE_PAGE_PAGES, page % HUGE_PAGE_PAGES


class ScaledSamples:
    """A source of ``count`` samples a tick over ``pages`` pages in all, of equal processes.

    ``pages`` is a power of two times the number of ``processes``. Every hot page lies ``shift`` of
    all memory further than at the start.
    """

    capabilities = CAPABILITIES["pmu"]
    period: int = PERIOD

    def __init__(self, pattern: str, processes: int, pages: int, count: int, seed: int = 1) -> None:
        self.count, self.shift = count, 0.0
        self._pattern, self._pages = pattern, pages
        self._each = pages // processes
        self._random = np.random.default_rng(seed)

    def set_period(self, period: int) -> int:
        """Ignore the request: the number of samples is fixed."""
        return self.period

    def read(self) -> AccessBatch:
        """Draw a tick's samples."""
        n = self.count
        page = (self._drawn(n) + int(self.shift * self._pages)) % self._pages
        within = (page % self._each).astype(np.uint64)
        return AccessBatch.of(
            np.uint64(BASE) + within * np.uint64(PAGE_BYTES),
            (page // self._each).astype(np.int32),
            period=PERIOD,
        )

    def hottest(self, share: float) -> float:
        """Return the share of accesses that this share of pages has, the hottest ones."""
        if self._pattern == "zipf":
            rest = 1.0 - _EXPONENT
            return float(((share * self._pages) ** rest - 1.0) / (self._pages**rest - 1.0))
        hot = self._hot / self._pages
        return _HOT_SHARE * min(share / hot, 1.0) + (1.0 - _HOT_SHARE) * share

    def hot_addresses(self) -> npt.NDArray[np.uint64]:
        """Return the hot pages of one process where they lie together, from the first on."""
        page = self._pages // 2 + int(self.shift * self._pages) + np.arange(self._hot)
        return np.uint64(BASE) + (page % self._pages).astype(np.uint64) * np.uint64(PAGE_BYTES)

    @property
    def _hot(self) -> int:
        """The number of hot pages."""
        if self._pattern == "gibibyte":
            return GIB // PAGE_BYTES
        return int(self._pages * _HOT_PAGES[self._pattern])

    def _drawn(self, n: int) -> npt.NDArray[np.int64]:
        if self._pattern == "zipf":
            # The inverse of the continuous distribution.
            rest = 1.0 - _EXPONENT
            end = float(self._pages) ** rest
            rank = (1.0 + self._random.random(n) * (end - 1.0)) ** (1.0 / rest)
            return self._spread(np.minimum(rank, self._pages).astype(np.int64) - 1)
        page = self._random.integers(0, self._pages, n)
        hot = self._random.random(n) < _HOT_SHARE
        page[hot] = self._random.integers(0, self._hot, int(hot.sum()))
        if self._pattern in ("contiguous", "gibibyte"):
            # In the middle of memory, none of it on the fast node.
            return (page + self._pages // 2) % self._pages
        return self._spread(page)

    def _spread(self, rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the page of each rank, anywhere in memory; no two of the same."""
        wide = np.uint64((1 << int(self._pages - 1).bit_length()) - 1)
        spread = (rank.astype(np.uint64) * _SPREAD) & wide
        return (spread % np.uint64(self._pages)).astype(np.int64)
