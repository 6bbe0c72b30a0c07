# SPDX-License-Identifier: MIT
"""Runtime by fast-tier capacity, at the cost of a few layouts, and the knee of the curve.

Pages join the fast tier in an order, usually hottest first. One pass over the rows sorts their
accesses into steps of capacity; each step is then priced from sums. The same samples must not both
order the pages and price them, or sampling noise counts as heat: order pages by one run
(``PageIndex.accesses``, the slow run's), and price with the other's rows
(``Terms(rows=SampleSelection.FAST)``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.estimate.cost import add_by_step
from hmd.estimate.model import RuntimeModel, SlowMass


@dataclass(frozen=True, slots=True)
class CapacitySweep:
    """The curve, from nothing fast to all fast; columns of shape ``(steps + 1,)``.

    ``knee`` is the step beyond which more capacity saves little; None if the curve is flat or has
    no knee.
    """

    fast_pages: npt.NDArray[np.int64]
    runtime_ns: npt.NDArray[np.float64]
    knee: int | None

    @property
    def fast_bytes(self) -> npt.NDArray[np.int64]:
        """Capacity of the fast tier."""
        return self.fast_pages * PAGE_BYTES

    def within(self, share: float) -> int:
        """Return the first step whose runtime is at most this share (0.05: 5 %) above all-fast."""
        return int(np.argmax(self.runtime_ns <= self.runtime_ns[-1] * (1 + share)))


def sweep(model: RuntimeModel, order: npt.NDArray[np.int64], steps: int = 100) -> CapacitySweep:
    """Return runtimes with the first pages of ``order``, ``(pages,)``, fast, in equal steps."""
    if steps < 1:
        raise ValueError("a sweep has at least one step")
    fast_pages = np.arange(steps + 1) * model.pages // steps
    step = np.empty(model.pages, np.int32)
    # A page's step is the first at which it is fast.
    step[order] = np.searchsorted(fast_pages, np.arange(model.pages), side="right")
    cells = len(model.total)
    fast = np.zeros((steps + 2, cells))
    add_by_step(model.page, model.accesses, model.begin, step, fast)
    pairs = model.pairs
    step_a, step_b = step[pairs.page_a], step[pairs.page_b]
    runtime = np.empty(steps + 1)
    left = model.total.copy()
    for now in range(steps + 1):
        left = np.maximum(left - fast[now], 0.0)
        a, b = (step_a > now).astype(np.float32), (step_b > now).astype(np.float32)
        runtime[now] = model.price(SlowMass(left, a, b)).runtime_ns
    return CapacitySweep(fast_pages, runtime, find_knee(fast_pages.astype(np.float64), runtime))


def find_knee(x: npt.NDArray[np.float64], falling: npt.NDArray[np.float64]) -> int | None:
    """Return where a falling curve bends most: farthest below its chord, both axes from 0 to 1.

    Kneedle (Satopaa, Albrecht, Irwin and Raghavan, 2011). None if it bends by less than 5 %.
    """
    height = float(falling.max() - falling.min())
    if height <= 0 or x[-1] <= x[0]:
        return None
    across = (x - x[0]) / (x[-1] - x[0])
    down = (falling[0] - falling) / height
    distance = down - across * down[-1]
    best = int(np.argmax(distance))
    return best if distance[best] > 0.05 else None
