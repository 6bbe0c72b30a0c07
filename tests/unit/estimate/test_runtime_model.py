# SPDX-License-Identifier: MIT
"""The runtime model: both recorded runs reproduced exactly, and windows computed by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hmd.estimate import (
    RuntimeModel,
    build_model,
    layout,
    side_by_side,
)
from hmd.estimate.model import SlowMass
from hmd.estimate.runs import STREAM_WINDOWS, WINDOWS, TierSpeeds, waits_for_streams
from hmd.estimate.samples import AccessClass
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.trace import InstructionProgress, Trace

ModelOf = Callable[..., RuntimeModel]


@pytest.mark.parametrize("fast_samples", [False, True])
@pytest.mark.parametrize("windows", [1, 7, 60])
def test_model_recorded_layouts_reproduce_both_runs(
    slow_run: Trace, fast_run: Trace, fast_samples: bool, windows: int
) -> None:
    runs = side_by_side(slow_run, fast_run, windows=windows)
    model = build_model(runs, fast_samples=fast_samples)
    slow = model.estimate(layout.all_slow(runs.pages))
    fast = model.estimate(layout.all_fast(runs.pages))
    assert slow.runtime_ns == pytest.approx(slow_run.runtime_ns, rel=1e-9)
    assert fast.runtime_ns == pytest.approx(fast_run.runtime_ns, rel=1e-9)
    assert slow.window_ns == pytest.approx(runs.slow.ns)
    assert fast.window_ns == pytest.approx(runs.fast.ns)


@pytest.mark.parametrize("left_out", ["latency_ns", "instructions", "both"])
@pytest.mark.parametrize("fast_samples", [False, True])
def test_model_missing_columns_reproduce_both_runs(
    slow_run: Trace, fast_run: Trace, fast_samples: bool, left_out: str
) -> None:
    names = ("latency_ns", "instructions") if left_out == "both" else (left_out,)

    def without(trace: Trace) -> Trace:
        columns = {name: getattr(trace.samples, name) for name in SAMPLE_COLUMNS}
        columns |= {name: np.zeros_like(columns[name]) for name in names}
        return replace(trace, samples=Samples(**columns))

    runs = side_by_side(without(slow_run), without(fast_run))
    model = build_model(runs, fast_samples=fast_samples)
    assert model.pairs.enough == ("instructions" not in names)
    ends = [model.estimate(f(runs.pages)).runtime_ns for f in (layout.all_slow, layout.all_fast)]
    assert ends == pytest.approx([slow_run.runtime_ns, fast_run.runtime_ns], rel=1e-9)


def test_model_windows_without_samples_reproduce_both_runs(trace_of: Callable[..., Trace]) -> None:
    slow, fast = trace_of([(1, 7), (2, 8), (39, 9)], 40), trace_of([(1, 7)], 20)
    for fast_samples in (False, True):
        runs = side_by_side(slow, fast, windows=10)
        model = build_model(runs, fast_samples=fast_samples)
        assert model.estimate(layout.all_slow(runs.pages)).runtime_ns == pytest.approx(40e6)
        assert model.estimate(layout.all_fast(runs.pages)).runtime_ns == pytest.approx(20e6)


def test_model_slower_fast_run_reproduces_both_runs(slow_run: Trace, fast_run: Trace) -> None:
    runs = side_by_side(fast_run, slow_run)
    model = build_model(runs)
    assert model.estimate(layout.all_slow(runs.pages)).runtime_ns == pytest.approx(200e6)
    assert model.estimate(layout.all_fast(runs.pages)).runtime_ns == pytest.approx(400e6)


def test_model_dependent_misses_linear_in_slow_share(model_of: ModelOf) -> None:
    model = model_of([10.0, 30.0, 60.0], k=1.0)
    # 300 ns of waits, of which the slow pages' share of the misses remains.
    for fast, share in ([1, 0, 0], 0.9), ([0, 1, 0], 0.7), ([1, 0, 1], 0.3):
        found = model.estimate(np.array(fast, np.bool_))
        assert found.runtime_ns == pytest.approx(100 + 300 * share)


def test_model_overlapping_misses_equal_hand_computation(model_of: ModelOf) -> None:
    # K = 3, y = 0.5, pages placed independently, p = y: 0.5 / (1 + 2 * 0.5) = 1/4 of the misses
    # begin a wait; with all slow 1/3 do. So 3/4 of 300 ns remain.
    model = model_of([50.0, 50.0], k=3.0, independent=True)
    found = model.estimate(np.array([True, False]))
    assert found.runtime_ns == pytest.approx(100 + 300 * 3 / 4)
    # y = 0.2: 0.2 / 1.4 = 1/7, times 3.
    model = model_of([80.0, 20.0], k=3.0, independent=True)
    found = model.estimate(np.array([True, False]))
    assert found.runtime_ns == pytest.approx(100 + 300 * 3 / 7)


def test_model_without_pairs_half_correlation_assumed(model_of: ModelOf) -> None:
    # K = 3, y = 0.5, p = (1 + y) / 2 = 0.75: 0.5 / 2.5 = 1/5, times 3.
    found = model_of([50.0, 50.0], k=3.0).estimate(np.array([True, False]))
    assert found.runtime_ns == pytest.approx(100 + 300 * 3 / 5)


def test_model_pairs_on_one_page_slow_together(model_of: ModelOf) -> None:
    # p = 1: 0.5 / 3 of the misses, half of all slow's, as if they did not overlap.
    model = model_of([50.0, 50.0], k=3.0, pairs=[(0, 0), (1, 1)] * 20_000)
    found = model.estimate(np.array([True, False]))
    assert found.runtime_ns == pytest.approx(100 + 300 / 2, rel=1e-2)


def test_model_pairs_on_two_pages_never_slow_together(model_of: ModelOf) -> None:
    # p = 0: every slow miss begins a wait, 0.5 of all misses, where 1/2 did with all slow (K = 2).
    model = model_of([50.0, 50.0], k=2.0, pairs=[(0, 1), (1, 0)] * 20_000)
    found = model.estimate(np.array([True, False]))
    assert found.runtime_ns == pytest.approx(100 + 300, rel=1e-2)


def test_model_sample_selection_rows_of_one_run(slow_run: Trace, fast_run: Trace) -> None:
    runs = side_by_side(slow_run, fast_run)
    both, fast = build_model(runs), build_model(runs, fast_samples=True)
    assert (both.samples.sum(), fast.samples.sum()) == (8000, 4000)
    assert [both.total.sum(), fast.total.sum()] == pytest.approx([199 * 4000] * 2)


def test_model_fast_run_rows_free_of_selection_bias(run_of: Callable[..., Trace]) -> None:
    # All pages are equally hot, so that half of them are half of the accesses; 400 samples of 200
    # pages differ by chance. Only the run that did not choose the pages is unbiased.
    def even(latency_ns: int, runtime_ms: float, seed: int) -> Trace:
        trace = run_of(latency_ns, runtime_ms, seed, samples=400)
        page = np.random.default_rng(seed).integers(0, 200, 400).astype(np.uint64)
        return replace(trace, samples=replace(trace.samples, address=page * np.uint64(4096)))

    runs = side_by_side(even(300, 400, 1), even(100, 200, 2))
    hot = layout.by_heat(runs.pages, len(runs.pages) // 2)

    model = build_model(runs, fast_samples=True)
    accesses = np.bincount(model.page, model.accesses, model.pages)
    assert runs.pages.accesses[hot].sum() / runs.pages.accesses.sum() > 0.7
    assert 0.4 < accesses[hot].sum() / accesses.sum() < 0.6


def test_model_traffic_beyond_the_fast_run_is_queues(slow_run: Trace, fast_run: Trace) -> None:
    """Queues are what the tier's traffic takes beyond the fast run and what loads explain."""
    runs = side_by_side(slow_run, fast_run, windows=1)
    lines = float(runs.slow.accesses.sum())
    stores = float(runs.slow.accesses[runs.slow.access != AccessClass.LOAD].sum())
    assert lines > stores > 0

    def queues(busy_ns: float) -> float:
        each = 64 * (lines + stores) / busy_ns
        speeds = TierSpeeds(slow_read_bytes_per_ns=each, slow_write_bytes_per_ns=each)
        of_slow = replace(runs.fast, page=runs.fast.page[:0])
        figures = build_model(replace(runs, speeds=speeds, fast=of_slow)).figures
        causes = [figures.waiting_ns[0], figures.holding_ns[0], figures.queueing_ns[0]]
        assert sum(causes) == pytest.approx(runs.slow.ns[0] - runs.fast.ns[0])
        assert min(causes) >= 0
        return float(causes[2])

    fast_ns, slow_ns = runs.fast.ns[0], runs.slow.ns[0]
    assert queues(0.5 * fast_ns) == pytest.approx(0.0)
    explained = fast_ns - queues(2 * fast_ns)
    assert 0 < explained < 0.1 * fast_ns
    assert queues(1.5 * fast_ns) == pytest.approx(0.5 * fast_ns - explained)
    assert queues(3 * slow_ns) == pytest.approx(slow_ns - fast_ns)


@pytest.mark.parametrize(
    ("reads", "writes", "busy", "most"),
    [(1.0, 1.0, 1.0, 1.0), (0.5, 0.5, 0.5, 0.5), (0.5, 1.0, 0.75, 1.0), (0.5, 0.0, 0.25, 0.5)],
)
def test_model_queue_follows_the_work_that_the_slow_tier_has_left(
    model_of: ModelOf, reads: float, writes: float, busy: float, most: float
) -> None:
    """Half of the lines are stored to, and a write takes twice as long as a read."""
    model = model_of([1.0], 1.0, slow_ns=140.0)
    figures = model.figures._replace(waiting_ns=np.zeros(1), queueing_ns=np.array([40.0]))
    work = model.of_windows._replace(write_work=np.ones(1), stored=np.ones(1))
    total = np.zeros(len(model.total))
    total[-2], total[-1] = 1.0, 1.0
    cells = np.zeros(len(total))
    cells[-1] = writes
    cells[-2] = 2 * reads - writes
    none = np.zeros(0, np.float32)
    priced = replace(model, figures=figures, of_windows=work, total=total)
    found = priced.price(SlowMass(cells, none, none)).runtime_ns
    assert found == pytest.approx(100.0 + max(40.0 * busy * most, busy * 140.0 - 100.0))


def test_side_by_side_other_addresses_pages_of_slow_run(slow_run: Trace, fast_run: Trace) -> None:
    samples = replace(
        fast_run.samples, address=fast_run.samples.address + np.uint64(0x7F00_0000_0000)
    )
    runs = side_by_side(slow_run, replace(fast_run, samples=samples))
    assert not runs.same_addresses
    alone = side_by_side(slow_run, slow_run)
    assert len(runs.pages) == len(alone.pages)
    assert not len(runs.fast.page)
    # What is known of its windows stays.
    assert runs.fast.latency_ns == pytest.approx(side_by_side(slow_run, fast_run).fast.latency_ns)
    model = build_model(runs)
    assert model.samples.sum() == len(slow_run.samples)
    assert model.estimate(layout.all_fast(runs.pages)).runtime_ns == pytest.approx(200e6)


@pytest.mark.parametrize(
    ("slow_pages", "expected_ns"),
    [
        (0, 100.0),
        # The slow tier's share, a quarter of 400, is as long as the fast run: queues are too short
        # for both at once.
        (1, 118.9),
        (2, 202.9),
        (4, 400.0),
    ],
)
def test_bandwidth_bound_streams_take_the_slow_tiers_share_of_its_run(
    model_of: ModelOf, slow_pages: int, expected_ns: float
) -> None:
    model = model_of([1.0] * 4, k=4.0)
    model = replace(model, figures=model.figures._replace(bandwidth_bound=np.ones(1)))
    fast = np.arange(4) >= slow_pages
    assert model.estimate(fast).runtime_ns == pytest.approx(expected_ns, abs=0.1)


def test_half_of_the_traffic_saves_most_where_the_tier_was_busy_all_the_time(
    model_of: ModelOf,
) -> None:
    model = model_of([1.0, 1.0], 1.0, independent=True)
    latency = {"idle": 200.0, "loaded": 400.0, "fast": 100.0}
    figures = model.figures._replace(
        **{f"{name}_latency_ns": np.array([ns]) for name, ns in latency.items()}
    )
    numbers = model.numbers._replace(load_known=True)
    half, took = np.array([True, False]), []
    for busy in (0.0, 0.9):
        windows = model.of_windows._replace(busy=np.array([busy]))
        loaded = replace(model, figures=figures, of_windows=windows, numbers=numbers)
        assert loaded.estimate(np.zeros(2, np.bool_)).runtime_ns == pytest.approx(400)
        took.append(loaded.estimate(half).runtime_ns)
    assert took[1] < 0.95 * took[0]


def test_bandwidth_bound_streams_are_relieved_by_the_other_tier(
    model_of: ModelOf,
) -> None:
    model = model_of([1.0] * 5, k=4.0)
    figures = model.figures._replace(bandwidth_bound=np.ones(1), fast_bound_ns=np.array([15.0]))
    relieved = replace(model, figures=figures)
    # A fifth of 400 ns beside the fast run without what it waits for, 85.
    assert relieved.estimate(np.arange(5) >= 1).runtime_ns == pytest.approx(98.2, abs=0.1)
    assert relieved.estimate(np.zeros(5, np.bool_)).runtime_ns == pytest.approx(400.0)
    assert relieved.estimate(np.ones(5, np.bool_)).runtime_ns == pytest.approx(100.0)


def streaming(run: Trace, stalled_share: float) -> Trace:
    """A run whose lines a prefetcher had asked for before, and that waited for such a share."""
    samples = replace(run.samples, latency_ns=np.full(len(run.samples), 20, np.uint32))
    executed = np.array([run.samples.instructions.max()], np.uint64)
    ended = np.array([run.begin_ns + run.runtime_ns], np.uint64)
    waited = np.array([run.runtime_ns * stalled_share], np.uint64)
    progress = InstructionProgress(ended, np.zeros(1, np.uint16), ended, executed, waited)
    return replace(run, samples=samples, progress=progress)


def test_program_that_waits_for_streams_has_more_windows(run_of: Callable[..., Trace]) -> None:
    speeds = TierSpeeds(300.0, 100.0)
    slow, fast = run_of(300, 400, seed=1), run_of(100, 200, seed=2)
    for share, expected in ((0.9, STREAM_WINDOWS), (0.1, WINDOWS)):
        runs = side_by_side(streaming(slow, share), streaming(fast, share), speeds=speeds)
        assert runs.windows == expected


def test_samples_that_stand_for_nothing_are_no_streams(run_of: Callable[..., Trace]) -> None:
    run = streaming(run_of(300, 400, seed=1), 0.9)
    assert waits_for_streams(run, 50.0)
    none = np.zeros(len(run.samples), np.uint32)
    assert not waits_for_streams(replace(run, samples=replace(run.samples, period=none)), 50.0)
