# SPDX-License-Identifier: MIT
"""``hmd topology``: the memory nodes with latency, bandwidth and tiers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hmd.base.errors import ConfigError, UsageError
from hmd.cli.output import format_bytes, print_json, print_table
from hmd.linux.procfs import format_ids

if TYPE_CHECKING:
    from hmd.linux.topology import Node, NodeMemory, Topology

DESCRIPTION = "Show the memory nodes of this machine with latency, bandwidth and tiers."

EXAMPLES = """\
examples:
  hmd topology                        nodes, tiers, latency and bandwidth by the firmware
  hmd topology --tiers '[[0,1],[2]]'  try `tiers:` before configuring it
  hmd topology --json                 the same for programs
"""


SPEEDS = ("read_latency_ns", "write_latency_ns", "read_bandwidth_mbps", "write_bandwidth_mbps")

OPTIONS = """\
--json         print JSON: bytes, ns, MB/s
--tiers LISTS  node ids of each tier, fastest first, instead of the kernel's ranking
--sysfs DIR = /sys   (hidden)
"""


def run(args: argparse.Namespace) -> None:
    """Print the topology."""
    from hmd.linux.topology import read_node_memory, read_topology, tier_warning

    tiers = _tiers(args.tiers)
    try:
        topology = read_topology(args.sysfs, tiers)
    except ConfigError as error:
        raise UsageError(f"--{error}") from None
    memory = read_node_memory(topology, args.sysfs)
    warning = tier_warning(topology)
    if args.json:
        print_json(_document(topology, memory, warning))
    else:
        _print(topology, memory, warning)


def _tiers(text: str | None) -> list[list[int]] | None:
    from pydantic import TypeAdapter, ValidationError

    from hmd.base.yaml_document import shown

    if text is None:
        return None
    try:
        return TypeAdapter(list[list[int]]).validate_json(text, strict=True)
    except ValidationError:
        raise UsageError(
            f"--tiers {shown(text)} is not a list of lists of node ids, such as [[0,1],[2]]"
        ) from None


def _document(
    topology: Topology, memory: tuple[NodeMemory, ...], warning: str | None
) -> dict[str, Any]:
    ids = [node.id for node in topology.nodes]
    return {
        "tiers": topology.tiers,
        "tier_source": topology.tier_source,
        "warning": warning,
        "nodes": [
            {
                "id": node.id,
                "tier": node.tier,
                "cpus": node.cpus,
                "total_bytes": now.total_bytes,
                "free_bytes": now.free_bytes,
                **{name: getattr(node, name) for name in SPEEDS},
                "distances": dict(zip(ids, node.distances, strict=False)),
            }
            for node, now in zip(topology.nodes, memory, strict=True)
        ],
    }


def _print(topology: Topology, memory: tuple[NodeMemory, ...], warning: str | None) -> None:
    columns = ("node", "tier", "cpus", "total", "free", "latency r/w", "bandwidth r/w", "distance")
    rows = [
        (
            node.id,
            node.tier,
            format_ids(node.cpus) or "none",
            format_bytes(now.total_bytes),
            format_bytes(now.free_bytes),
            _pair(node.read_latency_ns, node.write_latency_ns, "ns"),
            _bandwidths(node),
            " ".join(str(d) for d in node.distances) or "-",
        )
        for node, now in zip(topology.nodes, memory, strict=True)
    ]
    right = ("node", "tier", "total", "free", "latency r/w", "bandwidth r/w")
    print_table(columns, rows, right=right)
    order = "  then  ".join(format_ids(tier) for tier in topology.tiers)
    print(f"Tiers, fastest first: {order}   (by {topology.tier_source})")
    if warning:
        print(f"Warning: {warning}")


def _bandwidths(node: Node) -> str:
    def gigabytes(mbps: int | None) -> float | None:
        return None if mbps is None else mbps / 1000

    return _pair(gigabytes(node.read_bandwidth_mbps), gigabytes(node.write_bandwidth_mbps), "GB/s")


def _pair(read: float | None, write: float | None, unit: str) -> str:
    if read is None and write is None:
        return "-"
    return "/".join("-" if v is None else f"{v:.4g}" for v in (read, write)) + f" {unit}"
