# SPDX-License-Identifier: MIT
"""The published formula, compared with windows computed by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from bench.suite.published import estimate
from hmd.estimate import layout
from hmd.estimate.runs import side_by_side
from hmd.estimate.samples import index_pages
from hmd.estimate.windows import CutBy, cut
from hmd.trace.trace import Trace

PAGE = 4096
MS = 1_000_000


TraceOf = Callable[..., Trace]
RuntimeMs = Callable[..., float]


@pytest.fixture
def slow(trace_of: TraceOf) -> Trace:
    return trace_of([(1, 7), (2, 7), (3, 8), (11, 8), (12, 9), (35, 9)], 40)


@pytest.fixture
def fast(trace_of: TraceOf) -> Trace:
    return trace_of([(1, 7), (5, 8), (19, 9)], 20)


@pytest.fixture
def runtime_ms(slow: Trace, fast: Trace) -> RuntimeMs:
    def estimated(chosen: layout.Layout, windows: int, by: CutBy = CutBy.TIME) -> float:
        runs = side_by_side(slow, fast, windows=windows, cut_by=by)
        return estimate(runs, chosen).runtime_ns / MS

    return estimated


def test_published_one_window_equals_hand_computation(slow: Trace, runtime_ms: RuntimeMs) -> None:
    pages = index_pages(slow)
    assert pages.address.tolist() == [7 * PAGE, 8 * PAGE, 9 * PAGE]
    # Two of six accesses are fast: 40 - 20 * 2/6.
    only_7 = np.array([True, False, False])
    assert runtime_ms(only_7, 1) == pytest.approx(40 - 20 / 3)
    assert runtime_ms(layout.all_slow(pages), 1) == 40
    assert runtime_ms(layout.all_fast(pages), 1) == 20


def test_published_time_windows_equal_hand_computation(runtime_ms: RuntimeMs) -> None:
    # Four windows of 10 ms, fast 5 ms: shares 2/3, 0/2, no sample at all, 0/1.
    assert runtime_ms(np.array([True, False, False]), 4) == pytest.approx(10 - 5 * 2 / 3 + 30)
    # The empty window adds its slow time even where all is fast.
    assert runtime_ms(np.ones(3, np.bool_), 4) == pytest.approx(5 + 5 + 10 + 5)


def test_published_access_windows_equal_hand_computation(runtime_ms: RuntimeMs) -> None:
    # Halves of three accesses: slow 0-11 ms and 11-40 ms; fast: two accesses to 19 ms, then one.
    only_9 = np.array([False, False, True])
    assert runtime_ms(only_9, 2, CutBy.ACCESSES) == pytest.approx(11 + 29 - (29 - 1) * 2 / 3)


def test_published_window_gain_below_guard_ignored(trace_of: TraceOf) -> None:
    slow, fast = trace_of([(1, 1)], 103), trace_of([(1, 1)], 100)
    every = layout.all_fast(index_pages(slow))

    def estimated(slow: Trace) -> float:
        return estimate(side_by_side(slow, fast, windows=1, cut_by=CutBy.TIME), every).runtime_ns

    assert estimated(slow) == 103 * MS
    assert estimated(trace_of([(1, 1)], 104)) == 100 * MS


@pytest.mark.parametrize("by", [CutBy.TIME, CutBy.ACCESSES])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_cut_windows_sum_to_runtime(
    slow: Trace, fast: Trace, trace_of: TraceOf, by: CutBy, count: int
) -> None:
    for trace in (slow, fast, trace_of([], 5)):
        windows = cut(trace, count, by)
        assert len(windows) == count
        assert windows.ns.sum() == pytest.approx(trace.runtime_ns)
        assert (windows.ns >= 0).all()
        assert len(windows.of(trace.samples.time_ns)) == len(trace.samples)
