"""Where the time of a layout goes: by phase of the run, and by region of its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.estimate.layout import Layout
from hmd.estimate.layout_estimate import Estimate
from hmd.estimate.memory_regions import MemoryRegions

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
