# SPDX-License-Identifier: MIT
"""Overlap of misses: pairs of samples, and the core's reorder window.

A reorder window holds K misses at once. The first of them that is slow makes the core wait; those
among the next K - 1 that are slow too are answered meanwhile and cost nothing more. So of a
stream of misses of which a share y is slow, a slow one begins a wait every K - 1 + 1/y misses:
waits are y / (1 + (K - 1) p) of the misses, where p is the chance that a miss is slow whose
neighbour within the window is (y where pages are placed independently, 1 where neighbours share
their page). With all slow, waits are 1/K of the misses; a chain of dependent misses has K = 1 and
is linear in y, as the published formula takes all programs to be.

K and p are measured by pairs (:mod:`hmd.estimate.samples`): a miss with K - 1 neighbours on
either side is in 2 (K - 1) / period pairs. K is that of a part (what one thread does in a window).
What the runs' times say corrects it: waits x difference in latency = difference in time. If pairs
predict fewer waits than that, some misses overlap with no neighbours (a chain, for example), and
the others with more.

That rule has one limit, the reorder window. Two more matter, and ``simulate_core`` corrects it for
them. It issues misses at even distances into a window, each into a free buffer, and waits if the
oldest is not complete, as cores since the P6 do (Karkhanis and Smith, A First-Order Superscalar
Processor Model, ISCA 2004).

- Fill buffers. A core with N of them has at most N misses in flight. If a window holds more, both
  recorded runs always wait for buffers, and the runtime follows the mean latency.
- Bursts. After a wait for a slow miss the window is empty, and as many misses as it holds are
  issued at once rather than one by one. So if the program waits for misses only, an isolated slow
  miss costs less than the difference in latency, by up to half a fast latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Float64s, kernel

_PRIOR_SAMPLES = 100.0  # samples by which a part starts with the pairs of all
_MAX_SCALE = 36.0  # of neighbours, where the runs' times show fewer waits
_MAX_ALONE = 0.9
_MIN_PAIRS = 50

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs in order of part: their pages and parts, of shape ``(pairs,)``.

    Each stands for ``stride``, where they were too many to keep.
    """

    page_a: npt.NDArray[np.int32]
    page_b: npt.NDArray[np.int32]
    part: npt.NDArray[np.int32]
    stride: float = 1.0

    def __len__(self) -> int:
        return len(self.page_a)

    @property
    def enough(self) -> bool:
        """False where no second counter ran, or too briefly."""
        return len(self) >= _MIN_PAIRS


@dataclass(frozen=True, slots=True)
class Overlap:
    """How the misses of each part, ``(parts,)``, overlap with all slow.

    ``alone`` is the share of misses that overlap with none, ``overlapping`` the number that each of
    the others overlaps with.
    """

    alone: Floats
    overlapping: Floats

    def waits_of_a_miss(self) -> Floats:
        """Return the waits of the core per miss, all slow."""
        return np.asarray(self.alone + (1 - self.alone) / (1 + self.overlapping))


def fit_neighbours(pairs: Pairs, sampled: Floats, period: float) -> Floats:
    """Return K - 1 by part from pairs, where the samples ``sampled`` are one in ``period``."""
    in_pairs = np.bincount(pairs.part, minlength=len(sampled)) * 2.0 * pairs.stride
    rate = in_pairs.sum() / max(float(sampled.sum()), 1.0)
    found = (in_pairs + _PRIOR_SAMPLES * rate) / (sampled + _PRIOR_SAMPLES)
    return np.asarray(found * period)


def fit_overlap(near: Floats, waits: Floats) -> Overlap:
    """Return the overlap of misses with ``near`` neighbours of which each takes ``waits``.

    Fewer waits than neighbours predict: all have more neighbours. More: a share of the misses has
    none, and the others have those of all.
    """
    waits = np.clip(waits, 1e-12, 1.0)
    # alone + rest / (1 + near / rest) = waits
    rest = near * (1 - waits) / np.maximum(near + waits - 1, 1e-12)
    more = waits > 1 / (1 + near)
    alone = np.where(more, np.clip(1 - rest, 0.0, _MAX_ALONE), 0.0)
    overlapping = (1 - alone) / np.maximum(waits - alone, 1e-12) - 1
    return Overlap(alone, np.clip(overlapping, 0.0, _MAX_SCALE * near / (1 - alone)))


def fit_overlap_to_times(waits: Floats) -> Overlap:
    """Return the overlap of misses that take ``waits`` each, without pairs."""
    overlapping = np.clip(1 / np.maximum(waits, 1e-9), 1.0, 64.0) - 1
    return Overlap(np.zeros(len(waits)), overlapping)


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
def simulate_core(slow_ns: float, fast_ns: float, buffers: int) -> tuple[Floats, Floats]:
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
