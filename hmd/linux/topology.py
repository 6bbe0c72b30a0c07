# SPDX-License-Identifier: MIT
"""Memory nodes, their speed and their tiers, read from sysfs.

``Topology`` is fixed at start; ``NodeMemory`` is what changes from tick to tick (about 20 µs per
node). Tier 0 is the fastest. The ranking comes from the first of: the configuration, the kernel's
memory tiers, HMAT figures, and the guess that a node without CPUs is slower. :class:`CpuWatch` and
:class:`NodeWatch` see CPUs and memory that come and go, by a small read of sysfs (10 µs).
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from hmd.base.errors import ConfigError, MissingError
from hmd.linux.node_memory import parse_meminfo, reclaimable_bytes
from hmd.linux.procfs import SYSFS, format_ids, parse_ids, read_bytes, read_int, read_text

_DRAM_NS = 90.0

# mm/memory-tiers.c, include/linux/memory-tiers.h: DRAM has abstract distance 4.5 chunks of 128,
# and a tier is one chunk, so that memory within about 12 % of DRAM shares its tier.
_CHUNK = 128

_DRAM_DISTANCE = 4 * _CHUNK + _CHUNK // 2
_TIER_NAME = re.compile(r"memory_tier(\d+)", re.ASCII)
_NODE_NAME = re.compile(r"node(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node: HMAT speeds if known, SLIT distances to the nodes of the topology in order."""

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
        """Read latency of each node by id: the firmware's, or else that of DRAM, as HBM has."""
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

    ``reserve_bytes`` of the free memory are the kernel's own, ``cache_bytes`` of page cache the
    kernel gives up for moves (:mod:`hmd.linux.node_memory`).
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
    stacks and page tables, ``pool_bytes`` the pools of huge pages, used or not. They do not add up
    to ``used_bytes``: the kernel counts no more by node.
    """

    total_bytes: int
    used_bytes: int
    program_bytes: int
    cache_bytes: int
    locked_bytes: int
    kernel_bytes: int
    hugetlb_pages: int
    pool_bytes: int = 0


_MAX_LATENCY_NS: Final = 100_000
"""Above what far memory has by two orders: firmware has written 4 seconds for DRAM."""


class TierSource(StrEnum):
    """The source of the ranking (``Topology.tier_source``)."""

    CONFIGURATION = "configuration"
    KERNEL = "kernel memory tiers"
    HMAT = "HMAT figures"
    GUESS = "guess: nodes without CPUs are slower"


def rank_nodes(
    nodes: Sequence[Node], sysfs: Path, override: Sequence[Sequence[int]] | None = None
) -> tuple[dict[int, int], TierSource]:
    """Return the tier of each node id, and the source of the ranking.

    ``override`` is the configuration's ``tiers:``, lists of node ids, fastest first.
    Raises ConfigError where it leaves a node out or names one without memory.
    """
    if override and (problem := override_problem(override, [n.id for n in nodes])):
        raise ConfigError(problem)
    source = TierSource.CONFIGURATION if override else TierSource.KERNEL
    if tiers := override or kernel_tiers(sysfs):
        named = {node: tier for tier, members in enumerate(tiers) for node in members}
        # A node that has just come online may be in no tier yet: never count it as fast.
        return _dense({n.id: named.get(n.id, len(tiers)) for n in nodes}), source
    distances = abstract_distances(nodes)
    if distances:
        return _dense({node: d // _CHUNK for node, d in distances.items()}), TierSource.HMAT
    return _dense({n.id: 0 if n.cpus else 1 for n in nodes}), TierSource.GUESS


def fitting(override: Sequence[Sequence[int]], nodes: Sequence[int]) -> list[list[int]]:
    """Return an override reduced to the nodes with memory.

    Nodes that it does not name form one more tier: none counts as fast unless it is configured so.
    """
    named = {node for tier in override for node in tier}
    tiers = [[node for node in tier if node in nodes] for tier in override]
    tiers.append([node for node in nodes if node not in named])
    return [tier for tier in tiers if tier]


def override_problem(override: Sequence[Sequence[int]], nodes: Sequence[int]) -> str | None:
    """Return how an override contradicts the nodes with memory, None where it fits them."""
    named = [node for tier in override for node in tier]
    for node in named:
        if node not in nodes:
            return (
                f"tiers: node {node} has no memory here; nodes with memory are"
                f" {format_ids(sorted(nodes))} (see `hmd topology`)"
            )
        if named.count(node) > 1:
            return f"tiers: node {node} is named twice; name each node once"
    if left := sorted(set(nodes) - set(named)):
        return f"tiers: node {format_ids(left)} is in no tier; name every node with memory"
    return None


def kernel_tiers(sysfs: Path) -> list[tuple[int, ...]]:
    """Return the kernel's memory tiers as lists of nodes, fastest first; empty before Linux 6.1.

    The number in ``memory_tierN`` is the abstract distance in chunks
    (Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers).
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    folder = sysfs / "devices/virtual/memory_tiering"
    for path in folder.glob("memory_tier*"):
        match = _TIER_NAME.fullmatch(path.name)
        nodes = parse_ids(read_text(path / "nodelist")) if match else ()
        if match and nodes:
            found.append((int(match.group(1)), nodes))
    return [nodes for _, nodes in sorted(found)]


def abstract_distances(nodes: Sequence[Node]) -> dict[int, int]:
    """Return the kernel's abstract distance of each node from HMAT figures, empty without them.

    The formula of ``mt_perf_to_adistance()`` (mm/memory-tiers.c, since Linux 6.7): proportional
    to latency, inversely to bandwidth, relative to the first node with CPUs, all of which are DRAM.
    """
    figures = {n.id: _node_figures(n) for n in nodes}
    reference = next((f for n in nodes if n.cpus and (f := figures[n.id])), None)
    if reference is None:
        return {}
    distances: dict[int, int] = {}
    for node in nodes:
        own = figures[node.id]
        if node.cpus:
            distances[node.id] = _DRAM_DISTANCE
        elif own is None:
            return {}
        else:
            slower = own[0] / reference[0] * reference[1] / own[1]
            distances[node.id] = int(_DRAM_DISTANCE * slower)
    return distances


def tier_warning(topology: Topology) -> str | None:
    """Return a warning about the ranking with what to do, None where it is sound."""
    if topology.one_tier:
        return _one_tier_warning(topology)
    if topology.tier_source != TierSource.GUESS:
        return None
    slow = [node for tier in topology.tiers[1:] for node in tier]
    turned = [slow, list(topology.tiers[0])]
    return (
        f"neither kernel nor firmware ranks these nodes; {format_ids(slow)} are taken as slower"
        f" because they have no CPUs; if they are faster (HBM), configure"
        f" `machine: {{tiers: {turned}}}`"
    )


def _one_tier_warning(topology: Topology) -> str:
    ids = [n.id for n in topology.nodes]
    if len(ids) < 2:
        return (
            "this machine has one memory node: there is no slower memory to move pages to;"
            " try `hmd emulate` for a machine with two"
        )
    listed = format_ids(ids)
    if topology.tier_source == TierSource.CONFIGURATION:
        return f"the configuration puts nodes {listed} into one tier: no page changes its tier"
    if topology.tier_source == TierSource.GUESS and not any(n.cpus for n in topology.nodes):
        return (
            f"nodes {listed} are all one tier: neither kernel nor firmware ranks them, and none has"
            " CPUs; no page changes its tier; if some are slower, configure `machine: {tiers: …}`"
        )
    suggestion = suggested_override(topology.nodes)
    example = suggestion or [[ids[0]], ids[1:]]
    basis = "for instance" if suggestion is None else "as their figures and CPUs suggest"
    return (
        f"nodes {listed} are all one tier by {topology.tier_source}: no page changes its tier;"
        f" if some are slower, configure, {basis}, `machine: {{tiers: {example}}}`"
    )


def suggested_override(nodes: Sequence[Node]) -> list[list[int]] | None:
    """Return the ``tiers:`` that HMAT figures, else missing CPUs, suggest; None where neither."""
    distances = abstract_distances(nodes)
    ranks = {n: d // _CHUNK for n, d in distances.items()} or {
        n.id: 0 if n.cpus else 1 for n in nodes
    }
    tiers = sorted(set(ranks.values()))
    if len(tiers) < 2:
        return None
    return [[n.id for n in nodes if ranks[n.id] == tier] for tier in tiers]


def _node_figures(node: Node) -> tuple[int, int] | None:
    """Return the sums of latencies and of bandwidths, None where one of them is missing."""
    latency = (node.read_latency_ns or 0) + (node.write_latency_ns or 0)
    bandwidth = (node.read_bandwidth_mbps or 0) + (node.write_bandwidth_mbps or 0)
    return (latency, bandwidth) if latency and bandwidth else None


def _dense(ranks: Mapping[int, int]) -> dict[int, int]:
    """Renumber ranks 0, 1, 2 … in their order."""
    order = {rank: i for i, rank in enumerate(sorted(set(ranks.values())))}
    return {node: order[rank] for node, rank in ranks.items()}


def read_topology(
    sysfs: Path = SYSFS,
    tiers: Sequence[Sequence[int]] | None = None,
    *,
    fit_override: bool = False,
) -> Topology:
    """Return the nodes that have memory, with CPUs, distances, HMAT figures and tiers.

    ``tiers`` is the configuration's override, lists of node ids, fastest first; ``fit_override``
    reduces it to the nodes that have memory (``fitting``).
    Raises MissingError where the kernel has no NUMA nodes, ConfigError for a wrong override.
    """
    names = (_NODE_NAME.fullmatch(path.name) for path in _folder(sysfs).glob("node*"))
    online = sorted(int(match.group(1)) for match in names if match)
    if not online:
        raise MissingError(
            f"no memory nodes in {_folder(sysfs)}: hmd needs a kernel with CONFIG_NUMA"
        )
    memory = {node: total for node in online if (total := _kib(_meminfo(sysfs, node), "MemTotal"))}
    nodes = [_read_node(sysfs, node, total, online, memory) for node, total in memory.items()]
    if tiers and fit_override:
        tiers = fitting(tiers, [node.id for node in nodes])
    ranks, source = rank_nodes(nodes, sysfs, tiers)
    return Topology(
        nodes=tuple(replace(node, tier=ranks[node.id]) for node in nodes), tier_source=source
    )


def read_node_memory(
    topology: Topology,
    sysfs: Path = SYSFS,
    reserves: Mapping[int, int] | None = None,
    cache_share: float = 0.0,
) -> tuple[NodeMemory, ...]:
    """Return the memory of each node of ``topology``; 0 bytes of one that is offline now.

    ``reserves`` are the kernel's own, by node id (``hmd.linux.node_memory``). ``cache_share`` of
    the reclaimable page cache counts as ``cache_bytes``.
    """
    found = []
    for node in topology.nodes:
        rows = _meminfo(sysfs, node.id)
        total, free = _kib(rows, "MemTotal"), _kib(rows, "MemFree")
        cache_bytes = int(cache_share * reclaimable_bytes(rows)) if cache_share else 0
        reserve_bytes = reserves.get(node.id, 0) if reserves else 0
        found.append(NodeMemory(node.id, total, free, reserve_bytes, cache_bytes))
    return tuple(found)


def memory_nodes(sysfs: Path = SYSFS) -> tuple[int, ...] | None:
    """Return the nodes that have memory now, None where the kernel has no list."""
    text = read_text(_folder(sysfs) / "has_memory")
    return None if text is None else parse_ids(text)


def read_node_use(node: int, sysfs: Path = SYSFS) -> NodeUse:
    """Return the use of a node's memory; all 0 for a node that does not exist."""
    rows = _meminfo(sysfs, node)
    total, free, mapped = (_kib(rows, name) for name in ("MemTotal", "MemFree", "Mapped"))
    huge = rows.get("HugePages_Total", 0) - rows.get("HugePages_Free", 0)
    return NodeUse(
        total_bytes=total,
        used_bytes=max(total - free, 0),
        program_bytes=_kib(rows, "AnonPages") + mapped,
        cache_bytes=max(_kib(rows, "FilePages") - mapped, 0),
        locked_bytes=_kib(rows, "Mlocked"),
        kernel_bytes=_kib(rows, "Slab", "KernelStack", "PageTables"),
        hugetlb_pages=max(huge, 0),
        pool_bytes=_pool_bytes(_folder(sysfs) / f"node{node}/hugepages"),
    )


def _pool_bytes(folder: Path) -> int:
    """Return the size of all pools of huge pages of a node (hugetlbpage.rst)."""
    sizes = {path: int(path.name[len("hugepages-") : -2]) << 10 for path in folder.glob("*kB")}
    return sum(size * (read_int(path / "nr_hugepages") or 0) for path, size in sizes.items())


def _folder(sysfs: Path) -> Path:
    return sysfs / "devices/system/node"


def _meminfo(sysfs: Path, node: int) -> dict[str, int]:
    return parse_meminfo(read_bytes(_folder(sysfs) / f"node{node}/meminfo") or b"")


def _kib(rows: Mapping[str, int], *names: str) -> int:
    """Return the sum of some rows in bytes."""
    return sum(rows.get(name, 0) for name in names) << 10


def _read_node(
    sysfs: Path, node: int, total_bytes: int, online: Sequence[int], memory: dict[int, int]
) -> Node:
    folder = _folder(sysfs) / f"node{node}"
    # access0 is the best initiator of any kind, access1 the best CPU; where only a GPU or NIC is
    # nearer they differ; programs run on CPUs
    # (Documentation/admin-guide/mm/numaperf.rst).
    figures = _figures(folder / "access1/initiators") or _figures(folder / "access0/initiators")
    return Node(
        id=node,
        cpus=parse_ids(read_text(folder / "cpulist")),
        total_bytes=total_bytes,
        distances=_distances(folder, online, memory),
        tier=0,
        **figures,
    )


def _distances(folder: Path, online: Sequence[int], memory: dict[int, int]) -> tuple[int, ...]:
    """Return distances to nodes with memory; the file has all online ones, in order of id."""
    fields = (read_text(folder / "distance") or "").split()
    if len(fields) != len(online) or not all(f.isascii() and f.isdigit() for f in fields):
        return ()
    return tuple(int(f) for node, f in zip(online, fields, strict=True) if node in memory)


def _figures(folder: Path) -> dict[str, int]:
    """Return HMAT figures by field of ``Node``: nanoseconds, and MB/s; 0 in the file is unknown."""
    files = {
        "read_latency_ns": "read_latency",
        "write_latency_ns": "write_latency",
        "read_bandwidth_mbps": "read_bandwidth",
        "write_bandwidth_mbps": "write_bandwidth",
    }
    found = {field: read_int(folder / name) or 0 for field, name in files.items()}
    return {
        field: value
        for field, value in found.items()
        if value > 0 and (value <= _MAX_LATENCY_NS or "latency" not in field)
    }


CHECKS_AFTER_CHANGE: Final = 3
"""Checks after a change: a node is listed before its memory and its tier are known."""

_BLOCK_BYTES = "devices/system/memory/block_size_bytes"


ONLINE: Final = "devices/system/cpu/online"


def online_cpus(sysfs: Path) -> tuple[int, ...]:
    """Return the CPUs that are online, ascending."""
    return parse_ids(read_text(sysfs / ONLINE))


class CpuWatch:
    """The CPUs that were online at the last check."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._seen = online_cpus(sysfs)

    def changed(self) -> bool:
        """Return whether other CPUs are online than at the last check; never if none is listed."""
        seen = online_cpus(self._sysfs)
        before, self._seen = self._seen, seen or self._seen
        return self._seen != before


class NodeWatch:
    """The nodes with memory at the last check."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._seen = memory_nodes(sysfs)
        self._checks_left = 0

    def due(self) -> bool:
        """Return whether nodes have recently changed, so that the topology must be read again."""
        seen = memory_nodes(self._sysfs)
        if seen != self._seen:
            self._seen, self._checks_left = seen, CHECKS_AFTER_CHANGE
        if not self._checks_left:
            return False
        self._checks_left -= 1
        return True


def physical_ranges(node: int, sysfs: Path = SYSFS) -> tuple[tuple[int, int], ...]:
    """Return start and end (exclusive) of a node's ranges of addresses, ascending.

    /sys/devices/system/node/nodeN/memoryM is the block of block_size_bytes bytes at M times that
    size (Documentation/admin-guide/mm/memory-hotplug.rst). () for a node that does not exist, and
    where the kernel lists no blocks (CONFIG_MEMORY_HOTPLUG).
    """
    size = _hexadecimal(read_text(sysfs / _BLOCK_BYTES))
    try:
        names = os.listdir(sysfs / f"devices/system/node/node{node}")  # noqa: PTH208
    except OSError:
        return ()
    numbers = (name.removeprefix("memory") for name in names if name.startswith("memory"))
    ranges: list[tuple[int, int]] = []
    for block in sorted(int(number) for number in numbers if number.isdigit()):
        start, end = block * size, (block + 1) * size
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return tuple(ranges) if size else ()


def _hexadecimal(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
