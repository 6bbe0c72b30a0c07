"""Pairs: samples of two counters whose misses were in flight at the same time.

Two counters of one event with different periods sometimes take samples within one reorder window:
these show which misses overlap, which a single counter cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hmd.estimate.page_index import PageKeys
from hmd.trace.trace import Samples, Trace

MOST_PAIRS = 1 << 22
"""Most pairs, more are thinned: a chance from so many has an error of 0.001."""


@dataclass(frozen=True, slots=True)
class Near:
    """Definition of a pair: loads less than ``within`` apart on one CPU, in ``order``.

    Without instruction counts, loads less than half an idle latency apart: a full window waits for
    longer. With one counter there are no pairs: apparent ones are due to a coarse clock or chance.
    """

    order: Literal["instructions", "time_ns"] | None
    within: int

    @classmethod
    def of(cls, trace: Trace, reorder_window: int, waiting_ns: float) -> Near:
        """Return the definition for a run; an outline suffices."""
        if trace.samples.instructions.any():
            return cls("instructions", reorder_window)
        return cls("time_ns" if trace.about.get("pairs") else None, int(waiting_ns))

    def pairs(
        self, samples: Samples, load: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the rows of pairs among ``load``, each the next after the other on its CPU."""
        if self.order is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        known = load & (samples.instructions > 0) if self.order == "instructions" else load
        rows = np.flatnonzero(known)
        place = getattr(samples, self.order)[rows]
        sequence = np.lexsort((place, samples.cpu[rows]))
        rows, place = rows[sequence], place[sequence]
        cpu, address = samples.cpu[rows], samples.address[rows]
        apart = place[1:] - place[:-1]
        # The same access, sampled by both counters, is no pair.
        same = (apart == 0) & (address[1:] == address[:-1])
        first = np.flatnonzero((cpu[1:] == cpu[:-1]) & (apart < self.within) & ~same)
        return rows[first], rows[first + 1]


@dataclass(frozen=True, slots=True)
class FoundPairs:
    """Pairs' pages and windows, columns of shape ``(pairs,)``; each stands for ``one_of``."""

    key_a: PageKeys
    key_b: PageKeys
    window: npt.NDArray[np.int32]
    one_of: int = 1

    def take(self, rows: slice) -> FoundPairs:
        """Return the selected pairs."""
        return FoundPairs(self.key_a[rows], self.key_b[rows], self.window[rows], self.one_of)


class PairCollector:
    """Gathers pairs batch by batch; of more than ``most``, every n-th."""

    def __init__(self, near: Near, most: int = MOST_PAIRS) -> None:
        self._near, self._most = near, most
        self._parts: list[FoundPairs] = []
        self._seen = self._kept = 0
        self._one_of = 1

    def add(
        self,
        samples: Samples,
        keys: PageKeys,
        window: npt.NDArray[np.int32],
        load: npt.NDArray[np.bool_],
    ) -> None:
        """Add a batch's pairs; those across two batches, one in thousands, are missed."""
        first, second = self._near.pairs(samples, load)
        kept = slice(-self._seen % self._one_of, None, self._one_of)
        self._seen += len(first)
        first, second = first[kept], second[kept]
        self._parts.append(FoundPairs(keys[first], keys[second], window[first]))
        self._kept += len(first)
        while self._kept > self._most:
            self._parts = [_thinned(self._parts, 2)]
            self._kept, self._one_of = len(self._parts[0].window), self._one_of * 2

    def found(self) -> FoundPairs:
        """Return the pairs."""
        whole = _thinned(self._parts, 1)
        return FoundPairs(whole.key_a, whole.key_b, whole.window, self._one_of)


def _thinned(parts: list[FoundPairs], step: int) -> FoundPairs:
    if not parts:
        return FoundPairs(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int32))
    return FoundPairs(
        np.concatenate([part.key_a for part in parts])[::step],
        np.concatenate([part.key_b for part in parts])[::step],
        np.concatenate([part.window for part in parts])[::step],
    )
