# SPDX-License-Identifier: MIT
"""Loaded latencies: how long recent loads waited for each node, from samples that measure it.

Takes the idle latencies of nodes, and sums over the loads of a tick that waited for a node; gives
their mean latency, above that of an idle node while requests queue there.

Nodes are compared within ticks. What all loads of a program wait for, whatever their node (line
fill buffers, a queue of its core, moves under way), changes from tick to tick, and a node with few
loads would be compared with others in ticks that are past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.sample.access_batch import AccessBatch, Kind

# Loads that waited for a node and that give a mean latency, and the share of the last mean that a
# tick with fewer of them keeps.
_MIN_LOADS: Final = 50.0
_FADE: Final = 0.8
# Weight from which the difference between two nodes is used: 20 loads of each in one tick, or 10 of
# one and many of the other.
_MIN_WEIGHT: Final = 10.0


class LoadedLatencies:
    """Latencies by node id, in ns.

    ``sums``, shape ``(nodes, 2)``, are the loads that waited in this tick, and the sum of their
    latencies. ``mean_ns`` is near 0 where samples have no latencies.
    """

    def __init__(self, idle_ns: Sequence[float] = ()) -> None:
        """``idle_ns`` is the latency of an idle node; () where it is not known."""
        self.given_ns = tuple(idle_ns)
        self._idle_ns = np.array(idle_ns, np.float32)
        nodes = len(self._idle_ns)
        self.sums = np.zeros((nodes, 2), np.float64)
        self.mean_ns: npt.NDArray[np.float64] = np.zeros(nodes)
        self._own_mean_ns: npt.NDArray[np.float64] = np.zeros(nodes)
        # Loads and latencies since the last mean of each node, over as many ticks as that takes.
        self._unmeasured = np.zeros((nodes, 2), np.float64)
        # Decayed sums: loads by node and, by pairs of nodes, weights and weighted differences.
        self._loads = np.zeros(nodes)
        self._weight = np.zeros((nodes, nodes))
        self._difference = np.zeros((nodes, nodes))

    def idle_latencies_of(self, batch: AccessBatch) -> npt.NDArray[np.float32]:
        """Return the idle latencies, none where the sampler of a batch measures no latencies."""
        # Some loads then have one above 0.
        measured = bool(batch.latency_ns[batch.kind == Kind.LOAD].any())
        return self._idle_ns if measured else self._idle_ns[:0]

    def close_tick(self) -> None:
        """End a tick: set the means of the nodes for which enough loads waited."""
        loads, total_ns = self.sums.T.copy()
        self._unmeasured += self.sums
        self.sums[:] = 0.0
        enough = self._unmeasured[:, 0] >= _MIN_LOADS
        self._own_mean_ns[enough] = self._unmeasured[enough, 1] / self._unmeasured[enough, 0]
        self._own_mean_ns[~enough] *= _FADE
        self._unmeasured[enough] = 0.0
        self._compare(loads, total_ns / np.maximum(loads, 1.0))
        self.mean_ns = self._own_mean_ns.copy()
        if not len(loads):
            return
        # The others relative to the node with most loads, whose mean is the newest.
        base = int(self._loads.argmax())
        compared = self._weight[base] >= _MIN_WEIGHT
        if self._own_mean_ns[base] > 0:
            difference = self._difference[compared, base] / self._weight[compared, base]
            self.mean_ns[compared] = np.maximum(
                self._own_mean_ns[base] + difference, self._idle_ns[compared]
            )

    def _compare(self, loads: npt.NDArray[np.float64], mean_ns: npt.NDArray[np.float64]) -> None:
        """Add the differences between the means of nodes in one tick."""
        self._loads = self._loads * _FADE + loads
        self._weight *= _FADE
        self._difference *= _FADE
        both = loads[:, None] + loads[None, :]
        weight = loads[:, None] * loads[None, :] / np.maximum(both, 1.0)
        np.fill_diagonal(weight, 0.0)
        self._weight += weight
        self._difference += weight * (mean_ns[:, None] - mean_ns[None, :])
