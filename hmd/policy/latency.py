# SPDX-License-Identifier: MIT
"""Latency of tiers, memory-level parallelism of processes, and the balance of bandwidth.

The latency of a tier is the firmware's figure for idle nodes, or what recent loads waited.
Parallelism is by how much the misses of a process overlap at least; about 2 ns per row.

The balance is the share of all accesses that a tier may serve. A tier with a higher loaded latency
than the tier below serves too much, however low its idle latency is. Bisection finds the share at
which both latencies are equal, since each share that is tried costs moves (Vuppalapati and Agarwal,
"Tiered Memory Management: Access Latency is the Key!", SOSP 2024). A tier is saturated when its
latency is higher in two ticks in a row: in the tick after many moves, loads wait for those. Without
a saturated tier there is no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.linux.topology import Topology
from hmd.policy.nodes import Nodes, add_waits
from hmd.policy.plan import MachineView

if TYPE_CHECKING:
    from hmd.heat.view import PageView

# Latency of a tier for which firmware has no figure, over the latency of the tier above.
_UNKNOWN_TIER: Final = 2.0
MAX_PARALLELISM: Final = 16.0
"""No parallelism is higher: cores wait for 10 to 24 misses at a time."""

_MIN_DIVISOR: Final = 1e-9
# Latencies that differ by less count as equal.
_EQUAL: Final = 0.1
# Largest change of a share per tick: moves use bandwidth too, and overshoot moves twice.
_MAX_STEP: Final = 0.1
# Bounds that are closer than this have met: if latencies still differ, the program changed.
_MIN_STEP: Final = 0.02

Values = npt.NDArray[np.float64]


def loaded_latency_ns(pages: PageView, topology: Topology, nodes: Nodes) -> Values:
    """Return the current latency of each tier, in ns: above idle latency while requests queue.

    That of recent samples on the tier's least loaded node, to which others' pages can move, and at
    least :func:`tier_latency_ns`. It need not rise with the tier.
    """
    latency, loaded = tier_latency_ns(topology, nodes), pages.loaded_latency_ns
    tier_of = nodes.tier[: len(loaded)]
    loaded = loaded[: len(tier_of)]
    for tier in range(nodes.tiers):
        measured = loaded[tier_of == tier]
        if len(measured):
            latency[tier] = max(latency[tier], float(measured.min()))
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


def parallelism(pages: PageView, machine: MachineView) -> npt.NDArray[np.float64]:
    """Return a lower bound of each process's memory-level parallelism, shape ``(processes,)``.

    If waiting for misses one after another takes more time than the CPUs of a process were busy,
    they overlap. Where the CPU time of a process is not known, it may have been that of all CPUs.
    """
    latency_ns = np.array(machine.topology.latency_ns, np.float64)
    loaded = pages.loaded_latency_ns[: len(latency_ns)]
    latency_ns[: len(loaded)] = np.maximum(latency_ns[: len(loaded)], loaded)
    node = np.where(pages.movable, pages.node, np.int8(-1))
    waits = np.zeros(len(pages.processes))
    add_waits(pages.process, pages.size, pages.rate, latency_ns, node, waits)
    unshown = pages.unshown.accesses
    waits += (unshown * np.append(latency_ns, 0.0)[: unshown.shape[1]]).sum(axis=1)
    # Rates of pages have the priority of their process, the rate of a process has not.
    mean_ns = waits / np.maximum(pages.accesses, _MIN_DIVISOR)
    waiting_s = pages.process_rate * mean_ns * 1e-9
    every = float(max(sum(len(each.cpus) for each in machine.topology.nodes), 1))
    cpus = np.full(len(waits), np.nan) if machine.cpus is None else machine.cpus
    cpus = np.where(np.isnan(cpus), every, cpus)
    return min_parallelism(waiting_s, cpus)


def min_parallelism(waiting_s: Values, busy_s: Values) -> Values:
    """Return how many misses overlapped at least, by what exceeds the CPUs' busy time."""
    return np.clip(waiting_s / np.maximum(busy_s, _MIN_DIVISOR), 1.0, MAX_PARALLELISM)


class BandwidthBalance:
    """Keeps the bounds of each tier's share from tick to tick."""

    def __init__(self) -> None:
        self._known: dict[int, _ShareBounds] = {}
        self._saturated: set[int] = set()

    def max_share(self, tier: int, share: float, wait_ns: float, below_ns: float) -> float:
        """Return the share of all accesses that a tier may serve; 1.0 is no limit.

        It serves ``share`` now; ``wait_ns`` is its loaded latency, ``below_ns`` that of the tier
        below.
        """
        saturated = wait_ns > below_ns * (1 + _EQUAL)
        before = tier in self._saturated
        if saturated:
            self._saturated.add(tier)
        else:
            self._saturated.discard(tier)
        if tier not in self._known:
            if not (saturated and before):
                return 1.0
            self._known[tier] = _ShareBounds()
        bounds = self._known[tier]
        if saturated:
            bounds.narrow(share, too_large=True)
        elif wait_ns < below_ns * (1 - _EQUAL):
            bounds.narrow(share, too_large=False)
        else:
            bounds.step = _MIN_STEP
            return share
        if bounds.high > 1.0:
            del self._known[tier]
            return 1.0
        middle = (bounds.low + bounds.high) / 2
        return min(max(middle, share - _MAX_STEP), share + _MAX_STEP)


@dataclass(slots=True)
class _ShareBounds:
    """The share at which latencies are equal lies between ``low`` and ``high``.

    Where the bounds meet and latencies still differ, the program has changed: the bound that fails
    is moved away, in steps that double.
    """

    low: float = 0.0
    high: float = 1.0
    step: float = _MIN_STEP

    def narrow(self, share: float, *, too_large: bool) -> None:
        """Record that a share is too large, or else too small."""
        if too_large:
            self.high = min(self.high, share)
        else:
            self.low = max(self.low, share)
        if self.high - self.low >= _MIN_STEP:
            return
        self.step *= 2
        if too_large:
            self.low = max(0.0, self.high - self.step)
        else:
            self.high = self.low + self.step
