"""The machine's memory nodes, read from sysfs.

``read_topology`` reads /sys once at start and returns a ``Topology``. ``read_node_memory`` reads a
small file per node at each tick (about 20 µs per node) and returns what moves can fill.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hmd.errors import MissingError
from hmd.machine.nodes.page_cache import reclaimable_bytes
from hmd.machine.nodes.tiers import fitting, rank_nodes
from hmd.machine.nodes.topology import Node, NodeMemory, NodeUse, Topology
from hmd.machine.procfs import parse_ids, read_bytes, read_int, read_text

_SYSFS = Path("/sys")
_NODE_NAME = re.compile(r"node(\d+)", re.ASCII)
_TOTAL = re.compile(rb"MemTotal:\s*(\d+) kB")
_FREE = re.compile(rb"MemFree:\s*(\d+) kB")
_FIELD = re.compile(rb"^Node \d+ (\w+):\s*(\d+) kB$", re.MULTILINE)
_HUGE_TOTAL = re.compile(rb"HugePages_Total:\s*(\d+)")
_HUGE_FREE = re.compile(rb"HugePages_Free:\s*(\d+)")


def read_topology(
    sysfs: Path = _SYSFS,
    tiers: Sequence[Sequence[int]] | None = None,
    *,
    fit_override: bool = False,
) -> Topology:
    """Return the nodes that have memory, with CPUs, distances, HMAT figures and tiers.

    ``tiers`` is the configuration's override, lists of node ids, fastest first. With
    ``fit_override``, nodes that it does not name form a tier of their own, the slowest, and nodes
    without memory are left out of it.
    Raises MissingError where the kernel has no NUMA nodes, ConfigError for a wrong override.
    """
    online = _online(sysfs)
    if not online:
        raise MissingError(
            f"no memory nodes in {_folder(sysfs)}: hmd needs a kernel with CONFIG_NUMA"
        )
    memory = {node: total for node in online if (total := _total_bytes(sysfs, node))}
    nodes = [_read_node(sysfs, node, total, online, memory) for node, total in memory.items()]
    if tiers and fit_override:
        tiers = fitting(tiers, [node.id for node in nodes])
    ranks, source = rank_nodes(nodes, sysfs, tiers)
    return Topology(
        nodes=tuple(replace(node, tier=ranks[node.id]) for node in nodes), tier_source=source
    )


def read_node_memory(
    topology: Topology,
    sysfs: Path = _SYSFS,
    reserves: Mapping[int, int] | None = None,
    cache_share: float = 0.0,
) -> tuple[NodeMemory, ...]:
    """Return the memory of each node of ``topology``, in its order.

    ``reserves`` are the kernel's own, by node id, from ``hmd.machine.nodes.zone_reserves``.
    ``cache_share`` of the reclaimable page cache counts as ``cache_bytes``. A node that has gone
    offline since has 0 bytes.
    """
    return tuple(
        _node_memory(sysfs, node.id, reserves or {}, cache_share) for node in topology.nodes
    )


def memory_nodes(sysfs: Path = _SYSFS) -> tuple[int, ...] | None:
    """Return the nodes that have memory now, None where the kernel has no list; one small read.

    Documentation/ABI/stable/sysfs-devices-node.
    """
    text = read_text(_folder(sysfs) / "has_memory")
    return None if text is None else parse_ids(text)


def read_node_use(node: int, sysfs: Path = _SYSFS) -> NodeUse:
    """Return the use of a node's memory; all 0 for a node that does not exist."""
    text = read_bytes(_folder(sysfs) / f"node{node}/meminfo") or b""
    field = {name.decode(): int(kib) << 10 for name, kib in _FIELD.findall(text)}.get
    total, free = field("MemTotal", 0), field("MemFree", 0)
    mapped = field("Mapped", 0)
    huge = _number(_HUGE_TOTAL, text) - _number(_HUGE_FREE, text)
    return NodeUse(
        total_bytes=total,
        used_bytes=max(total - free, 0),
        program_bytes=field("AnonPages", 0) + mapped,
        cache_bytes=max(field("FilePages", 0) - mapped, 0),
        locked_bytes=field("Mlocked", 0),
        kernel_bytes=field("Slab", 0) + field("KernelStack", 0) + field("PageTables", 0),
        hugetlb_pages=max(huge, 0),
    )


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    match = pattern.search(text)
    return int(match.group(1)) if match else 0


def _folder(sysfs: Path) -> Path:
    return sysfs / "devices/system/node"


def _online(sysfs: Path) -> list[int]:
    """Return online nodes, ascending: the order in which a distance file lists its columns."""
    names = (_NODE_NAME.fullmatch(path.name) for path in _folder(sysfs).glob("node*"))
    return sorted(int(match.group(1)) for match in names if match)


def _node_memory(
    sysfs: Path, node: int, reserves: Mapping[int, int], cache_share: float = 0.0
) -> NodeMemory:
    text = read_bytes(_folder(sysfs) / f"node{node}/meminfo") or b""
    cache_bytes = int(cache_share * reclaimable_bytes(text)) if cache_share else 0
    return NodeMemory(
        node, _kib(_TOTAL, text), _kib(_FREE, text), reserves.get(node, 0), cache_bytes
    )


def _total_bytes(sysfs: Path, node: int) -> int:
    return _node_memory(sysfs, node, {}).total_bytes


def _kib(pattern: re.Pattern[bytes], text: bytes) -> int:
    match = pattern.search(text)
    return int(match.group(1)) << 10 if match else 0


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
    """Return SLIT distances to the nodes with memory, empty where sysfs gives none.

    The file has a column for each online node, in order of id: ids may have gaps, and nodes
    without memory have a column too.
    """
    fields = (read_text(folder / "distance") or "").split()
    if len(fields) != len(online) or not all(f.isascii() and f.isdigit() for f in fields):
        return ()
    return tuple(int(f) for node, f in zip(online, fields, strict=True) if node in memory)


def _figures(folder: Path) -> dict[str, int]:
    """Return HMAT figures by field of ``Node``: nanoseconds, and MB/s.

    The kernel prints 0 where a figure is unknown.
    """
    files = {
        "read_latency_ns": "read_latency",
        "write_latency_ns": "write_latency",
        "read_bandwidth_mbps": "read_bandwidth",
        "write_bandwidth_mbps": "write_bandwidth",
    }
    return {field: value for field, name in files.items() if (value := read_int(folder / name))}
