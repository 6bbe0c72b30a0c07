# SPDX-License-Identifier: MIT
"""Room for programs' allocations: unread page cache leaves the faster nodes ahead of need.

A program's pages begin on the faster node only where that has free memory (first touch), and memory
of a busy machine is full of page cache, most of which is not read again. Where a node has less free
memory than the headroom, a kdamond demotes its unused page cache to the nearest slower node, until
the headroom is free or no page cache is left. move_pages(2) cannot do that, since no process maps
the cache; memory.reclaim in cgroups has no node to choose before Linux 6.17. A call of ``update``
costs some 50 µs per faster node.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.base.errors import MissingError
from hmd.linux.damon import NOTE, CacheKdamond, CacheWatch, DamonClaim, Kdamonds
from hmd.linux.procfs import PROC, SYSFS
from hmd.linux.topology import Node, Topology, physical_ranges, read_node_use

MIN_CACHE_SHARE: Final = 1 / 1024
"""Share of a node below which its page cache is not worth a kdamond."""
EXTRA_SHARE: Final = 1 / 64
"""Share of a node that is freed beyond the headroom, so that no kdamond starts again soon."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """``headroom`` is the share of each faster node to keep free; ``watch`` what to demote."""

    headroom: float
    watch: CacheWatch


@dataclass(frozen=True, slots=True)
class _Route:
    """A faster node with the addresses of its memory, and the slower node for its page cache."""

    node: int
    to_node: int
    ranges: tuple[tuple[int, int], ...]
    kdamond: CacheKdamond


class CacheDemotion:
    """Runs a kdamond per faster node; owns DAMON, or raises MissingError where it is not free."""

    def __init__(
        self,
        settings: CacheSettings,
        topology: Topology,
        proc: Path = PROC,
        sysfs: Path = SYSFS,
        note: Path = NOTE,
        kdamonds: Kdamonds | None = None,
    ) -> None:
        self._settings, self._sysfs = settings, sysfs
        kdamonds = kdamonds or Kdamonds(sysfs)
        pairs = [
            (node.id, to_node, physical_ranges(node.id, sysfs))
            for node in topology.nodes
            if (to_node := nearest_slower(topology, node)) is not None
        ]
        unknown = [str(node) for node, _, ranges in pairs if not ranges]
        if unknown:
            raise MissingError(
                f"the addresses of node {', '.join(unknown)} are not known: "
                "use a kernel with CONFIG_MEMORY_HOTPLUG"
            )
        self._claim = DamonClaim(kdamonds, note, proc, len(pairs))
        self._routes = [
            _Route(node, to_node, ranges, CacheKdamond(kdamonds, index, proc))
            for index, (node, to_node, ranges) in enumerate(pairs)
        ]

    @property
    def active(self) -> frozenset[int]:
        """Nodes whose unused page cache is being demoted."""
        return frozenset(route.node for route in self._routes if route.kdamond.running)

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads so far, in seconds."""
        return sum(route.kdamond.cpu_s for route in self._routes)

    def update(self, *, paused: bool = False) -> None:
        """Start and stop kdamonds by free memory; none runs if ``paused``. Raises DamonError."""
        for route in self._routes:
            running = route.kdamond.running
            wanted = not paused and self._short(route.node, running=running)
            if wanted and not running:
                route.kdamond.start(route.ranges, route.to_node, self._settings.watch)
            elif running and not wanted:
                route.kdamond.stop()

    def close(self) -> None:
        """Stop all and give DAMON back; raises DamonError."""
        with ExitStack() as undo:
            undo.callback(self._claim.release)
            for route in self._routes:
                undo.callback(route.kdamond.stop)

    def _short(self, node: int, *, running: bool) -> bool:
        """Return whether a node lacks headroom that its page cache may give."""
        use = read_node_use(node, self._sysfs)
        wanted = self._settings.headroom + (EXTRA_SHARE if running else 0.0)
        free_bytes = use.total_bytes - use.used_bytes
        cached = use.cache_bytes > MIN_CACHE_SHARE * use.total_bytes
        return cached and free_bytes < wanted * use.total_bytes


def nearest_slower(topology: Topology, node: Node) -> int | None:
    """Return the nearest node of the next slower tier, None for a node of the slowest."""
    distance = dict(zip((other.id for other in topology.nodes), node.distances, strict=True))
    slower = [other for other in topology.nodes if other.tier > node.tier]
    nearest = min(slower, key=lambda n: (n.tier, distance[n.id], n.id), default=None)
    return None if nearest is None else nearest.id
