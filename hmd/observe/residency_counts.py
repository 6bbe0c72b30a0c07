"""Pages by process and node, and by tier and heat, read from the heat table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.heat.geometry import FIXED
from hmd.heat.heat_table import HeatTable
from hmd.heat.page_counts import COLDEST, HEAT_BINS, count_heat
from hmd.machine.nodes.topology import Topology
from hmd.observe.snapshot import HEAT_LOG2
from hmd.sample.access_batch import AccessBatch

_CODES = np.arange(-128, 128, dtype=np.int16)
_PLAIN = np.roll(np.where(_CODES <= FIXED, FIXED - _CODES, _CODES), 128)
"""Node of each code of a ``node`` column, by the code's byte."""


def plain_node(node: npt.NDArray[np.int8]) -> npt.NDArray[np.int16]:
    """Return node ids of a ``node`` column, -1 for absent pages; its shape."""
    return _PLAIN[node.view(np.uint8)]


def sample_nodes(heat: HeatTable, batch: AccessBatch) -> npt.NDArray[np.int16]:
    """Return the node of each sample's page, -1 where unknown; shape ``(len(batch),)``.

    Counting has found the nodes of most samples of the last update; others are looked up, which
    costs about 3 ns per sample (bench/stages/ring.py).
    """
    node = heat.sampled_nodes(batch)
    unknown = np.flatnonzero(node < 0)
    if len(unknown):
        node[unknown] = heat.nodes_at(batch.process[unknown], batch.address[unknown])
    return node


def resident_pages(heat: HeatTable, topology: Topology) -> npt.NDArray[np.int64]:
    """Return pages of 4 KiB by process of the table and node id; about 0.3 ns per page."""
    movable, fixed = heat.resident_pages(_node_count(topology))
    return movable + fixed


def heat_pages(heat: HeatTable, topology: Topology) -> npt.NDArray[np.int64]:
    """Return pages by tier and by bin of ``HEAT_LOG2``; about 10 ns per page."""
    by_node = np.zeros((_node_count(topology), HEAT_BINS), np.int64)
    if heat.chunks.used:
        count_heat(heat.chunks.used, heat.chunks.columns, heat.rates(), by_node)
    log2 = np.clip(np.arange(HEAT_BINS) - COLDEST, HEAT_LOG2[0], HEAT_LOG2[-1]) - HEAT_LOG2[0]
    tiers = np.zeros((len(topology.tiers), len(HEAT_LOG2)), np.int64)
    for tier, nodes in enumerate(topology.tiers):
        np.add.at(tiers[tier], log2, by_node[list(nodes)].sum(axis=0))
    return tiers


def _node_count(topology: Topology) -> int:
    return max(node.id for node in topology.nodes) + 1
