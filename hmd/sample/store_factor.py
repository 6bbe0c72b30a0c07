"""By how much more rarely stores are sampled where most of their records say nothing.

Store events count all stores (Intel's mem_inst_retired.all_stores), and a record of one that hit
the first-level cache shows no access to memory. It costs its program as much as any other record
(:mod:`hmd.sample.record_cost`), so that a program with few misses would spend all that records may
take on stores that hit. Takes the records of each read; gives a factor for the period of stores,
with which records of hits are at most about half of all records.

A lower bound would hide what streams write: their first store of a line misses and brings it, the
others hit, and no load shows that memory.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 16
"""The largest factor."""

_ENOUGH: Final = 64
"""Records between two changes, at least."""
_SHARE_MOST: Final = 1 / 2
_SHARE_LEAST: Final = 1 / 8
"""Shares of records of hits in all records at which the factor doubles and halves."""


class StoreFactor:
    """``value`` multiplies the period of stores; a power of two from 1 to ``MOST``."""

    def __init__(self) -> None:
        self.value = 1
        self._records = self._hits = 0

    def update(self, records: int, hits: int) -> bool:
        """Add the records of a read, and those among them of stores that hit the first-level cache.

        Returns whether the value has changed.
        """
        self._records += records
        self._hits += hits
        if self._records < _ENOUGH:
            return False
        share = self._hits / self._records
        self._records = self._hits = 0
        before = self.value
        if share > _SHARE_MOST:
            self.value = min(2 * before, MOST)
        elif share < _SHARE_LEAST:
            self.value = max(before // 2, 1)
        return self.value != before
