"""What a design sees of the system when it sets the knobs: scale-free figures of one tick.

Takes the page view, the machine and the plan of a tick; gives figures of order one
(:data:`SIGNALS`). All are known to the daemon: none needs the recording. About 20 ns per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.cost_benefit.loaded_latency import loaded_latency_ns, tier_latency_ns
from hmd.decide.node_arrays import Nodes
from hmd.decide.plan import MachineView, Plan
from hmd.learn.environment.knobs import NAMES
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

SIGNALS: Final = (
    "fast_share",  # share of accesses that the fast tier serves, by the rates of pages
    "fast_share_change",  # since the last tick
    "fast_share_16",  # its average over 16 ticks
    "tick_gap",  # the same share by the samples of this tick alone, less fast_share
    "free",  # share of the fast tier's memory that is free
    "fits",  # share of the resident pages that the fast tier can hold
    "latency_ratio",  # latency of the slow tier over that of the fast one, in 4 octaves
    "queueing",  # loaded over idle latency of the slow tier, in 4 octaves
    "samples",  # samples of the tick, in 16 octaves
    "support",  # samples behind the rate of a page, mean over accesses, in 8 octaves
    "hot_slow",  # rate of the hottest tenth of slow pages over the fast mean, in 8 octaves
    "worn",  # share of accesses to pages that have moved lately
    "planned",  # pages of the plan over those of the fast tier
    *(f"last_{name}" for name in NAMES),
)
"""Names of the figures, in order."""

MOST: Final = 2.0
"""Figures are between minus this and this."""

_LONG: Final = 1 / 16
_LEAST: Final = 1e-9
_HOTTEST: Final = 0.9

Figures = npt.NDArray[np.float32]


class KnobSignals:
    """Computes the figures, tick by tick."""

    def __init__(self) -> None:
        self._share: float | None = None
        self._long = 0.0

    def of(
        self,
        pages: PageView,
        machine: MachineView,
        nodes: Nodes,
        plan: Plan,
        place: Sequence[float],
    ) -> Figures:
        """Return the figures of a tick, shape ``(len(SIGNALS),)``; ``place`` is of its knobs."""
        size = pages.size.astype(np.float64)
        served = pages.rate * size
        fast = pages.movable & (pages.tier == 0)
        slow = pages.movable & (pages.tier > 0)
        total, resident = max(float(served.sum()), _LEAST), max(float(size.sum()), 1.0)
        share = float(served[fast].sum()) / total
        before = share if self._share is None else self._share
        self._long += (share - self._long) * (1.0 if self._share is None else _LONG)
        self._share = share
        sampled = pages.tick_samples
        samples = float(sampled.sum())
        of_tick = float(sampled[fast].sum()) / samples if samples else share
        held = max(nodes.fast_bytes / PAGE_BYTES, 1.0)
        idle = tier_latency_ns(machine.topology, nodes)
        loaded = loaded_latency_ns(pages, machine.topology, nodes)
        support = float((pages.support * served).sum()) / total
        figures = [
            share,
            share - before,
            self._long,
            of_tick - share,
            float(nodes.by_tier(nodes.room)[0]) / held,
            held / resident,
            np.log2(loaded[-1] / max(loaded[0], _LEAST)) / 4,
            np.log2(loaded[-1] / max(idle[-1], _LEAST)) / 4,
            np.log2(1 + samples) / 16,
            np.log2(1 + support) / 8,
            _hotter(pages.rate[slow], served[fast], size[fast]) / 8,
            float(served[pages.wear > 0].sum()) / total,
            float(plan.pages.sum()) / held,
            *place,
        ]
        limited: Figures = np.clip(np.array(figures), -MOST, MOST).astype(np.float32)
        return limited


def _hotter(
    slow: npt.NDArray[np.float32], served: npt.NDArray[np.float64], size: npt.NDArray[np.float64]
) -> float:
    """Return by how many octaves the hottest slow pages are hotter than the mean fast page."""
    if not len(slow) or not len(size):
        return 0.0
    hottest = float(np.quantile(slow, _HOTTEST))
    mean = float(served.sum() / max(size.sum(), 1.0))
    return float(np.log2((hottest + 1.0) / (mean + 1.0)))
