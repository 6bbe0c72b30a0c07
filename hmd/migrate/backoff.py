# SPDX-License-Identifier: MIT
"""Exponential backoff of pages that failed to move.

A page pinned for a device or shared with another process fails every time, and every attempt costs
a call and breaks up a batch. Each failure doubles the wait of its page; a page without another
failure for as long again as its last wait is forgotten. At most ``max_pages`` are remembered: those
that expire first are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_SHIFT
from hmd.linux.procfs import ProcessId

_ADDRESS_BITS: Final = 45  # of a page number: 57-bit addresses of five-level page tables
_MAX_FAILURES: Final = 30
_NO_KEYS: Final = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """First and longest wait of a page; of ``max_pages`` at most."""

    first_wait_s: float = 2.0
    max_wait_s: float = 600.0
    max_pages: int = 65536


class RetryBackoff:
    """A set of (process, page) with expiry, as flat arrays sorted by key."""

    def __init__(self, settings: BackoffSettings) -> None:
        self._settings = settings
        self._process_numbers: dict[ProcessId, int] = {}
        self._next_number = 0
        self._key = _NO_KEYS
        self._end_s = np.empty(0, np.float64)
        self._failures = np.empty(0, np.int16)

    def __len__(self) -> int:
        """Return how many pages are remembered, waiting or not."""
        return len(self._key)

    def find_waiting(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64], now_s: float
    ) -> npt.NDArray[np.bool_]:
        """Return which of the pages must wait; shape as ``addresses``."""
        waits = np.zeros(len(addresses), np.bool_)
        if process in self._process_numbers and len(self._key):
            at, found = self._find(self._keys(process, addresses))
            waits[found] = self._end_s[at[found]] > now_s
        return waits

    def add(self, process: ProcessId, addresses: npt.NDArray[np.uint64], now_s: float) -> None:
        """Count a failure of each page; each waits from now on."""
        if not len(addresses):
            return
        # Forgets pages without a failure since their wait ended, once that is as long ago.
        self._select(self._end_s + self._wait_s(self._failures) > now_s)
        keys = np.unique(self._keys(process, addresses))
        at, found = self._find(keys)
        self._failures[at[found]] = np.minimum(self._failures[at[found]] + 1, _MAX_FAILURES)
        self._end_s[at[found]] = now_s + self._wait_s(self._failures[at[found]])
        fresh = ~found
        failures = np.ones(int(fresh.sum()), np.int16)
        self._insert(keys[fresh], now_s + self._wait_s(failures), failures)

    def forget(self, process: ProcessId) -> None:
        """Drop all pages of a process that has gone."""
        number = self._process_numbers.pop(process, None)
        if number is not None:
            self._select(self._key >> np.uint64(_ADDRESS_BITS) != number)

    def _keys(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.uint64]:
        if process not in self._process_numbers:
            taken = set(self._process_numbers.values())
            while self._next_number in taken:
                self._next_number = (self._next_number + 1) % (1 << (64 - _ADDRESS_BITS))
            self._process_numbers[process] = self._next_number
        pages = (addresses >> np.uint64(PAGE_SHIFT)) & np.uint64((1 << _ADDRESS_BITS) - 1)
        return pages | np.uint64(self._process_numbers[process] << _ADDRESS_BITS)

    def _find(
        self, keys: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        at = np.searchsorted(self._key, keys)
        found = np.zeros(len(keys), np.bool_)
        inside = at < len(self._key)
        found[inside] = self._key[at[inside]] == keys[inside]
        return at, found

    def _wait_s(self, failures: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
        waits = self._settings.first_wait_s * np.exp2(failures.astype(np.float64) - 1.0)
        return np.minimum(waits, self._settings.max_wait_s)

    def _insert(
        self,
        keys: npt.NDArray[np.uint64],
        end_s: npt.NDArray[np.float64],
        failures: npt.NDArray[np.int16],
    ) -> None:
        key = np.concatenate((self._key, keys))
        order = np.argsort(key, kind="stable")
        self._key = key[order]
        self._end_s = np.concatenate((self._end_s, end_s))[order]
        self._failures = np.concatenate((self._failures, failures))[order]
        surplus = len(self._key) - self._settings.max_pages
        if surplus > 0:
            keep = np.ones(len(self._key), np.bool_)
            keep[np.argsort(self._end_s, kind="stable")[:surplus]] = False
            self._select(keep)

    def _select(self, rows: npt.NDArray[np.bool_]) -> None:
        if rows.all():
            return
        self._key = self._key[rows]
        self._end_s = self._end_s[rows]
        self._failures = self._failures[rows]
        present = set(np.unique(self._key >> np.uint64(_ADDRESS_BITS)).tolist())
        self._process_numbers = {
            process: number
            for process, number in self._process_numbers.items()
            if number in present
        }
