# SPDX-License-Identifier: MIT
"""A run's samples by part, page and class of access, and pairs of samples close together.

Takes batches of samples in about the order of time; returns at most one row per page, part (what
one thread does in a window) and class. Memory is bounded by the program's footprint, not by the
length of the recording.

Two counters of one event with different periods sometimes take samples within one reorder window:
such pairs show which misses overlap, which a single counter cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.sample.access_batch import Kind, Samples
from hmd.trace.reader import TraceSource
from hmd.trace.trace import Trace

PageKeys: TypeAlias = npt.NDArray[np.uint64]
"""Pages of all processes as numbers that sort by process and address."""

_PAGE_BITS = 45
"""Of page numbers: addresses have 57 bits at most (those of the kernel begin with ones)."""


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Sampled pages in order of process and address, columns of shape ``(pages,)``.

    ``accesses`` is the number of accesses that the samples of the first run stand for.
    """

    process: npt.NDArray[np.uint16]
    address: npt.NDArray[np.uint64]
    accesses: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.address)

    @classmethod
    def of(cls, keys: PageKeys, accesses: npt.NDArray[np.float64]) -> PageIndex:
        """Return the index of pages by their keys, which are in order."""
        page = keys & np.uint64((1 << _PAGE_BITS) - 1)
        process = (keys >> np.uint64(_PAGE_BITS)).astype(np.uint16)
        return cls(process, page * np.uint64(PAGE_BYTES), accesses)


def page_keys(samples: Samples) -> PageKeys:
    """Return the page of each sample."""
    page = samples.address // np.uint64(PAGE_BYTES) & np.uint64((1 << _PAGE_BITS) - 1)
    return np.asarray(page | samples.process.astype(np.uint64) << np.uint64(_PAGE_BITS))


def sort_distinct(keys: PageKeys) -> PageKeys:
    """Return distinct keys in order; for millions, faster than hashing."""
    ordered = np.sort(keys)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] + np.uint64(1)))]


def index_pages(recording: TraceSource) -> PageIndex:
    """Return the pages of one run's samples."""
    keys, accesses = np.empty(0, np.uint64), np.empty(0)
    for batch in recording.batches():
        each = np.concatenate([accesses, batch.period])
        keys, found = np.unique(np.concatenate([keys, page_keys(batch)]), return_inverse=True)
        accesses = np.bincount(found, each, len(keys)).astype(np.float64)
    return PageIndex.of(keys, accesses)


def same_addresses(first: Trace, second: Trace) -> bool:
    """Return whether two runs placed the same things at the same addresses.

    False if samples of the second run fall on known pages less than half as often as those of the
    first: the pages of every other sample of the first are known. Thinned traces suffice.
    """
    own, other = page_keys(first.samples), page_keys(second.samples)
    if len(own) < 2 or not len(other):
        return True
    known = sort_distinct(own[::2])
    return bool(_found(other, known) >= _found(own[1::2], known) / 2)


def _found(keys: PageKeys, known: PageKeys) -> float:
    ordered = np.sort(keys)  # lookups in order are many times faster
    place = np.minimum(np.searchsorted(known, ordered), len(known) - 1)
    return float(np.mean(known[place] == ordered))


_ACCESS_BITS = 2
_MERGE_ROWS = 1 << 18
"""Samples of a part that are added before they are merged; at least as many as it has rows."""


class AccessClass(IntEnum):
    """Class of a row: answered by memory, or prefetched."""

    LOAD = 0
    STORE = 1
    STREAMED_LOAD = 2
    STREAMED_STORE = 3


def classify_accesses(samples: Samples, floor_ns: float) -> npt.NDArray[np.int8]:
    """Return the ``AccessClass`` of each sample: below ``floor_ns`` its line was prefetched."""
    store = samples.kind == Kind.STORE
    # Sources without latencies of stores leave them 0.
    floor = np.where(store, max(floor_ns, 1.0), floor_ns)
    return np.asarray(store + 2 * (samples.latency_ns < floor), np.int8)


@dataclass(frozen=True, slots=True)
class AggregatedSamples:
    """Aggregated samples, columns of shape ``(rows,)``, in order of part, page and access.

    ``samples`` fell on the page of ``key``; ``accesses`` are those that they stand for.
    """

    part: npt.NDArray[np.int32]
    key: PageKeys
    access: npt.NDArray[np.int8]
    samples: npt.NDArray[np.int32]
    accesses: npt.NDArray[np.float64]


_Columns: TypeAlias = tuple[PageKeys, npt.NDArray[np.int32], npt.NDArray[np.float64]]
"""Keys, samples and accesses of rows of one part."""


def _merge(parts: list[_Columns]) -> _Columns:
    """Return one row per key, in order."""
    key = np.concatenate([keys for keys, _, _ in parts])
    order = np.argsort(key)
    key = key[order]
    begins = np.flatnonzero(np.diff(key, prepend=key[:1] + np.uint64(1)))
    samples = np.add.reduceat(np.concatenate([each for _, each, _ in parts])[order], begins)
    accesses = np.add.reduceat(np.concatenate([each for _, _, each in parts])[order], begins)
    return key[begins], samples, accesses


class SampleAggregator:
    """Aggregates the samples of one run."""

    def __init__(self, parts: int) -> None:
        self._parts: list[list[_Columns]] = [[] for _ in range(parts)]
        self._pending = [0] * parts

    def add(
        self, samples: Samples, part: npt.NDArray[np.int32], access: npt.NDArray[np.int8]
    ) -> None:
        """Add a batch."""
        key = page_keys(samples) << np.uint64(_ACCESS_BITS) | access.astype(np.uint64)
        accesses = samples.period.astype(np.float64)
        if np.any(part[1:] < part[:-1]):
            order = np.argsort(part, kind="stable")
            part, key, accesses = part[order], key[order], accesses[order]
        edges = np.searchsorted(part, np.arange(len(self._parts) + 1))
        for number in np.flatnonzero(np.diff(edges)).tolist():
            rows, parts = slice(edges[number], edges[number + 1]), self._parts[number]
            parts.append((key[rows], np.ones(len(key[rows]), np.int32), accesses[rows]))
            self._pending[number] += len(key[rows])
            if self._pending[number] >= max(_MERGE_ROWS, len(parts[0][0])):
                self._parts[number] = [_merge(parts)]
                self._pending[number] = 0

    def rows(self) -> AggregatedSamples:
        """Return the aggregated samples."""
        numbers = [number for number, parts in enumerate(self._parts) if parts]
        parts = [_merge(self._parts[number]) for number in numbers]
        nothing = np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0)
        keys, samples, accesses = zip(nothing, *parts, strict=True)
        key = np.concatenate(keys)
        return AggregatedSamples(
            np.repeat(np.array(numbers, np.int32), [len(key) for key in keys[1:]]),
            key >> np.uint64(_ACCESS_BITS),
            (key & np.uint64((1 << _ACCESS_BITS) - 1)).astype(np.int8),
            np.concatenate(samples).astype(np.int32),
            np.concatenate(accesses),
        )


MAX_PAIRS = 1 << 22
"""More are thinned: a chance from so many has an error of 0.001."""


@dataclass(frozen=True, slots=True)
class PairDefinition:
    """Definition of a pair: loads less than ``within`` apart on one CPU, in ``order``.

    Without instruction counts, loads less than half an idle latency apart: a full window waits for
    longer. With one counter there are no pairs: apparent ones are due to a coarse clock or chance.
    """

    order: Literal["instructions", "time_ns"] | None
    within: int

    @classmethod
    def of(cls, trace: Trace, reorder_window: int, waiting_ns: float) -> PairDefinition:
        """Return the definition for a run; a thinned trace suffices."""
        if trace.samples.instructions.any():
            return cls("instructions", reorder_window)
        return cls("time_ns" if trace.about.get("pairs") else None, int(waiting_ns))

    def find_pairs(
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
    """Pairs' pages and parts, columns of shape ``(pairs,)``; each stands for ``stride``."""

    key_a: PageKeys
    key_b: PageKeys
    part: npt.NDArray[np.int32]
    stride: int = 1

    @classmethod
    def empty(cls) -> FoundPairs:
        """Return no pairs."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int32))

    @classmethod
    def concatenated(cls, parts: Sequence[FoundPairs], stride: int = 1) -> FoundPairs:
        """Return all pairs of parts, at least one, as one of ``stride`` each."""
        columns = [[each.key_a for each in parts], [each.key_b for each in parts]]
        key_a, key_b = map(np.concatenate, columns)
        return cls(key_a, key_b, np.concatenate([each.part for each in parts]), stride)

    def take(self, rows: slice) -> FoundPairs:
        """Return the selected pairs."""
        return FoundPairs(self.key_a[rows], self.key_b[rows], self.part[rows], self.stride)


class PairCollector:
    """Gathers pairs batch by batch; of more than ``max_pairs``, every n-th."""

    def __init__(self, definition: PairDefinition, max_pairs: int = MAX_PAIRS) -> None:
        self._definition, self._max_pairs = definition, max_pairs
        self._parts = [FoundPairs.empty()]
        self._seen = self._kept = 0
        self._stride = 1

    def add(
        self,
        samples: Samples,
        keys: PageKeys,
        part: npt.NDArray[np.int32],
        load: npt.NDArray[np.bool_],
    ) -> None:
        """Add a batch's pairs; those across two batches, one in thousands, are missed."""
        first, second = self._definition.find_pairs(samples, load)
        kept = slice(-self._seen % self._stride, None, self._stride)
        self._seen += len(first)
        first, second = first[kept], second[kept]
        self._parts.append(FoundPairs(keys[first], keys[second], part[first]))
        self._kept += len(first)
        while self._kept > self._max_pairs:
            self._parts = [FoundPairs.concatenated(self._parts).take(slice(None, None, 2))]
            self._kept, self._stride = len(self._parts[0].part), self._stride * 2

    def found(self) -> FoundPairs:
        """Return the pairs."""
        return FoundPairs.concatenated(self._parts, self._stride)
