"""Windows of moves: the kernels at the start and the end of a gap in which a tensor moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hmd.tensors.planner import StepProblem
from hmd.tensors.tensor_spans import TensorSpans
from hmd.tensors.tensor_trace import Floats, Ints

_SLACK: Final = 2.0
"""A window is so many times as long as a move, where it has the kernels."""


@dataclass(frozen=True, slots=True)
class ResidencyOptions:
    """What a residency may be.

    ``window`` is the number of kernels next to a use in which a tensor may move, 15 in AutoTM.
    ``synchronous``: kernels wait for moves. ``static``: tensors never move. ``whole``: tensors move
    as a whole, and the program has integers. ``capacity`` and ``bandwidth`` are the shares of the
    fastest tier and of the links that the model may use.
    """

    window: int = 15
    synchronous: bool = False
    static: bool = False
    whole: bool = True
    capacity: float = 1.0
    bandwidth: float = 1.0


@dataclass(frozen=True, slots=True)
class MoveWindow:
    """The kernels in which a move takes place, and the share of the tensor that each carries."""

    kernels: Ints
    shares: Floats


def gap_windows(
    problem: StepProblem, spans: TensorSpans, options: ResidencyOptions
) -> tuple[tuple[MoveWindow, MoveWindow], ...]:
    """Return the windows out of and back into the fastest tier of each gap."""
    trace, system = problem.trace, problem.system
    rates = [system.bandwidth(1, inwards=way) for way in (False, True)]
    latency = system.latency_seconds(1)
    windows = []
    for row, length in enumerate(spans.gap_kernels(trace.kernels).tolist()):
        before, after = int(spans.before[row]), int(spans.after[row])
        size = float(trace.tensor_bytes[spans.tensor[before]])
        start, end = (int(spans.last[before]) + 1) % trace.kernels, int(spans.first[after])
        if options.synchronous or options.static:
            out = MoveWindow(np.array([start]), np.ones(1))
            windows.append((out, MoveWindow(np.array([end]), np.ones(1))))
            continue
        out_s, in_s = (latency + size / rate for rate in rates)
        half = max(length // 2, 1)
        leaving = _take(problem, (start, 1), min(half, options.window), _SLACK * out_s)
        most = min(length - len(leaving), options.window)
        coming = _take(problem, (end - 1, -1), most, _SLACK * in_s)[::-1]
        windows.append((_window(problem, leaving), _window(problem, coming)))
    return tuple(windows)


def _take(problem: StepProblem, way: tuple[int, int], most: int, least_s: float) -> Ints:
    """Return kernels along ``way``, a start and a step, until they take ``least_s``."""
    kernels: list[int] = []
    total = 0.0
    while len(kernels) < most and (total < least_s or not kernels):
        kernel = (way[0] + way[1] * len(kernels)) % problem.trace.kernels
        kernels.append(kernel)
        total += float(problem.trace.kernel_seconds[kernel])
    return np.array(kernels, np.int64)


def _window(problem: StepProblem, kernels: Ints) -> MoveWindow:
    times = problem.trace.kernel_seconds[kernels] + 1e-12
    return MoveWindow(kernels, times / times.sum())
