# SPDX-License-Identifier: MIT
"""Cutting two runs of one program into windows that match.

Window i of one run is matched with window i of the other: equal parts of each run's own span,
of its time, its accesses or its instructions (Denoyelle et al., ISC 2022, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.trace.trace import Trace


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
        """Return the number of windows."""
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
