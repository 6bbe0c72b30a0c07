"""Samples of programs of any size: their pages are computed, not stored.

Pages are drawn over all processes together. ``zipf`` gives the page of rank r a weight of
r ** -0.99, and spreads ranks over memory; ``contiguous`` and ``scattered`` give 90 % of samples to
a tenth of the pages, which lie together or anywhere, ``sparse`` to one page in 1024, anywhere, and
``gibibyte`` to 1 GiB that lies together, however much memory there is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.scale.scaled_memory import BASE
from hmd.sample.access_batch import AccessBatch
from hmd.sample.capabilities import CAPABILITIES
from hmd.units import GIB, PAGE_BYTES

PATTERNS = ("zipf", "contiguous", "scattered")
PERIOD = 101
_EXPONENT = 0.99
_HOT_SHARE = 0.9
_HOT_PAGES = {"contiguous": 0.1, "scattered": 0.1, "sparse": 1 / 1024}
# An odd multiplier permutes the numbers below a power of two (Knuth, TAOCP 2, 3.2.1.2).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class ScaledSamples:
    """A source of ``count`` samples a tick over ``pages`` pages in all, of equal processes.

    ``pages`` is a power of two times the number of ``processes``. Every hot page lies ``shift`` of
    all memory further than at the start.
    """

    capabilities = CAPABILITIES["pmu"]

    def __init__(self, pattern: str, processes: int, pages: int, count: int, seed: int = 1) -> None:
        self.count, self.shift = count, 0.0
        self._pattern, self._pages = pattern, pages
        self._each = pages // processes
        self._random = np.random.default_rng(seed)

    def read(self) -> AccessBatch:
        """Draw a tick's samples."""
        n = self.count
        page = (self._drawn(n) + int(self.shift * self._pages)) % self._pages
        within = (page % self._each).astype(np.uint64)
        return AccessBatch.of(
            np.uint64(BASE) + within * np.uint64(PAGE_BYTES),
            (page // self._each).astype(np.int32),
            period=PERIOD,
        )

    def hottest(self, share: float) -> float:
        """Return the share of accesses that this share of pages has, the hottest ones."""
        if self._pattern == "zipf":
            rest = 1.0 - _EXPONENT
            return float(((share * self._pages) ** rest - 1.0) / (self._pages**rest - 1.0))
        hot = self._hot / self._pages
        return _HOT_SHARE * min(share / hot, 1.0) + (1.0 - _HOT_SHARE) * share

    def hot_addresses(self) -> npt.NDArray[np.uint64]:
        """Return the hot pages of one process where they lie together, from the first on."""
        page = self._pages // 2 + int(self.shift * self._pages) + np.arange(self._hot)
        return np.uint64(BASE) + (page % self._pages).astype(np.uint64) * np.uint64(PAGE_BYTES)

    @property
    def _hot(self) -> int:
        """The number of hot pages."""
        if self._pattern == "gibibyte":
            return GIB // PAGE_BYTES
        return int(self._pages * _HOT_PAGES[self._pattern])

    def _drawn(self, n: int) -> npt.NDArray[np.int64]:
        if self._pattern == "zipf":
            # The inverse of the continuous distribution.
            rest = 1.0 - _EXPONENT
            end = float(self._pages) ** rest
            rank = (1.0 + self._random.random(n) * (end - 1.0)) ** (1.0 / rest)
            return self._spread(np.minimum(rank, self._pages).astype(np.int64) - 1)
        page = self._random.integers(0, self._pages, n)
        hot = self._random.random(n) < _HOT_SHARE
        page[hot] = self._random.integers(0, self._hot, int(hot.sum()))
        if self._pattern in ("contiguous", "gibibyte"):
            # In the middle of memory, none of it on the fast node.
            return (page + self._pages // 2) % self._pages
        return self._spread(page)

    def _spread(self, rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the page of each rank, anywhere in memory; no two of the same."""
        wide = np.uint64((1 << int(self._pages - 1).bit_length()) - 1)
        spread = (rank.astype(np.uint64) * _SPREAD) & wide
        return (spread % np.uint64(self._pages)).astype(np.int64)
