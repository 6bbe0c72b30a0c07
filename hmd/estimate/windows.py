# SPDX-License-Identifier: MIT
"""Cutting two runs of one program into windows that match, and these into threads.

Window i of one run is matched with window i of the other: equal parts of each run's own span,
of its time, its accesses or its instructions (Denoyelle et al., ISC 2022, section 3).

What a thread does in a window is a part. A run takes as long as its slowest thread wherever its
threads wait for each other, so that each is priced by itself. Threads are those of the samples, or
the CPUs of the emulated machine, whose samples name no threads; those of two runs match in order of
their numbers, which is that of their creation. How long each ran in a window is in the trace
(``ThreadProgress``); a run without it, or with other threads than its counterpart, is priced as one
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.sample.access_batch import Samples
from hmd.trace.trace import ThreadProgress, Trace


class CutBy(StrEnum):
    """Quantity that the windows are equal parts of."""

    TIME = "time"
    ACCESSES = "accesses"
    INSTRUCTIONS = "instructions"


@dataclass(frozen=True, slots=True)
class Windows:
    """Cuts of a run: ``edges_ns``, shape ``(windows + 1,)``, since ``begin_ns``."""

    begin_ns: int
    edges_ns: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.edges_ns) - 1

    @property
    def ns(self) -> npt.NDArray[np.float64]:
        """Length of each window, ``(windows,)``."""
        return np.diff(self.edges_ns)

    def of(self, time_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the window of each time of the trace's clock; those outside are in the nearest."""
        since_ns = time_ns.astype(np.float64) - float(self.begin_ns)
        return np.searchsorted(self.edges_ns[1:-1], since_ns, side="right").astype(np.int32)


def cut(trace: Trace, count: int, by: CutBy = CutBy.TIME) -> Windows:
    """Return a run in ``count`` windows; their lengths add up to its runtime.

    A thinned trace suffices. Raises UsageError if it is to be cut by
    instructions and has no counts of them.
    """
    runtime = float(trace.runtime_ns)
    if by is CutBy.INSTRUCTIONS:
        return Windows(trace.begin_ns, _by_instructions(trace, count))
    begin_ns = min(trace.begin_ns, _first(trace))
    if by is CutBy.TIME or not len(trace.samples):
        return Windows(begin_ns, np.linspace(0.0, runtime, count + 1))
    time_ns = (trace.samples.time_ns - np.uint64(begin_ns)).astype(np.float64)
    passed = np.cumsum(trace.samples.period, dtype=np.float64)
    # A window ends where the next begins; the first begins with the run, the last ends with it.
    before = passed - trace.samples.period
    begins = np.searchsorted(before, passed[-1] * np.arange(1, count) / count, side="left")
    inner = time_ns[np.minimum(begins, len(time_ns) - 1)]
    return Windows(begin_ns, np.concatenate([[0.0], inner, [max(runtime, time_ns[-1])]]))


def _by_instructions(trace: Trace, count: int) -> npt.NDArray[np.float64]:
    """Return the times of equal instruction counts, interpolated between counts."""
    at_ns, executed = _instructions(trace)
    inner = np.interp(executed[-1] * np.arange(1, count) / count, executed, at_ns)
    return np.concatenate([[0.0], inner, [float(trace.runtime_ns)]])


def _instructions(trace: Trace) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return times since the run's start, and the instructions of all processes by then.

    It starts at 0 instructions, and ends with the run.
    """
    progress, runtime = trace.progress, float(trace.runtime_ns)
    if progress is None or not progress.instructions.any():
        raise UsageError(
            "a trace has no instruction counts ('hmd trace info' says why): "
            "cut by time or by accesses"
        )
    since_ns = progress.time_ns.astype(np.float64) - float(trace.begin_ns)
    since_ns = np.clip(since_ns, 0.0, runtime)
    curves = []
    for process in np.unique(progress.process):
        rows = progress.process == process
        own_ns = np.concatenate([[0.0], since_ns[rows]])
        executed = np.concatenate([[0.0], progress.instructions[rows].astype(np.float64)])
        # Extrapolated counts may decrease slightly.
        curves.append(_between(trace, int(process), own_ns, np.maximum.accumulate(executed)))
    at_ns = np.unique(np.concatenate([[0.0, runtime], *(own_ns for own_ns, _ in curves)]))
    return at_ns, sum((np.interp(at_ns, *curve) for curve in curves), np.zeros(len(at_ns)))


def _between(
    trace: Trace, process: int, at_ns: npt.NDArray[np.float64], executed: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return a process's curve with points at its samples, if those have their CPU's count.

    The recorder's polls give the instructions between two polls; the counts of its CPUs at samples
    give their distribution in between.
    """
    time_ns, passed = _passed(trace, process)
    if not len(passed):
        return at_ns, executed
    at_polls = np.interp(at_ns, time_ns, passed)
    poll = np.searchsorted(at_ns, time_ns, side="right") - 1
    inside = np.flatnonzero((poll >= 0) & (poll < len(at_ns) - 1))
    inside = inside[np.diff(at_polls)[poll[inside]] > 0]
    poll, time_ns, passed = poll[inside], time_ns[inside], passed[inside]
    share = (passed - at_polls[poll]) / np.diff(at_polls)[poll]
    point = executed[poll] + share * np.diff(executed)[poll]
    at_ns = np.concatenate([at_ns, time_ns])
    order = np.argsort(at_ns, kind="stable")
    return at_ns[order], np.maximum.accumulate(np.concatenate([executed, point])[order])


def _passed(trace: Trace, process: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return times of a process's samples, and its CPUs' counts since its first ones there."""
    samples = trace.samples
    rows = np.flatnonzero((samples.process == process) & (samples.instructions > 0))
    rows = rows[np.lexsort((samples.time_ns[rows], samples.cpu[rows]))]
    counted, cpu = samples.instructions[rows].astype(np.float64), samples.cpu[rows]
    step = np.diff(counted, prepend=counted[:1])
    step[1:][cpu[1:] != cpu[:-1]] = 0
    time_ns = samples.time_ns[rows].astype(np.float64) - float(trace.begin_ns)
    order = np.argsort(time_ns, kind="stable")
    return time_ns[order], np.cumsum(np.maximum(step[order], 0))


def _first(trace: Trace) -> int:
    return int(trace.samples.time_ns[0]) if len(trace.samples) else trace.begin_ns


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
