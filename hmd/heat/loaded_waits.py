"""How long recent loads waited for each node: measured latencies, from samples that have them.

Takes the idle latencies of nodes, and sums over the loads of a tick; gives the mean latency of the
loads that waited for a node, above that of an idle one while requests queue there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.sample.access_batch import AccessBatch, Kind

# Loads that waited for a node and that give a mean latency, and the share of the last mean that a
# tick with fewer of them keeps.
_LEAST: Final = 50.0
_FADE: Final = 0.8


class LoadedWaits:
    """Latencies by node id, in ns.

    ``sums``, shape ``(nodes, 2)``, are the loads that waited since the last mean, and the sum of
    their latencies. ``mean_ns`` is near 0 where samples have no latencies.
    """

    def __init__(self, idle_ns: Sequence[float] = ()) -> None:
        """``idle_ns`` is the latency of an idle node; () where it is not known."""
        self._known = tuple(idle_ns)
        self._idle_ns = np.array(idle_ns, np.float32)
        self.sums = np.zeros((len(self._idle_ns), 2), np.float64)
        self.mean_ns: npt.NDArray[np.float64] = np.zeros(len(self._idle_ns))

    def expects(self, idle_ns: Sequence[float]) -> bool:
        """Return whether these are the idle latencies."""
        return tuple(idle_ns) == self._known

    def idle_of(self, batch: AccessBatch) -> npt.NDArray[np.float32]:
        """Return the idle latencies, none where the sampler of a batch measures no latencies."""
        # Some loads then have one above 0.
        measured = bool(batch.weight_ns[batch.kind == Kind.LOAD].any())
        return self._idle_ns if measured else self._idle_ns[:0]

    def close(self) -> None:
        """Set the mean of the nodes for which enough loads waited."""
        enough = self.sums[:, 0] >= _LEAST
        self.mean_ns[enough] = self.sums[enough, 1] / self.sums[enough, 0]
        self.mean_ns[~enough] *= _FADE
        self.sums[enough] = 0.0
