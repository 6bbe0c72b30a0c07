# SPDX-License-Identifier: MIT
"""Aligned runs: windows, pairs of overlapping misses and classes of accesses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hmd.estimate import CutBy, TierSpeeds, side_by_side
from hmd.estimate.samples import AccessClass
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.sample.cpu_models import Core
from hmd.trace.trace import Trace

TraceOf = Callable[..., Trace]


def with_columns(trace: Trace, **changed: Sequence[int]) -> Trace:
    columns = {name: getattr(trace.samples, name).copy() for name in SAMPLE_COLUMNS}
    for name, values in changed.items():
        columns[name] = np.asarray(values, SAMPLE_COLUMNS[name])
    return replace(trace, samples=Samples(**columns))


def pairs(trace: Trace, **settings: Any) -> list[tuple[int, int]]:
    """Return the pairs' pages."""
    speeds = TierSpeeds(slow_latency_ns=300, fast_latency_ns=100)
    runs = side_by_side(trace, trace, windows=1, speeds=speeds, **settings)
    page = runs.pages.address // np.uint64(4096)
    a, b = page[runs.slow.pair_a], page[runs.slow.pair_b]
    return list(zip(a.tolist(), b.tolist(), strict=True))


def test_pairs_loads_of_one_cpu_within_reorder_window(trace_of: TraceOf) -> None:
    trace = with_columns(
        trace_of([(i, i) for i in range(6)], 10),
        instructions=[1000, 1200, 1424, 1500, 1600, 1700],
        cpu=[0, 0, 0, 1, 0, 0],
        kind=[Kind.LOAD, Kind.LOAD, Kind.LOAD, Kind.LOAD, Kind.STORE, Kind.LOAD],
        latency_ns=[300] * 6,
    )
    # 1424 is 224 after 1200: out of the window; 1500 is another CPU's, 1600 a store.
    assert pairs(trace) == [(0, 1)]
    assert pairs(trace, core=Core(512, 12)) == [(0, 1), (1, 2), (2, 5)]


def test_pairs_access_sampled_by_both_counters_left_out(trace_of: TraceOf) -> None:
    trace = trace_of([(1, 7), (1, 7), (1, 8)], 10)
    trace = with_columns(trace, instructions=[50, 50, 60], latency_ns=[300] * 3)
    assert pairs(trace) == [(7, 8)]


def test_pairs_without_instruction_counts_found_by_time(trace_of: TraceOf) -> None:
    trace = with_columns(
        trace_of([(0, 1), (0, 2), (0, 3)], 10), time_ns=[1000, 1040, 1090], latency_ns=[300] * 3
    )
    # Half of the least idle latency is 50 ns. One counter has no pairs, whatever its times.
    assert pairs(trace) == []
    assert pairs(replace(trace, about={**trace.about, "pairs": True})) == [(1, 2)]


@pytest.mark.parametrize(
    ("kind", "latency_ns", "access"),
    [
        (Kind.LOAD, 100, AccessClass.LOAD),
        (Kind.LOAD, 10, AccessClass.STREAMED_LOAD),
        (Kind.LOAD, 0, AccessClass.LOAD),  # of an event that counts misses and measures none
        (Kind.STORE, 100, AccessClass.STORE),
        (Kind.STORE, 0, AccessClass.STREAMED_STORE),
    ],
)
def test_access_class_by_kind_and_latency(
    trace_of: TraceOf, kind: Kind, latency_ns: int, access: AccessClass
) -> None:
    trace = with_columns(trace_of([(1, 1)], 10), kind=[kind], latency_ns=[latency_ns])
    run = side_by_side(trace, trace, windows=1, speeds=TierSpeeds(300, 100)).slow
    assert run.access.tolist() == [access]


def test_side_by_side_without_instruction_counts_cut_by_accesses(trace_of: TraceOf) -> None:
    # A start that does not miss takes 10 ms in both: cut in halves of time it would be the first
    # window of the fast run and a part of it in the slow one.
    slow, fast = trace_of([(10, 1), (20, 2)], 30), trace_of([(10, 1), (12, 2)], 14)
    runs = side_by_side(slow, fast, windows=2)
    assert runs.cut_by is CutBy.ACCESSES
    assert runs.slow.ns.tolist() == [20e6, 10e6]
    assert runs.fast.ns.tolist() == [12e6, 2e6]


def test_time_that_samples_took_is_left_out(slow_run: Trace, fast_run: Trace) -> None:
    took_ns = 4250.0
    dear = replace(slow_run, about={**slow_run.about, "record_ns": took_ns})
    without = side_by_side(slow_run, fast_run).slow.ns.sum()
    left = side_by_side(dear, fast_run).slow.ns.sum()
    assert without - left == pytest.approx(len(slow_run.samples) * took_ns)
