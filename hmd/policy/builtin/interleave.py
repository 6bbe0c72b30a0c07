# SPDX-License-Identifier: MIT
"""The interleave policy: pages are spread over all tiers in a fixed ratio, whatever their heat.

Gives each page a tier by a hash of its address, so that a page moves at most once; about 20 ns per
page. For comparison, and for programs that are bound by bandwidth and access all pages alike (as
the kernel's weighted interleave; Documentation/admin-guide/mm/numa_memory_policy.rst,
MPOL_WEIGHTED_INTERLEAVE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hmd.linux.topology import Topology
from hmd.policy.nodes import Nodes, hashed, nodes_of
from hmd.policy.plan import MachineView, Plan, TierRequest
from hmd.policy.planning import build_plan
from hmd.policy.settings import SHARE, HeadroomSettings, PolicyInfo, Search

if TYPE_CHECKING:
    from hmd.heat.view import PageView


class InterleaveSettings(HeadroomSettings):
    """How the interleave policy decides."""

    fast: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Share of all pages that belongs to the fastest tier; the others share"
            " the rest. Default (auto): the ratio of the tiers' read bandwidths, or of their"
            " sizes where those are not known.",
        ),
        SHARE.or_auto,
        Search(0, 1),
    ] = None


class Interleave:
    """Assigns tiers by a hash of the page's address."""

    name = "interleave"

    def __init__(self, settings: InterleaveSettings | None = None) -> None:
        self.settings = settings or InterleaveSettings()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves that bring pages to the tiers of their addresses."""
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        here = pages.tier
        bounds = np.cumsum(self._shares(machine, nodes))[:-1]
        tier = np.searchsorted(bounds, hashed(pages.address), side="right").astype(np.int8)
        # A page that was never sampled gains nothing from a faster tier.
        tier = np.where((tier < here) & (pages.rate <= 0), here, tier)
        tier[~pages.movable] = -1
        wanted = TierRequest(tier, np.ones(len(tier), np.float32), must=tier > here)
        return build_plan(pages, nodes, wanted, machine.budget_bytes)

    def _shares(self, machine: MachineView, nodes: Nodes) -> npt.NDArray[np.float64]:
        """Return each tier's share of pages, shape ``(tiers,)``."""
        weight = _bandwidths(machine.topology, nodes)
        if not (weight > 0).all():
            weight = np.array(nodes.tier_bytes, np.float64)
        fast = self.settings.fast
        if fast is not None and weight[1:].sum() > 0:
            weight[1:] *= (1 - fast) / weight[1:].sum()
            weight[0] = fast
        return weight / max(float(weight.sum()), 1e-12)


def _bandwidths(topology: Topology, nodes: Nodes) -> npt.NDArray[np.float64]:
    """Return what each tier's nodes can read together, in MB/s; 0 where one is not known."""
    total, known = np.zeros(nodes.tiers), np.ones(nodes.tiers, np.bool_)
    for node in topology.nodes:
        tier = nodes.tier[node.id]
        total[tier] += node.read_bandwidth_mbps or 0
        known[tier] &= bool(node.read_bandwidth_mbps)
    return np.where(known, total, 0.0)


POLICY = PolicyInfo(
    name=Interleave.name,
    summary="Spreads pages over all tiers in the ratio of their bandwidths, by address alone.",
    suits="Comparisons, and programs bound by bandwidth that access all pages alike.",
    settings_type=InterleaveSettings,
    create=Interleave,
)
