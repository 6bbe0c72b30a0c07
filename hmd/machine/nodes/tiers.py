"""Ranking of memory nodes into tiers.

Assigns each node a tier (0 is the fastest) and names the source of the ranking, the first of: the
configuration, the kernel's memory tiers, HMAT figures, and the guess that a node without CPUs is
slower. Costs a few reads, once at start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from hmd.errors import ConfigError
from hmd.machine.nodes.topology import Node, Topology
from hmd.machine.procfs import format_ids, parse_ids, read_text


class TierSource(StrEnum):
    """The source of the ranking (``Topology.tier_source``)."""

    CONFIGURATION = "configuration"
    KERNEL = "kernel memory tiers"
    HMAT = "HMAT figures"
    GUESS = "guess: nodes without CPUs are slower"


# mm/memory-tiers.c, include/linux/memory-tiers.h: DRAM has abstract distance 4.5 chunks of 128,
# and a tier is one chunk, so that memory within about 12 % of DRAM shares its tier.
_CHUNK = 128
_DRAM_DISTANCE = 4 * _CHUNK + _CHUNK // 2
_TIER_NAME = re.compile(r"memory_tier(\d+)", re.ASCII)


def rank_nodes(
    nodes: Sequence[Node], sysfs: Path, override: Sequence[Sequence[int]] | None = None
) -> tuple[dict[int, int], TierSource]:
    """Return the tier of each node id, and the source of the ranking.

    ``override`` is the configuration's ``tiers:``, lists of node ids, fastest first.
    Raises ConfigError where it leaves a node out or names one without memory.
    """
    if override:
        return _from_configuration(nodes, override), TierSource.CONFIGURATION
    kernel = kernel_tiers(sysfs)
    if kernel:
        return _from_kernel(nodes, kernel), TierSource.KERNEL
    distances = abstract_distances(nodes)
    if distances:
        return _dense({node: d // _CHUNK for node, d in distances.items()}), TierSource.HMAT
    return _dense({n.id: 0 if n.cpus else 1 for n in nodes}), TierSource.GUESS


def fitting(override: Sequence[Sequence[int]], nodes: Sequence[int]) -> list[list[int]]:
    """Return an override reduced to the nodes with memory.

    Nodes that it does not name form one more tier, the slowest, so that no node counts as fast
    unless it is configured so.
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

    The number in ``memory_tierN`` is the abstract distance in chunks: a smaller one is faster
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
    to latency, inversely to bandwidth, relative to the first node with CPUs. As there, every
    node with CPUs counts as DRAM.
    """
    figures = {n.id: _figures(n) for n in nodes}
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
        f" because they have no CPUs; if they are faster (HBM), configure `tiers: {turned}`"
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
        return f"the configuration puts nodes {listed} into one tier: nothing will be moved"
    suggestion = suggested_override(topology.nodes)
    example = suggestion or [[ids[0]], ids[1:]]
    basis = "for instance" if suggestion is None else "as their figures and CPUs suggest"
    return (
        f"nodes {listed} are all one tier by {topology.tier_source}: nothing will be moved;"
        f" if some are slower, configure, {basis}, `tiers: {example}`"
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


def _figures(node: Node) -> tuple[int, int] | None:
    """Return the sums of latencies and of bandwidths, None where one of them is missing."""
    latency = (node.read_latency_ns or 0) + (node.write_latency_ns or 0)
    bandwidth = (node.read_bandwidth_mbps or 0) + (node.write_bandwidth_mbps or 0)
    return (latency, bandwidth) if latency and bandwidth else None


def _from_configuration(nodes: Sequence[Node], override: Sequence[Sequence[int]]) -> dict[int, int]:
    if problem := override_problem(override, [n.id for n in nodes]):
        raise ConfigError(problem)
    return _dense({node: tier for tier, members in enumerate(override) for node in members})


def _from_kernel(nodes: Sequence[Node], tiers: Sequence[Sequence[int]]) -> dict[int, int]:
    named = {node: tier for tier, members in enumerate(tiers) for node in members}
    # A node that has just come online may be in no tier yet: never count it as fast.
    return _dense({n.id: named.get(n.id, len(tiers)) for n in nodes})


def _dense(ranks: Mapping[int, int]) -> dict[int, int]:
    """Renumber ranks 0, 1, 2 … in their order."""
    order = {rank: i for i, rank in enumerate(sorted(set(ranks.values())))}
    return {node: order[rank] for node, rank in ranks.items()}
