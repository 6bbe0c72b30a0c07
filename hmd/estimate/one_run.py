# SPDX-License-Identifier: MIT
"""What one recorded run says of its memory: shares of accesses, and how long loads waited at most.

A runtime with other pages fast takes a second run: one run does not say which of its misses
overlapped, nor how long they would take in other memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.estimate.layout import Layout, MemoryRegions, heat_order
from hmd.estimate.samples import PageIndex
from hmd.sample.access_batch import Kind
from hmd.trace.reader import TraceSource


@dataclass(frozen=True, slots=True)
class AccessCurve:
    """The share of accesses to the hottest pages, by their number; columns of shape ``(n,)``."""

    pages: npt.NDArray[np.int64]
    access_share: npt.NDArray[np.float64]


def access_curve(pages: PageIndex, steps: int) -> AccessCurve:
    """Return the share of accesses to 0 to all pages, the hottest first, in ``steps`` steps."""
    ordered = np.append(0.0, np.cumsum(pages.accesses[heat_order(pages)]))
    number = np.unique(np.arange(steps + 1) * len(pages) // steps)
    return AccessCurve(number, ordered[number] / max(float(ordered[-1]), 1e-12))


def access_share(pages: PageIndex, chosen: Layout) -> float:
    """Return the share of accesses to chosen pages."""
    return float(pages.accesses[chosen].sum()) / max(float(pages.accesses.sum()), 1e-12)


def region_shares(pages: PageIndex, regions: MemoryRegions) -> list[tuple[str, int, int, float]]:
    """Return name, process, sampled pages and share of accesses of each region, largest first."""
    count = np.bincount(regions.of_page, minlength=len(regions))
    accesses = np.bincount(regions.of_page, pages.accesses, len(regions))
    share = accesses / max(float(accesses.sum()), 1e-12)
    return [
        (regions.name[n], regions.process[n], int(count[n]), float(share[n]))
        for n in np.argsort(-share, kind="stable").tolist()
    ]


def waiting_ns(recording: TraceSource) -> float:
    """Return the sum of all loads' latencies: their waiting if none overlapped; 0 if unknown."""
    total = 0.0
    for batch in recording.batches():
        load = batch.kind == Kind.LOAD
        total += float(np.dot(batch.latency_ns[load].astype(np.float64), batch.period[load]))
    return total
