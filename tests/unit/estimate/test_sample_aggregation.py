# SPDX-License-Identifier: MIT
"""Sample aggregation: at once and in batches, from memory and from a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hmd.estimate import CutBy, build_model, index_pages, layout, side_by_side
from hmd.estimate.samples import (
    PairCollector,
    PairDefinition,
    SampleAggregator,
    classify_accesses,
    page_keys,
)
from hmd.estimate.windows import cut
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.reader import TraceError, TraceFile
from hmd.trace.trace import Trace
from hmd.trace.writer import BLOCK_ROWS, write_trace

RunOf = Callable[..., Trace]


def test_aggregator_rows_per_page_window_and_access_class(slow_run: Trace) -> None:
    windows = cut(slow_run, 7)
    samples = slow_run.samples
    window, access, key = (
        windows.of(samples.time_ns),
        classify_accesses(samples, 290),
        page_keys(samples),
    )
    aggregator = SampleAggregator(len(windows))
    aggregator.add(samples, window, access)
    rows = aggregator.rows()
    found = {
        (int(w), int(k), int(a)): (int(s), float(n))
        for w, k, a, s, n in zip(
            rows.part, rows.key, rows.access, rows.samples, rows.accesses, strict=True
        )
    }
    expected: dict[tuple[int, int, int], tuple[int, float]] = {}
    for w, k, a, n in zip(window, key, access, samples.period, strict=True):
        before = expected.get((int(w), int(k), int(a)), (0, 0.0))
        expected[int(w), int(k), int(a)] = (before[0] + 1, before[1] + float(n))
    assert found == expected
    assert len(set(access.tolist())) == 4


@pytest.mark.parametrize("batches", [2, 90])
def test_aggregator_samples_in_any_batches_same_rows(
    slow_run: Trace, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    # Rows are added up after a few already, as they are after many.
    monkeypatch.setattr("hmd.estimate.samples._MERGE_ROWS", 50)
    windows = cut(slow_run, 7)
    samples = slow_run.samples

    def aggregated(parts: list[Samples]) -> SampleAggregator:
        aggregator = SampleAggregator(len(windows))
        for part in parts:
            aggregator.add(part, windows.of(part.time_ns), classify_accesses(part, 290))
        return aggregator

    rng = np.random.default_rng(3)
    edges = np.sort(rng.integers(0, len(samples), batches - 1))
    parts = np.split(rng.permutation(len(samples)), edges)
    whole, pieces = (
        aggregated([samples]).rows(),
        aggregated([samples.take(p) for p in parts]).rows(),
    )
    for name in ("part", "key", "access", "samples", "accesses"):
        assert np.array_equal(getattr(whole, name), getattr(pieces, name))


def test_pair_collector_over_limit_pairs_thinned_and_weighted(slow_run: Trace) -> None:
    samples = slow_run.samples
    load = classify_accesses(samples, 0) == 0
    window = cut(slow_run, 7).of(samples.time_ns)

    def collected(most: int) -> PairCollector:
        pairs = PairCollector(PairDefinition("instructions", 224), most)
        for start in range(0, len(samples), 1000):
            part = slice(start, start + 1000)
            pairs.add(samples.take(part), page_keys(samples)[part], window[part], load[part])
        return pairs

    every, some = collected(10**6).found(), collected(150).found()
    assert every.stride == 1
    assert len(every.part) > 600
    assert some.stride == 8
    assert np.array_equal(some.key_a, every.key_a[::8])
    assert np.array_equal(some.part, every.part[::8])


@pytest.fixture
def long_run(run_of: RunOf) -> Callable[[int, int], Trace]:
    """More samples than a block holds."""
    return lambda latency, ms: run_of(latency, ms, seed=ms, samples=3 * BLOCK_ROWS)


def write_in_blocks(path: Path, trace: Trace) -> TraceFile:
    write_trace(path, trace)
    return TraceFile(path, max_samples=20_000)


def test_trace_file_over_memory_limit_same_estimates(
    long_run: Callable[[int, int], Trace], tmp_path: Path
) -> None:
    slow, fast = long_run(300, 400), long_run(100, 200)
    slow_file = write_in_blocks(tmp_path / "slow", slow)
    fast_file = write_in_blocks(tmp_path / "fast", fast)
    assert slow_file.thinned.stride == 16
    assert len(slow_file.thinned.samples) == 3 * BLOCK_ROWS / 16
    assert slow_file.recorded == 3 * BLOCK_ROWS
    for cut_by in (CutBy.TIME, CutBy.ACCESSES):
        whole = side_by_side(slow, fast, cut_by=cut_by)
        streamed = side_by_side(slow_file, fast_file, cut_by=cut_by)
        assert np.array_equal(whole.pages.address, streamed.pages.address)
        assert streamed.slow.samples.sum() == len(slow.samples)
        models = build_model(whole), build_model(streamed)
        for share in (0.0, 0.2, 0.5, 0.8, 1.0):
            chosen = layout.by_heat(whole.pages, int(share * len(whole.pages)))
            expected, found = (model.estimate(chosen).runtime_ns for model in models)
            # The edges of windows are those of an thinned of one in sixteen.
            assert found == pytest.approx(expected, rel=2e-3)


def test_index_pages_batches_same_pages(slow_run: Trace) -> None:
    class InBatches:
        thinned = slow_run
        recorded = len(slow_run.samples)

        def batches(self) -> Iterator[Samples]:
            for start in range(0, self.recorded, 300):
                yield slow_run.samples.take(slice(start, start + 300))

    whole, pieces = index_pages(slow_run), index_pages(InBatches())
    assert np.array_equal(whole.address, pieces.address)
    assert whole.accesses == pytest.approx(pieces.accesses)


def test_trace_file_outline_evenly_thinned_small_file_whole(
    slow_run: Trace, tmp_path: Path
) -> None:
    write_trace(tmp_path / "trace", slow_run)
    whole = TraceFile(tmp_path / "trace")
    for name in SAMPLE_COLUMNS:
        column = getattr(slow_run.samples, name)
        assert np.array_equal(getattr(whole.thinned.samples, name), column)
        thin = TraceFile(tmp_path / "trace", max_samples=1000).thinned
        assert thin.stride == 4
        assert np.array_equal(getattr(thin.samples, name), column[::4])


def test_trace_file_damaged_refused_in_one_line(slow_run: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    write_trace(path, slow_run)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(TraceError, match="is damaged") as refused:
        TraceFile(path)
    assert "\n" not in str(refused.value)
