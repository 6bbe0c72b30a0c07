# SPDX-License-Identifier: MIT
"""The published estimator, exactly as described: the baseline.

Denoyelle, Perarnau, Iskra and Gerofi, ISC 2022 (differential tracing). For each window, with H
and D the slow run's sampled accesses to pages that the layout has in fast and in slow memory:

    T = t_slow - (t_slow - t_fast) * H / (H + D)   if t_slow > 1.03 * t_fast
    T = t_slow                                     otherwise, and in windows without samples
"""

from __future__ import annotations

import numpy as np

from hmd.estimate.layout import Layout
from hmd.estimate.model import Estimate
from hmd.estimate.runs import AlignedRuns

GUARD = 1.03
"""A window whose slow run is not longer than this many times its fast run gains nothing."""


def estimate(runs: AlignedRuns, layout: Layout) -> Estimate:
    """Return the runtime of a layout; windows are as the runs are cut, by time in the paper."""
    slow, fast, count = runs.slow, runs.fast, runs.windows
    window = slow.part // runs.threads
    total = np.bincount(window, slow.samples, count).astype(np.float64)
    hits = np.bincount(window, slow.samples * layout[slow.page], count)
    share = np.divide(hits, total, out=np.zeros(count), where=total > 0)
    gain = np.where(slow.ns > GUARD * fast.ns, slow.ns - fast.ns, 0.0)
    window_ns = slow.ns - gain * share
    return Estimate(float(window_ns.sum()), window_ns)
