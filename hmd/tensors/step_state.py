# SPDX-License-Identifier: MIT
"""The arrays of the step simulator: what a step consists of, and where its pages are.

Pages of one tensor are interchangeable: a tensor is a row of counts, by where its pages are. The
fastest tier additionally keeps them in order of arrival, as runs of pages of one tensor. The
functions on these arrays are kernels (:mod:`hmd.base.numba_kernels`).

The CPU time of a block without what the compiler takes in it.

Kernels are compiled when they are first called,
once per installation: about a minute for all, which says nothing about a planner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy.typing as npt
from numba.core import event

Array = npt.NDArray[Any]

QUEUE_ROWS: Final = 1 << 15
"""Rows of one queue of moves; a power of two."""

MERGED_RUNS: Final = 4
"""Arrivals join a run of their tensor among so many newest: streams that alternate stay runs."""

MOST_SLOTS: Final = 64
"""Slots that are processed at once, where no page that a kernel waits for can arrive earlier."""

IDLE_SLOTS: Final = 1000
"""Slots without a page moved after which a kernel waits without end."""

IN: Final = 0
OUT: Final = 1

# Indices of StepInput.rules.
OVERLAP, KEEP_RUNNING, DROP_DEAD, WHOLE_PAGES, SYNCHRONOUS, IN_PLACE = range(6)
# Indices of StepInput.numbers.
SLOT_TICKS, ALLOCATED_PER_SLOT, FAULT_TICKS, SLOW_FAULT_TICKS, HERTZ, PAGE_BYTES = range(6)
# Indices of StepState.scalars.
NOW, SLOT, MISSING, KERNEL, HEAD, TAIL, UNUSED, ERROR, ERROR_TENSOR, QUEUED, SET_UP = range(11)
LIMIT: Final = SET_UP + 1
# Values of scalars[ERROR].
FINE, NO_ROOM, STUCK, QUEUE_OVERFLOW, RUNS_OVERFLOW, TOO_SLOW = range(6)


class StepInput(NamedTuple):
    """What a step consists of: K kernels, U uses, T tensors, N tiers, L links, M moves.

    ``paths`` (N, L) has the links between a tier and tier 0, padded by -1; ``link_rate`` (L, 2) is
    in pages per slot, in and out; ``link_half`` (L,) marks links that share one rate. ``setup``
    (N, 2) has the latency of a transaction between a tier and tier 0, in pages that its path
    carries meanwhile. ``fault_rate`` (2,) is in bytes per ms, from the second and from the last
    tier. ``price`` (N, 2) has ticks per page that a kernel reads and writes in place, and
    ``access`` (N,) ticks per operand.
    """

    ticks: Array
    profiled_faults: Array
    use_start: Array
    use_tensor: Array
    use_mode: Array
    pages: Array
    death_start: Array
    death_tensor: Array
    capacity: Array
    paths: Array
    link_rate: Array
    link_half: Array
    setup: Array
    fault_rate: Array
    price: Array
    access: Array
    move_start: Array
    move_tensor: Array
    move_to: Array
    move_pages: Array
    rules: Array
    numbers: Array


class StepState(NamedTuple):
    """Where pages are. Location N is "not allocated".

    ``rest`` (T, N+1) and ``inbound`` (T, N+1) count pages at rest, and on the way to tier 0 by
    source; ``leaving`` (T,) those of tier 0 that wait to leave. Queues: faults by source (1 to N),
    then moves ahead by source, then evictions by destination. ``queue_setup`` is what is left of
    the latency of each row, -1 before its first page.
    """

    rest: Array
    inbound: Array
    leaving: Array
    occupied: Array
    needed: Array
    queue_tensor: Array
    queue_pages: Array
    queue_setup: Array
    queue_ends: Array
    run_tensor: Array
    run_pages: Array
    run_links: Array
    tensor_run: Array
    credit: Array
    budget: Array
    scalars: Array
    log_times: Array
    log_occupied: Array
    log_moved: Array


class _Compiling(event.Listener):
    """Sums the CPU time between the outermost start and end of compilations, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._begin = 0.0

    def on_start(self, event: event.Event) -> None:
        """Note the begin of a compilation; a function compiles those that it calls."""
        if self._depth == 0:
            self._begin = time.process_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Note the end of a compilation."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.process_time() - self._begin


@dataclass
class PlanningTime:
    """The CPU time of this process in a block, without compilations."""

    begin: float
    compiling: _Compiling
    seconds: float = 0.0
    """The time of the whole block, known at its end."""

    def elapsed(self) -> float:
        """Return the seconds since the block began."""
        return time.process_time() - self.begin - self.compiling.seconds


@contextmanager
def planning_time() -> Iterator[PlanningTime]:
    """Measure a block."""
    spent = PlanningTime(time.process_time(), _Compiling())
    try:
        with event.install_listener("numba:compile", spent.compiling):
            yield spent
    finally:
        spent.seconds = spent.elapsed()
