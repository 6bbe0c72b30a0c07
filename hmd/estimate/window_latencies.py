"""Latencies of loads by window: their mean, and that of loads without queueing.

A measured latency (PEBS's weight) starts when the load's address is known, so it includes the wait
for a fill buffer. The lowest fifth of a window's loads did not wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.estimate.sample_aggregation import AccessClass, access_of
from hmd.estimate.windows import Windows
from hmd.trace.trace import Trace

Floats = npt.NDArray[np.float64]

_LEAST = 0.2
_FEWEST = 10  # loads of a window that speak for it
_PRIOR_SAMPLES = 3.0


def mean_latency(loads: Floats, load_ns: Floats) -> Floats:
    """Return the mean by window, ``(windows,)``, from numbers of loads and sums of latencies.

    Windows with few loads are drawn to the mean of all; 0 if no latency was recorded.
    """
    mean_ns = load_ns.sum() / max(loads.sum(), 1.0)
    return np.asarray((load_ns + _PRIOR_SAMPLES * mean_ns) / (loads + _PRIOR_SAMPLES))


def least_latency(trace: Trace, windows: Windows, floor_ns: float) -> Floats:
    """Return the latency that a fifth of a window's loads stay below, ``(windows,)``.

    An outline suffices. Windows with few loads have that of all; 0 if none was recorded.
    """
    samples = trace.samples
    load = (access_of(samples, floor_ns) == AccessClass.LOAD) & (samples.weight_ns > 0)
    weight_ns = samples.weight_ns[load].astype(np.float64)
    if not len(weight_ns):
        return np.zeros(len(windows))
    window = windows.of(samples.time_ns[load])
    weight_ns = weight_ns[np.lexsort((weight_ns, window))]
    loads = np.bincount(window, minlength=len(windows))
    begins = np.cumsum(loads) - loads
    place = np.minimum(begins + (loads * _LEAST).astype(np.int64), len(weight_ns) - 1)
    least_ns = np.where(loads < _FEWEST, np.quantile(weight_ns, _LEAST), weight_ns[place])
    return np.asarray(least_ns)
