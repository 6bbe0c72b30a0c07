"""The pages of one or two runs, numbered densely: what layouts and counts are arrays over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.trace.streaming import TraceSource
from hmd.trace.trace import Samples, Trace
from hmd.units import PAGE_BYTES

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
        """Return the number of pages."""
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


def distinct(keys: PageKeys) -> PageKeys:
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
    first: the pages of every other sample of the first are known. Outlines suffice.
    """
    own, other = page_keys(first.samples), page_keys(second.samples)
    if len(own) < 2 or not len(other):
        return True
    known = distinct(own[::2])
    return bool(_found(other, known) >= _found(own[1::2], known) / 2)


def _found(keys: PageKeys, known: PageKeys) -> float:
    """Return the share of known keys."""
    ordered = np.sort(keys)  # lookups in order are many times faster
    place = np.minimum(np.searchsorted(known, ordered), len(known) - 1)
    return float(np.mean(known[place] == ordered))
