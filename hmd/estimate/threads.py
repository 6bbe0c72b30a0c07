# SPDX-License-Identifier: MIT
"""The threads of two runs, and what each of them does in a window: a part.

A run takes as long as its slowest thread wherever its threads wait for each other, so that each is
priced by itself. Threads are those of the samples, or the CPUs of the emulated machine, whose
samples name no threads; those of two runs match in order of their numbers, which is that of their
creation. How long each ran in a window is in the trace (``ThreadProgress``); a run without it, or
with other threads than its counterpart, is priced as one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.estimate.windows import Windows
from hmd.sample.access_batch import Samples
from hmd.trace.trace import ThreadProgress, Trace

MAX_THREADS = 64
_MIN_BUSY = 0.02
"""Threads that ran for a smaller share of the run are counted with others."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunThreads:
    """Threads of a run by number (of the CPU if ``by_cpu``), ascending; shape ``(threads,)``."""

    numbers: npt.NDArray[np.uint64]
    by_cpu: bool = False

    def __len__(self) -> int:
        """Return the number of threads, at least one."""
        return max(len(self.numbers), 1)

    def of(self, rows: Samples | ThreadProgress) -> npt.NDArray[np.int32]:
        """Return the thread of each row; one that is not listed counts as one next to it."""
        if len(self) == 1:
            return np.zeros(len(rows.time_ns), np.int32)
        place = np.searchsorted(self.numbers, _numbers(rows, by_cpu=self.by_cpu))
        return np.minimum(place, len(self) - 1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Parts:
    """A run cut into windows and threads; part ``window * threads + thread``."""

    windows: Windows
    threads: RunThreads

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.windows) * len(self.threads)

    def of(self, samples: Samples) -> npt.NDArray[np.int32]:
        """Return the part of each sample."""
        window = self.windows.of(samples.time_ns)
        return np.asarray(window * len(self.threads) + self.threads.of(samples), np.int32)

    def busy_ns(self, trace: Trace) -> Floats:
        """Return how long each part's thread ran, ``(parts,)``; of one thread, all the time."""
        ns, rows, count = self.windows.ns, trace.threads, len(self.threads)
        if count == 1 or rows is None:
            return ns.copy()
        edges_ns = np.append(0.0, np.cumsum(ns))
        busy_ns = np.empty((len(ns), count))
        numbers = _numbers(rows, by_cpu=self.threads.by_cpu)
        for thread, number in enumerate(self.threads.numbers):
            own = numbers == number
            at_ns = rows.time_ns[own].astype(np.float64) - float(self.windows.begin_ns)
            ran_ns = rows.busy_ns[own].astype(np.float64)
            order = np.lexsort((ran_ns, at_ns))
            at_ns, ran_ns = at_ns[order], np.maximum.accumulate(ran_ns[order])
            # It did not run before it began, at the latest as long before as it has run since.
            at_ns = np.append(max(at_ns[0] - ran_ns[0], 0.0), at_ns)
            busy_ns[:, thread] = np.diff(np.interp(edges_ns, at_ns, np.append(0.0, ran_ns)))
        return np.minimum(busy_ns, ns[:, None]).ravel()


def match_threads(slow: Trace, fast: Trace) -> tuple[RunThreads, RunThreads]:
    """Return the threads of both runs, equally many: one where they cannot be told apart."""
    found = _threads_of(slow), _threads_of(fast)
    same = len(found[0]) == len(found[1]) and found[0].by_cpu == found[1].by_cpu
    return found if same else (RunThreads(np.empty(0, np.uint64)),) * 2


def count_threads(trace: Trace) -> int:
    """Return the number of threads with a considerable share of the samples."""
    samples = trace.samples
    numbers = _numbers(samples, by_cpu=not samples.thread.any())
    _, sampled = np.unique(numbers, return_counts=True)
    return max(int((sampled >= _MIN_BUSY * len(numbers)).sum()), 1)


def share_of_turns(ns: Floats, busy_ns: Floats) -> tuple[Floats, Floats]:
    """Return by window, ``(windows,)``, how its threads' times, ``(parts,)``, make up its length.

    The first is the share of the others' time that passes while the busiest thread waits, as of
    threads that take turns or are slow in different places between two barriers; the second the
    time in which none runs, in ns.
    """
    busy_ns = busy_ns.reshape(len(ns), -1)
    busiest = busy_ns.max(1)
    others, rest = busy_ns.sum(1) - busiest, ns - busiest
    in_turn = np.clip(np.divide(rest, others, out=np.zeros(len(ns)), where=others > 0), 0.0, 1.0)
    return in_turn, rest - in_turn * others


def _threads_of(trace: Trace) -> RunThreads:
    rows = trace.threads
    if rows is None or not len(rows.time_ns):
        return RunThreads(np.empty(0, np.uint64))
    by_cpu = not rows.thread.any()
    numbers, place = np.unique(_numbers(rows, by_cpu=by_cpu), return_inverse=True)
    ran_ns = np.zeros(len(numbers))
    np.maximum.at(ran_ns, place, rows.busy_ns.astype(np.float64))
    busiest = np.argsort(-ran_ns, kind="stable")[:MAX_THREADS]
    kept = busiest[ran_ns[busiest] >= _MIN_BUSY * trace.runtime_ns]
    return RunThreads(np.sort(numbers[kept]), by_cpu)


def _numbers(rows: Samples | ThreadProgress, *, by_cpu: bool) -> npt.NDArray[np.uint64]:
    if by_cpu:
        return rows.cpu.astype(np.uint64)
    return rows.process.astype(np.uint64) << np.uint64(32) | rows.thread.astype(np.uint64)
