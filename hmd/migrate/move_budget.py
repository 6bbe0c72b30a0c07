# SPDX-License-Identifier: MIT
"""What bounds a plan's moves: order and size of calls, budget, time, and pages that stay.

``TokenBucket`` is the migration budget in bytes: page copies take memory bandwidth from the
programs that they are to speed up. ``Throughput`` bounds the length of plans: a plan that exceeds
its time has made its demotions and deferred its promotions. So a policy receives the bytes that can
move in the time, as it receives its budget, and plans what pays most within both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.units import HUGE_PAGE_BYTES, PAGE_SHIFT
from hmd.linux.mappings import mappings_at
from hmd.linux.procfs import PROC, ProcessId
from hmd.linux.targets import SafeRegex
from hmd.policy.plan import Plan

UNLIMITED_BYTES: Final = 2**63 - 1
APPLY_TICKS: Final = 2
"""Ticks that a plan may take. A tick has a fixed cost, also after a plan that was cut off: where
hot sets change fast, plans of two ticks move more in total (docs/explanation/comparison.md)."""
_MEASURABLE_BYTES: Final = 256 << 10
"""The duration of a plan that moved less is mostly the fixed cost of its calls."""

Rows = npt.NDArray[np.intp]
PageFilter: TypeAlias = Callable[[ProcessId, npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]
"""Returns which pages of a process may move: a mask of the shape of the addresses."""


def is_uniform(column: npt.NDArray[Any]) -> bool:
    """Return whether all rows are equal, as they often are: a fraction of the time of a sort."""
    return not len(column) or bool((column == column[0]).all())


def move_sequence(plan: Plan) -> tuple[Rows, Rows]:
    """Return the order in which to move a plan's rows, and where each group begins in it.

    The plan's phases follow each other. Within a phase a group has pages of one process (that is
    move_pages(2)) and one target node, by rising address: an error of the whole call (a full node,
    a cpuset) is then an answer about that node, and the kernel, which migrates each run of pages
    with one target together, gets the longest possible runs.
    """
    by_address = np.argsort(plan.address)
    if not len(plan):
        return by_address, by_address
    if is_uniform(plan.phase) and is_uniform(plan.process) and is_uniform(plan.to_node):
        return by_address, np.zeros(1, np.intp)
    processes, nodes = int(plan.process.max()) + 1, int(plan.to_node.max()) + 1
    key = (plan.phase.astype(np.int64) * processes + plan.process) * nodes + plan.to_node
    # Integers of few bits are sorted digit by digit, in linear time.
    small = key.astype(np.min_scalar_type(int(key.max())))
    order = by_address.take(np.argsort(small.take(by_address), kind="stable"))
    return order, np.append(0, np.flatnonzero(np.diff(small.take(order))) + 1)


class BatchSize:
    """How many base pages to hand to one call, so that it blocks its target briefly.

    A process that accesses a page under migration waits for it, and each call also drains the LRU
    caches of all CPUs: few long calls delay the target, many short ones every process. The size
    doubles while calls are short, and falls at once to what the measured speed allows after a long
    one.
    """

    def __init__(self, min_pages: int, max_pages: int, call_target_s: float) -> None:
        if not 0 < min_pages <= max_pages:
            raise ValueError(f"no batch size lies between {min_pages} and {max_pages} pages")
        self._min = min_pages
        self._max = max_pages
        self._target_s = call_target_s
        self.pages = min_pages

    def observe(self, pages: int, seconds: float) -> None:
        """Adapt the size to a call of so many pages that took so long."""
        aim_s = self._target_s / 2
        fitting = self._max if seconds <= 0 else int(pages * aim_s / seconds)
        if fitting < self.pages:
            # The cost of a small call is mostly the LRU drain: no measure of large calls.
            if seconds > self._target_s or pages * 2 >= self.pages:
                self.pages = max(self._min, fitting)
        elif pages * 2 >= self.pages:
            self.pages = min(self._max, self.pages * 2, fitting)

    def count_fitting(self, page_counts: npt.NDArray[np.uint32]) -> int:
        """Return how many leading rows of these sizes fit one call; at least 1."""
        pages = np.cumsum(page_counts[: self.pages], dtype=np.int64)
        return max(1, int(np.searchsorted(pages, self.pages, "right")))


class TokenBucket:
    """Fills at ``rate_bytes_per_s`` up to the bytes of ``burst_s`` seconds, and starts full.

    Its capacity is at least one huge page: with a small rate none could be moved otherwise. A rate
    of None is no limit.
    """

    def __init__(self, rate_bytes_per_s: int | None, burst_s: float) -> None:
        if rate_bytes_per_s is not None and rate_bytes_per_s < 0:
            raise ValueError(f"a rate of {rate_bytes_per_s} bytes per second is negative")
        if burst_s < 0:
            raise ValueError(f"a burst of {burst_s} seconds is negative")
        self._rate = rate_bytes_per_s
        self._capacity = max((rate_bytes_per_s or 0) * burst_s, float(HUGE_PAGE_BYTES))
        self._tokens = self._capacity
        self._filled_s: float | None = None

    def available_bytes(self, now_s: float) -> int:
        """Return how many bytes may be moved now."""
        if self._rate is None:
            return UNLIMITED_BYTES
        if self._filled_s is not None:
            elapsed_s = max(0.0, now_s - self._filled_s)
            self._tokens = min(self._capacity, self._tokens + elapsed_s * self._rate)
        self._filled_s = now_s
        return max(0, int(self._tokens))

    def spend(self, moved_bytes: int) -> None:
        """Take bytes that were moved; an excess becomes a debt, which later fills pay first."""
        self._tokens -= moved_bytes


class Throughput:
    """The bytes that can be moved within ``limit_s``, from the plans that were applied."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._bytes_per_s: float | None = None

    def observe(self, moved_bytes: int, seconds: float) -> None:
        """Average the throughput with that of a plan, which counts half."""
        if moved_bytes < _MEASURABLE_BYTES or seconds <= 0:
            return
        speed = moved_bytes / seconds
        self._bytes_per_s = speed if self._bytes_per_s is None else (self._bytes_per_s + speed) / 2

    @property
    def bytes(self) -> int:
        """The bytes, at least a huge page; no limit before the first plan."""
        if self._bytes_per_s is None or isinf(self._limit_s):
            return UNLIMITED_BYTES
        return max(int(self._bytes_per_s * self._limit_s), HUGE_PAGE_BYTES)


class MovableMappings:
    """The filter of pages that stay: shared code, devices, kernel pages (``Mappings.movable``).

    Costs a query of about 2 µs per mapping that pages of a plan lie in.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._kept: dict[ProcessId, tuple[SafeRegex, ...]] = {}

    def set_kept(self, patterns: Mapping[ProcessId, tuple[SafeRegex, ...]]) -> None:
        """Keep pages where they are whose mapping's path matches a pattern of their process."""
        self._kept = dict(patterns)

    def __call__(
        self, process: ProcessId, addresses: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Return which of the pages lie in movable mappings."""
        mappings = mappings_at(process.pid, addresses, self._proc)
        if mappings is None:
            # maps needs no more rights than move_pages(2) does (PTRACE_MODE_READ; newer kernels
            # also accept CAP_PERFMON): the call reports why the process cannot be read.
            return np.ones(len(addresses), np.bool_)
        kept = self._kept.get(process)
        return (mappings.keeping(kept) if kept else mappings).movable_at(addresses)


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
    """Pages that failed to move, and until when each waits, as flat arrays sorted by key.

    A page pinned for a device or shared with another process fails every time, and every attempt
    costs a call and breaks up a batch. Each failure doubles the wait of its page; a page without
    another failure for as long again as its last wait is forgotten. Of more than ``max_pages``,
    those that expire first are dropped.
    """

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
