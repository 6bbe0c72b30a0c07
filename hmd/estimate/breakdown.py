# SPDX-License-Identifier: MIT
"""Where the time of a layout goes, by phase, region and capacity; the interval of an estimate.

The interval is of about 95 %, and two errors add up. The sampling error is found by resampling (the
Poisson bootstrap, Chamandy et al., 2012), at the cost of ``DRAWS`` layouts. The model error is that
on the benchmark programs: nine of ten of their layouts lie within. It is largest half-way between
the recorded runs, which the model reproduces exactly: half-way in gain, and in slow accesses.

For a curve over capacities pages join the fast tier in an order, usually hottest first. One pass
over the rows sorts their accesses into steps of capacity; each step is then priced from sums. The
same samples must not both order the pages and price them, or sampling noise counts as heat: order
pages by one run (``PageIndex.accesses``, the slow run's), and price with the other's
(``fast_samples``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.estimate.cost import add_by_step
from hmd.estimate.layout import Layout, MemoryRegions
from hmd.estimate.model import Estimate, RuntimeModel, SlowMass, sum_cells

PHASES = 10
REGIONS = 12

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the run; ``from_ns`` and ``to_ns`` are of the slow run, since its begin."""

    from_ns: float
    to_ns: float
    runtime_ns: float
    all_slow_ns: float
    all_fast_ns: float


@dataclass(frozen=True, slots=True)
class Region:
    """A region under a layout.

    ``access_share`` is its share of all accesses, ``fast_share`` the share of its sampled ``pages``
    in fast memory, ``saves_ns`` the time that the program saves with all of them there.
    """

    name: str
    process: int
    pages: int
    access_share: float
    fast_share: float
    saves_ns: float


def by_phase(estimate: Estimate, slow_ns: Floats, fast_ns: Floats) -> list[Phase]:
    """Return stretches of equally many windows, with the times of both runs and the estimate.

    ``slow_ns`` and ``fast_ns`` have shape ``(windows,)``.
    """
    windows = len(slow_ns)
    edges = np.unique(np.arange(PHASES + 1) * windows // PHASES)
    ends = np.concatenate([[0.0], np.cumsum(slow_ns)])
    return [
        Phase(
            float(ends[low]),
            float(ends[high]),
            float(estimate.window_ns[low:high].sum()),
            float(slow_ns[low:high].sum()),
            float(fast_ns[low:high].sum()),
        )
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]


def by_region(
    regions: MemoryRegions,
    accesses: Floats,
    layout: Layout,
    estimate: Callable[[Layout], Estimate],
    most: int = REGIONS,
) -> list[Region]:
    """Return the regions with most ``accesses``, ``(pages,)``, the greatest saving first.

    Costs one estimate per region.
    """
    now_ns = estimate(layout).runtime_ns
    total = max(float(accesses.sum()), 1e-12)
    of_region = np.bincount(regions.of_page, accesses, len(regions))
    found = []
    for number in np.argsort(-of_region, kind="stable")[:most].tolist():
        inside = regions.of_page == number
        found.append(
            Region(
                regions.name[number],
                regions.process[number],
                int(inside.sum()),
                float(of_region[number]) / total,
                float(layout[inside].mean()),
                now_ns - estimate(layout | inside).runtime_ns,
            )
        )
    return sorted(found, key=lambda region: -region.saves_ns)


DRAWS = 16
GAIN_ERROR = 0.05
"""Standard error of the model half-way between the runs, as a share of the fast run's gain."""
RUNTIME_ERROR = 0.004
"""The same as a share of the runtime, which remains if there is little to gain."""
PREDICTED_ERROR = 0.012
"""Of a run that was predicted, as a share of its runtime, beside what it may gain or lose."""
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A runtime and the bounds that hold the true one in 19 of 20 cases, ns."""

    runtime_ns: float
    low_ns: float
    high_ns: float


def interval(
    model: RuntimeModel, layout: Layout, drawn: Iterable[RuntimeModel] | None = None
) -> Interval:
    """Return the estimate of a layout with its interval, which the model's doubts widen.

    Several layouts may share the models ``drawn`` by :func:`resample`.
    """
    mass = model.slow_mass((~layout).astype(np.float32))
    runtime = model.price(mass).runtime_ns
    found = [each.estimate(layout).runtime_ns for each in drawn or resample(model)]
    sampling = float(np.std(found)) if len(model.accesses) else 0.0
    return around(model, runtime, mass, sampling)


def resample(model: RuntimeModel) -> Iterator[RuntimeModel]:
    """Yield the model with its samples drawn anew, ``DRAWS`` times."""
    rng = np.random.default_rng(1)
    for _ in range(DRAWS):
        times = (rng.poisson(model.samples) / model.samples).astype(np.float32)
        accesses = model.accesses * times
        total = sum_cells(model.page, accesses, model.begin, model.pages)
        yield replace(model, accesses=accesses, total=total)


def around(
    model: RuntimeModel, runtime_ns: float, mass: SlowMass, sampling_ns: float = 0.0
) -> Interval:
    """Return the interval of an estimate whose error by sampling is known."""
    windows = model.of_windows
    slow = float(windows.slow_ns.sum())
    fast = model.price(SlowMass(mass.cells * 0, mass.pair_a * 0, mass.pair_b * 0)).runtime_ns
    gain = abs(slow - fast)
    part = np.clip((runtime_ns - min(slow, fast)) / gain, 0.0, 1.0) if gain > 0 else 0.0
    slow_share = np.clip(mass.cells.sum() / max(float(model.total.sum()), 1e-12), 0.0, 1.0)
    between = np.linalg.norm([GAIN_ERROR, *(d.error for d in model.doubts if not d.predicted)])
    of_gain = between * gain * 2 * np.sqrt(part * (1 - part))
    of_run = sum(
        np.hypot(each.error * gain, PREDICTED_ERROR * runtime_ns)
        * (part if each.predicted == "slow" else 1 - part)
        for each in model.doubts
        if each.predicted
    )
    of_runtime = RUNTIME_ERROR * runtime_ns * 2 * np.sqrt(slow_share * (1 - slow_share))
    half = _WIDTH * float(np.linalg.norm([sampling_ns, of_gain, of_runtime, of_run]))
    # Rounding errors of a layout that was recorded.
    half = half if half > 1e-6 * runtime_ns else 0.0
    return Interval(runtime_ns, max(runtime_ns - half, 0.0), runtime_ns + half)


def over_pairs(found: Sequence[Sequence[Interval]]) -> list[Interval]:
    """Return intervals over several pairs of runs, which count their scatter from run to run.

    ``found`` has the same layouts for each pair, two of them the recorded ones. The scatter is
    that of all layouts, relative to their means, so that two pairs already show it.
    """
    runtime_ns = np.array([[each.runtime_ns for each in pair] for pair in found])
    half_ns = np.array([[each.high_ns - each.runtime_ns for each in pair] for pair in found])
    pairs, layouts = runtime_ns.shape
    mean_ns = runtime_ns.mean(0)
    freedom = max((pairs - 1) * min(layouts, 3), 1)
    scatter = np.sqrt((((runtime_ns / mean_ns) - 1) ** 2).sum() / max((pairs - 1) * layouts, 1))
    scatter_ns = _student(freedom) * scatter * np.sqrt(1 + 1 / pairs) * mean_ns
    half = np.hypot(half_ns.mean(0), scatter_ns if pairs > 1 else 0.0)
    bounds = np.stack([mean_ns, mean_ns - half, mean_ns + half], axis=1)
    return [Interval(*each) for each in bounds.tolist()]


def _student(freedom: int) -> float:
    """Return the 97.5th percentile of Student's t (Cornish and Fisher's expansion)."""
    z = 1.96
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


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
