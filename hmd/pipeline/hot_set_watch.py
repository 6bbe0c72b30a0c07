"""Shows from a tick whether the hot set moves, so that the next tick can be shorter.

Two signs, each of which comes before the move is complete: the faster tiers serve a smaller share
of the samples than in the tick before, and moves have replaced much of what they hold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.machine.nodes.topology import Topology
from hmd.observe.tick_record import TickRecord

REPLACED_SHARE: Final = 1 / 16
"""Share of what targets have on the faster tiers whose replacement in one tick is much."""
FALL: Final = 1 / 8
"""Fall of the faster tiers' share of samples from one tick to the next that is much."""
DEVIATIONS: Final = 5.0
"""Standard deviations of such a fall that the noise of samples does not reach."""


class _Served(NamedTuple):
    """Samples of a tick, by the tier of their page: on all but the slowest, and on any."""

    faster: int
    known: int

    @property
    def share(self) -> float:
        return self.faster / self.known


class HotSetWatch:
    """Compares each tick with the one before."""

    def __init__(self) -> None:
        self._before: _Served | None = None

    def moves(self, tick: TickRecord, topology: Topology, faster_bytes: int) -> bool:
        """Return whether the hot set moves; ``faster_bytes`` are targets' on the faster tiers."""
        outcome = tick.outcome
        moved_bytes = 0 if outcome is None or outcome.dry_run else outcome.moved_bytes
        now = _served(tick.node, topology)
        before, self._before = self._before, now
        fell = before is not None and now is not None and _fell(before, now)
        return fell or moved_bytes > REPLACED_SHARE * faster_bytes


def _served(node: npt.NDArray[np.int16], topology: Topology) -> _Served | None:
    """Return what served the samples whose nodes these are; None where none is known."""
    counts = np.bincount(node[node >= 0], minlength=len(topology.latency_ns))
    tiers = topology.tiers
    faster = sum(int(counts[list(nodes)].sum()) for nodes in tiers[:-1])
    known = faster + sum(int(counts[list(nodes)].sum()) for nodes in tiers[-1:])
    return _Served(faster, known) if known else None


def _fell(before: _Served, now: _Served) -> bool:
    """Return whether the share fell by much, and by more than two proportions do by chance."""
    fall = before.share - now.share
    if fall < FALL:
        return False
    pooled = (before.faster + now.faster) / (before.known + now.known)
    variance = pooled * (1 - pooled) * (1 / before.known + 1 / now.known)
    return fall * fall > DEVIATIONS * DEVIATIONS * variance
