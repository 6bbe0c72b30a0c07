"""Latency of each tier: the firmware's figure for an idle node, and what recent loads waited.

Takes the topology and the latencies of samples, gives nanoseconds per tier. Costs microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes
from hmd.machine.nodes.topology import Topology

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

# Latency of a tier for which firmware has no figure, over the latency of the tier above.
_UNKNOWN_TIER: Final = 2.0

Values = npt.NDArray[np.float64]


def loaded_latency_ns(pages: PageView, topology: Topology, nodes: Nodes) -> Values:
    """Return the current latency of each tier, in ns: above idle latency while requests queue.

    The mean over a tier's nodes of the latency of recent samples, where known, and at least
    :func:`tier_latency_ns`. It need not rise with the tier.
    """
    latency, loaded = tier_latency_ns(topology, nodes), pages.loaded_ns
    tier_of = nodes.tier[: len(loaded)]
    loaded = loaded[: len(tier_of)]
    for tier in range(nodes.tiers):
        measured = loaded[(tier_of == tier) & (loaded > 0)]
        if len(measured):
            latency[tier] = max(latency[tier], float(measured.mean()))
    return latency


def tier_latency_ns(topology: Topology, nodes: Nodes) -> Values:
    """Return the idle latency of each tier, in ns, rising with the tier.

    The mean latency of its nodes or, if larger, the fastest tier's latency divided by the ratio of
    their bandwidths: HBM and DRAM differ in bandwidth alone. Where firmware reports neither, twice
    the latency of the tier above, about that of CXL memory.
    """
    latency = np.zeros(nodes.tiers)
    for tier, ids in enumerate(topology.tiers):
        members = [node for node in topology.nodes if node.id in ids]
        known = [node.read_latency_ns for node in members if node.read_latency_ns]
        latency[tier] = sum(known) / len(known) if known else latency[tier - 1] * _UNKNOWN_TIER
        if tier == 0:
            latency[0] = latency[0] or topology.latency_ns[ids[0]]
            fastest = sum(node.read_bandwidth_mbps or 0 for node in members)
        bandwidth = sum(node.read_bandwidth_mbps or 0 for node in members)
        if fastest and bandwidth:
            latency[tier] = max(latency[tier], latency[0] * fastest / bandwidth)
    return np.maximum.accumulate(latency)
