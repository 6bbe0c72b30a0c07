# SPDX-License-Identifier: MIT
"""Breakdown of an estimate by phase and region, and the check that traces are compatible."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hmd.base.errors import UsageError
from hmd.estimate import (
    Interval,
    build_model,
    by_phase,
    by_region,
    check,
    find_regions,
    index_pages,
    layout,
    over_pairs,
    side_by_side,
)
from hmd.sample.access_batch import Samples
from hmd.trace.trace import Ending, Trace

PAGE = 4096


@pytest.mark.parametrize("windows", [1, 7, 10, 60])
def test_phases_sum_equals_estimate(slow_run: Trace, fast_run: Trace, windows: int) -> None:
    runs = side_by_side(slow_run, fast_run, windows=windows)
    found = build_model(runs).estimate(layout.interleaved(runs.pages, 0.3))
    phases = by_phase(found, runs.slow.ns, runs.fast.ns)
    assert len(phases) == min(windows, 10)
    assert sum(p.runtime_ns for p in phases) == pytest.approx(found.runtime_ns)
    assert sum(p.all_slow_ns for p in phases) == pytest.approx(400e6)
    assert sum(p.all_fast_ns for p in phases) == pytest.approx(200e6)
    assert [p.from_ns for p in phases[1:]] == [p.to_ns for p in phases[:-1]]


def test_region_saving_equals_model_difference(slow_run: Trace, fast_run: Trace) -> None:
    runs = side_by_side(slow_run, fast_run)
    model = build_model(runs)
    heap_fast = layout.in_ranges(runs.pages, [(0, 50 * PAGE)])
    regions = find_regions(slow_run, runs.pages)
    assert regions.name == ("[heap]", "anon 64000-fa000")
    accesses = np.bincount(model.page, model.accesses, model.pages).astype(np.float64)
    ordered = by_region(regions, accesses, heap_fast, model.estimate)
    found = {region.name: region for region in ordered}
    heap, anon = found["[heap]"], found["anon 64000-fa000"]
    assert heap.access_share + anon.access_share == pytest.approx(1)
    assert heap.access_share == pytest.approx(0.5, abs=0.01)
    assert heap.fast_share == pytest.approx(heap_fast.sum() / heap.pages)
    assert anon.fast_share == 0
    whole_heap = layout.in_ranges(runs.pages, [(0, 100 * PAGE)])
    now, then = (model.estimate(chosen).runtime_ns for chosen in (heap_fast, whole_heap))
    assert heap.saves_ns == pytest.approx(now - then)
    # The greatest saving comes first; only so many are listed.
    assert ordered == [anon, heap]
    assert len(by_region(regions, accesses, heap_fast, model.estimate, most=1)) == 1


def test_regions_mappings_change_merged_by_overlap(
    trace_of: Callable[..., Trace], mappings_of: Callable[..., Any]
) -> None:
    trace = trace_of([(t, t) for t in (1, 5, 6, 11, 12, 20, 21, 30, 5000, 5001, 9000)], 99)
    trace = replace(
        trace,
        mappings=(
            mappings_of(0, [(0, 2, "/bin/sh"), (5, 6, ""), (20, 21, "")]),
            mappings_of(1, [(4, 7, ""), (11, 12, "/lib/c"), (12, 13, "/lib/c"), (21, 25, "")]),
            mappings_of(2, [(4, 6, ""), (30, 31, "[stack]")]),
        ),
    )
    pages = index_pages(trace)
    regions = find_regions(trace, pages)
    named = {
        int(at) // PAGE: regions.name[of]
        for at, of in zip(pages.address, regions.of_page, strict=True)
    }
    assert named == {
        1: "/bin/sh",
        5: "anon 4000-7000",
        6: "anon 4000-7000",
        11: "/lib/c",
        12: "/lib/c",
        20: "anon 14000-15000",
        21: "anon 15000-19000",
        30: "[stack]",
        # No snapshot has these: neighbours are together.
        5000: "1388000-138a000",
        5001: "1388000-138a000",
        9000: "2328000-2329000",
    }


def test_regions_same_address_in_two_processes_two_regions(
    trace_of: Callable[..., Trace], mappings_of: Callable[..., Any]
) -> None:
    trace = trace_of([(1, 7), (2, 7)], 3, processes=2)
    trace.samples.process[1] = 1
    both = tuple(mappings_of(0, [(7, 8, "[heap]")], process) for process in (0, 1))
    regions = find_regions(replace(trace, mappings=both), index_pages(trace))
    assert regions.name == ("[heap]", "[heap]")
    assert regions.process == (0, 1)
    assert regions.of_page.tolist() == [0, 1]


def test_check_compatible_traces_no_warnings(slow_run: Trace, fast_run: Trace) -> None:
    assert check(slow_run, fast_run) == []


def about(trace: Trace, **changed: Any) -> Trace:
    return replace(trace, about={**trace.about, **changed})


@pytest.mark.parametrize(
    ("slow", "fast", "message"),
    [
        ({"clock": "modelled"}, {}, "SLOW has modelled time and FAST monotonic"),
        ({"tier": "fast"}, {}, "both recorded with --tier fast"),
        ({}, {"tier": "slow"}, "both recorded with --tier slow"),
        ({"tier": "fast"}, {"tier": "slow"}, "name the slow one first"),
    ],
)
def test_check_incompatible_traces_refused(
    slow_run: Trace, fast_run: Trace, slow: dict[str, str], fast: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        check(about(slow_run, **slow), about(fast_run, **fast))
    assert "\n" not in str(refused.value)


def test_check_slow_run_without_samples_refused(slow_run: Trace, fast_run: Trace) -> None:
    with pytest.raises(UsageError, match=r"a\.hmdt has no samples"):
        check(replace(slow_run, samples=Samples.empty()), fast_run, ("a.hmdt", "b.hmdt"))


def test_check_doubtful_fast_run_one_warning(slow_run: Trace, fast_run: Trace) -> None:
    (warning,) = check(slow_run, about(fast_run, command=["./other"]))
    assert "different commands" in warning
    (warning,) = check(slow_run, replace(fast_run, ending=Ending(0, 200, 137)))
    assert "exit code 137" in warning
    (warning,) = check(slow_run, replace(fast_run, ending=Ending(0, 500_000_000, 0)))
    assert "took longer" in warning
    (warning,) = check(slow_run, replace(fast_run, samples=Samples.empty()))
    assert "FAST has no samples" in warning


def test_over_pairs_one_pair_keeps_its_intervals() -> None:
    alone = [Interval(100.0, 90.0, 110.0), Interval(200.0, 200.0, 200.0)]
    assert over_pairs([alone]) == alone


def test_over_pairs_scatter_of_runs_widens_the_interval() -> None:
    ends = [Interval(200.0, 200.0, 200.0), Interval(50.0, 50.0, 50.0)]
    alike = over_pairs([[Interval(100.0, 98.0, 102.0), *ends]] * 3)
    assert alike[0] == Interval(100.0, 98.0, 102.0)
    apart = over_pairs(
        [
            [Interval(100.0 * factor, 98.0 * factor, 102.0 * factor)]
            + [replace(each, runtime_ns=each.runtime_ns * factor) for each in ends]
            for factor in (0.95, 1.0, 1.05)
        ]
    )
    assert apart[0].runtime_ns == pytest.approx(100.0)
    # 5 % of scatter in six degrees of freedom: 2.45 x 5 % x sqrt(4/3).
    assert apart[0].high_ns - 100.0 == pytest.approx(14.1, abs=0.5)
    # Two pairs say less of it.
    fewer = over_pairs([[Interval(100.0 * factor, 0, 0), *ends] for factor in (0.95, 1.05)])
    assert fewer[0].low_ns < 90.0
