"""Overlapping misses in a core: a small simulation that corrects the rule of thumb.

The rule (``hmd.estimate.overlap``) has one limit, the reorder window. Two more matter:

Fill buffers. A core with N of them has at most N misses in flight. If a window holds more, both
recorded runs always wait for buffers, and the runtime follows the mean latency.

Bursts. After a wait for a slow miss the window is empty, and as many misses as it holds are issued
at once rather than one by one. So if the program waits for misses only, an isolated slow miss costs
less than the difference in latency, by up to half a fast latency.

The simulated core issues misses at even distances into a window, each into a free buffer, and
waits if the oldest is not complete, as cores since the P6 do (Karkhanis and Smith, A First-Order
Superscalar Processor Model, ISCA 2004). Tables hold the factors for the rule.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Float64s, kernel

Floats = npt.NDArray[np.float64]

IN_FLIGHT: Floats = np.concatenate(
    [[1.0, 4.0, 6.0], np.arange(8.0, 18.0, 0.5), [18.5, 20.0, 22.0, 25.0, 30.0, 40.0, 64.0]]
)
"""Misses per window: the tables' rows."""

CHANCES = 16
"""Columns: chances of a miss to be slow, (i / (CHANCES - 1)) squared, so that small ones are near
each other."""

_MISSES = 4000
_ISSUE_SHARE = 0.2
"""Time of a window's instructions without a miss, as a share of a fast latency."""
_UNLIMITED = 128.0


@kernel
def _run(
    latency_ns: Float64s,
    done_ns: Float64s,
    buffer_ns: Float64s,
    held: float,
    window_ns: float,
) -> float:
    """Return the time of these misses in ns; ``done_ns`` and ``buffer_ns`` are work space."""
    apart_ns = window_ns / held
    stalled = 0.0
    oldest = 0
    buffer_ns[:] = 0.0
    for i in range(len(latency_ns)):
        while oldest < i and oldest + held <= i:
            leaves = (oldest + held) * apart_ns + stalled
            if done_ns[oldest] > leaves:
                stalled += done_ns[oldest] - leaves
            oldest += 1
        start = i * apart_ns + stalled
        free = 0
        for b in range(1, len(buffer_ns)):
            if buffer_ns[b] < buffer_ns[free]:
                free = b
        start = max(start, buffer_ns[free])
        done_ns[i] = start + latency_ns[i]
        buffer_ns[free] = done_ns[i]
    return len(latency_ns) * apart_ns + stalled


@lru_cache(maxsize=8)
def tables(slow_ns: float, fast_ns: float, buffers: int) -> tuple[Floats, Floats]:
    """Return two tables of factors for the rule, each of shape ``(len(IN_FLIGHT), CHANCES)``.

    In the first, other waits hide the savings of bursts; in the second, all waits are for memory.
    ``slow_ns`` and ``fast_ns`` are the tiers' latencies.
    """
    drawn = np.random.default_rng(1).permutation((np.arange(_MISSES) + 0.5) / _MISSES)
    chance = (np.arange(CHANCES) / (CHANCES - 1)) ** 2
    latency = [np.where(drawn < p, slow_ns, fast_ns) for p in chance.tolist()]
    chance = np.array([np.mean(drawn < p) for p in chance.tolist()])
    done = np.zeros(_MISSES)
    hidden, bare = np.ones((2, len(IN_FLIGHT), CHANCES))
    for row, held in enumerate(IN_FLIGHT.tolist()):
        rule = chance * held / (1 + (held - 1) * chance)
        limited, unlimited = (
            _gains(latency, done, np.zeros(count), held, fast_ns * _ISSUE_SHARE)
            for count in (buffers, int(min(held + 1, _UNLIMITED)))
        )
        hidden[row, 1:] = np.minimum(limited[1:] / unlimited[1:], 1.0)
        bare[row, 1:] = np.minimum(limited[1:] / rule[1:], 1.0)
    hidden[:, 0], bare[:, 0] = hidden[:, 1], bare[:, 1]
    return hidden, bare


def _gains(
    latency: list[npt.NDArray[np.float64]],
    done: npt.NDArray[np.float64],
    buffer: npt.NDArray[np.float64],
    held: float,
    window_ns: float,
) -> Floats:
    """Return a core's time between all-fast (0) and all-slow (1), by the chance of a slow miss."""
    took = np.array([_run(each, done, buffer, held, window_ns) for each in latency])
    return np.asarray((took - took[0]) / (took[-1] - took[0]))
