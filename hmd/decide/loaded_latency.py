"""How long a line takes from each tier: as firmware says, and as loads have found it of late.

Takes the topology and the heat table's waits, gives nanoseconds by tier. Microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.node_arrays import Nodes
from hmd.machine.topology import Topology

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable

# Latency of a tier that firmware says nothing of, over that of the tier above.
_UNTOLD: Final = 2.0

Values = npt.NDArray[np.float64]


def loaded_latency_ns(heat: HeatTable, topology: Topology, nodes: Nodes) -> Values:
    """Return what a line from each tier takes now, in ns: more than idle where requests queue.

    The mean over a tier's nodes of what loads waited, where samples tell; never less than
    :func:`tier_latency_ns`. Need not rise with the tier.
    """
    latency, loaded = tier_latency_ns(topology, nodes), heat.loaded_ns
    tier_of = nodes.tier[: len(loaded)]
    for tier in range(nodes.tiers):
        told = loaded[: len(tier_of)][(tier_of == tier) & (loaded[: len(tier_of)] > 0)]
        if len(told):
            latency[tier] = max(latency[tier], float(told.mean()))
    return latency


def tier_latency_ns(topology: Topology, nodes: Nodes) -> Values:
    """Return what a line from each tier takes, in ns, rising with the tier.

    The mean latency of its nodes, or what its bandwidth makes of the fastest tier's, if that is
    more: HBM and DRAM differ by that alone. Where firmware tells neither, twice that of the tier
    above, about as CXL memory.
    """
    latency = np.zeros(nodes.tiers)
    for tier, ids in enumerate(topology.tiers):
        members = [node for node in topology.nodes if node.id in ids]
        told = [node.read_latency_ns for node in members if node.read_latency_ns]
        latency[tier] = sum(told) / len(told) if told else latency[tier - 1] * _UNTOLD
        if tier == 0:
            latency[0] = latency[0] or topology.latency_ns[ids[0]]
            fastest = sum(node.read_bandwidth_mbps or 0 for node in members)
        bandwidth = sum(node.read_bandwidth_mbps or 0 for node in members)
        if fastest and bandwidth:
            latency[tier] = max(latency[tier], latency[0] * fastest / bandwidth)
    return np.maximum.accumulate(latency)
