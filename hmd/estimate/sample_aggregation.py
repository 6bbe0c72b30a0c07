"""Aggregation of a run's samples by window, page and access class, batch by batch.

Takes batches of samples in about the order of time; returns at most one row per page, window and
class. Memory is bounded by the program's footprint, not by the length of the recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hmd.estimate.page_index import PageKeys, page_keys
from hmd.estimate.windows import Windows
from hmd.sample.access_batch import Kind
from hmd.trace.trace import Samples

_ACCESS_BITS = 2
_MERGE_ROWS = 1 << 18
"""Pending rows of a window before they are aggregated; at least as many as it has."""


class AccessClass(IntEnum):
    """Class of a row: answered by memory, or prefetched."""

    LOAD = 0
    STORE = 1
    STREAMED_LOAD = 2
    STREAMED_STORE = 3


def access_of(samples: Samples, floor_ns: float) -> npt.NDArray[np.int8]:
    """Return the ``AccessClass`` of each sample: below ``floor_ns`` its line was prefetched."""
    store = samples.kind == Kind.STORE
    # Sources without latencies of stores leave them 0.
    floor = np.where(store, max(floor_ns, 1.0), floor_ns)
    return np.asarray(store + 2 * (samples.weight_ns < floor), np.int8)


@dataclass(frozen=True, slots=True)
class AggregatedSamples:
    """Aggregated samples, columns of shape ``(rows,)``, in order of window, page and access.

    ``samples`` fell on the page of ``key``; ``accesses`` are those that they stand for.
    """

    window: npt.NDArray[np.int32]
    key: PageKeys
    access: npt.NDArray[np.int8]
    samples: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float64]

    def take(self, rows: slice) -> AggregatedSamples:
        """Return the selected rows."""
        return AggregatedSamples(
            self.window[rows],
            self.key[rows],
            self.access[rows],
            self.samples[rows],
            self.accesses[rows],
        )


class _OneWindow:
    """Rows of one window: aggregated and pending ones."""

    def __init__(self) -> None:
        self._key: list[PageKeys] = []
        self._samples: list[npt.NDArray[np.int32]] = []
        self._accesses: list[npt.NDArray[np.float64]] = []
        self._rows, self._merge_at = 0, _MERGE_ROWS

    def add(self, key: PageKeys, accesses: npt.NDArray[np.float64]) -> None:
        """Add samples, one each."""
        self._key.append(key)
        self._samples.append(np.ones(len(key), np.int32))
        self._accesses.append(accesses)
        self._rows += len(key)
        if self._rows >= self._merge_at:
            self.merge()

    def merge(self) -> tuple[PageKeys, npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Aggregate rows by key; return all rows, in order."""
        key = np.concatenate(self._key)
        order = np.argsort(key)
        key = key[order]
        begins = np.flatnonzero(np.diff(key, prepend=key[:1] + np.uint64(1)))
        samples = np.add.reduceat(np.concatenate(self._samples)[order], begins)
        accesses = np.add.reduceat(np.concatenate(self._accesses)[order], begins)
        self._key, self._samples, self._accesses = [key[begins]], [samples], [accesses]
        self._rows = len(begins)
        self._merge_at = max(_MERGE_ROWS, 2 * self._rows)
        return self._key[0], samples, accesses


class SampleAggregator:
    """Aggregates the samples of one run."""

    def __init__(self, windows: Windows) -> None:
        self._windows = len(windows)
        self._by_window: dict[int, _OneWindow] = {}

    def add(
        self, samples: Samples, window: npt.NDArray[np.int32], access: npt.NDArray[np.int8]
    ) -> None:
        """Add a batch."""
        key = page_keys(samples) << np.uint64(_ACCESS_BITS) | access.astype(np.uint64)
        accesses = samples.period.astype(np.float64)
        if np.any(window[1:] < window[:-1]):
            order = np.argsort(window, kind="stable")
            window, key, accesses = window[order], key[order], accesses[order]
        edges = np.searchsorted(window, np.arange(self._windows + 1))
        for number in np.flatnonzero(np.diff(edges)).tolist():
            inside = slice(edges[number], edges[number + 1])
            self._by_window.setdefault(number, _OneWindow()).add(key[inside], accesses[inside])

    def rows(self) -> AggregatedSamples:
        """Return the aggregated samples."""
        numbers = sorted(self._by_window)
        parts = [self._by_window[number].merge() for number in numbers]
        if not parts:
            return AggregatedSamples(
                np.empty(0, np.int32),
                np.empty(0, np.uint64),
                np.empty(0, np.int8),
                np.empty(0, np.int32),
                np.empty(0),
            )
        key = np.concatenate([key for key, _, _ in parts])
        return AggregatedSamples(
            np.repeat(np.array(numbers, np.int32), [len(key) for key, _, _ in parts]),
            key >> np.uint64(_ACCESS_BITS),
            (key & np.uint64((1 << _ACCESS_BITS) - 1)).astype(np.int8),
            np.concatenate([samples for _, samples, _ in parts]).astype(np.int32),
            np.concatenate([accesses for _, _, accesses in parts]),
        )
