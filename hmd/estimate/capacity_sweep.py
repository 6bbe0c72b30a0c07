# SPDX-License-Identifier: MIT
"""Runtime by fast-tier capacity, at the cost of a few layouts, and the knee of the curve.

Pages join the fast tier in an order, usually hottest first. One pass over the rows sorts their
accesses into steps of capacity; each step is then priced from sums. The same samples must not both
order the pages and price them, or sampling noise counts as heat: order pages by one run
(``PageIndex.accesses``, the slow run's), and price with the other's (``fast_samples``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.estimate.breakdown import around
from hmd.estimate.cost import add_by_step
from hmd.estimate.model import RuntimeModel, SlowMass


@dataclass(frozen=True, slots=True)
class CapacitySweep:
    """The curve, from nothing fast to all fast; columns of shape ``(steps + 1,)``.

    ``low_ns`` and ``high_ns`` bound each runtime, by the model's error without that of sampling.
    ``knee`` is the step beyond which more capacity saves little; None if the curve is flat or has
    no knee.
    """

    fast_pages: npt.NDArray[np.int64]
    runtime_ns: npt.NDArray[np.float64]
    low_ns: npt.NDArray[np.float64]
    high_ns: npt.NDArray[np.float64]
    knee: int | None

    @property
    def fast_bytes(self) -> npt.NDArray[np.int64]:
        """Capacity of the fast tier."""
        return self.fast_pages * PAGE_BYTES

    def within(self, share: float) -> tuple[int, int]:
        """Return the first step that is at most this share (0.05: 5 %) above all-fast.

        By the runtime, and by its upper bound: the first may be too little, the second suffices.
        """
        enough = self.runtime_ns[-1] * (1 + share)
        # The last step is all fast: what its own bound allows is known to be so.
        surely = np.append(self.high_ns[:-1] <= enough, True)
        return int(np.argmax(self.runtime_ns <= enough)), int(np.argmax(surely))


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
    runtime, low, high = np.empty((3, steps + 1))
    left = model.total.copy()
    for now in range(steps + 1):
        left = np.maximum(left - fast[now], 0.0)
        a, b = (step_a > now).astype(np.float32), (step_b > now).astype(np.float32)
        mass = SlowMass(left, a, b)
        bounds = around(model, model.price(mass).runtime_ns, mass)
        runtime[now], low[now], high[now] = bounds.runtime_ns, bounds.low_ns, bounds.high_ns
    return CapacitySweep(
        fast_pages, runtime, low, high, find_knee(fast_pages.astype(np.float64), runtime)
    )


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
