# SPDX-License-Identifier: MIT
"""Where the time of a layout goes: by phase of the run, and by region of its memory.

The interval of an estimate, of about 90 %.

Two errors add up. The sampling error is found by resampling (the Poisson bootstrap, Chamandy et
al., 2012), at the cost of ``DRAWS`` layouts. The model error is that on the benchmark programs:
nine of ten of their layouts lie within. It is largest half-way between the recorded runs, which
the model reproduces exactly: half-way in gain, and in slow accesses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hmd.estimate.layout import Layout, MemoryRegions
from hmd.estimate.model import Estimate, RuntimeModel, sum_cells

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


def by_phase(
    estimate: Estimate, slow_ns: Floats, fast_ns: Floats, phases: int = PHASES
) -> list[Phase]:
    """Return stretches of equally many windows, with the times of both runs and the estimate.

    ``slow_ns`` and ``fast_ns`` have shape ``(windows,)``.
    """
    windows = len(slow_ns)
    edges = np.unique(np.arange(phases + 1) * windows // phases)
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
GAIN_ERROR = 0.03
"""Standard error of the model half-way between the runs, as a share of the fast run's gain."""
RUNTIME_ERROR = 0.004
"""The same as a share of the runtime, which remains if there is little to gain."""
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A runtime and the bounds that hold the true one in about nine of ten cases, ns."""

    runtime_ns: float
    low_ns: float
    high_ns: float


def interval(model: RuntimeModel, layout: Layout, seed: int = 1) -> Interval:
    """Return the estimate of a layout with its interval."""
    mass = model.slow_mass((~layout).astype(np.float32))
    runtime = model.price(mass).runtime_ns
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(DRAWS):
        times = (rng.poisson(model.samples) / model.samples).astype(np.float32)
        accesses = model.accesses * times
        total = sum_cells(model.page, accesses, model.begin, model.pages)
        resampled = replace(model, accesses=accesses, total=total)
        drawn.append(resampled.estimate(layout).runtime_ns)
    sampling = float(np.std(drawn)) if len(model.accesses) else 0.0
    slow, fast = float(model.figures.slow_ns.sum()), float(model.figures.fast_ns.sum())
    gain = abs(slow - fast)
    part = np.clip((runtime - min(slow, fast)) / gain, 0.0, 1.0) if gain > 0 else 0.0
    slow_share = np.clip(mass.cells.sum() / max(float(model.total.sum()), 1e-12), 0.0, 1.0)
    of_gain = GAIN_ERROR * gain * 2 * np.sqrt(part * (1 - part))
    of_runtime = RUNTIME_ERROR * runtime * 2 * np.sqrt(slow_share * (1 - slow_share))
    half = _WIDTH * float(np.linalg.norm([sampling, of_gain, of_runtime]))
    # Rounding errors of a layout that was recorded.
    half = half if half > 1e-6 * runtime else 0.0
    return Interval(runtime, runtime - half, runtime + half)
