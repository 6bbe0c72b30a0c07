"""The published formula against windows computed by hand, and what a layout is."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hmd.estimate import layout
from hmd.estimate.isc22 import estimate
from hmd.estimate.pages import PageIndex, index_pages
from hmd.estimate.windows import CutBy, cut, window_count
from hmd.trace.trace import SAMPLE_COLUMNS, Ending, Samples, Trace, TracedProcess
from hmd.trace.writer import write_trace

PAGE = 4096
MS = 1_000_000


def trace_of(rows: list[tuple[float, int]], runtime_ms: float, processes: int = 1) -> Trace:
    """Samples as (milliseconds, page), one access each."""
    columns = {name: np.zeros(len(rows), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.array([t * MS for t, _ in rows], np.uint64)
    columns["address"] = np.array([p * PAGE + 8 for _, p in rows], np.uint64)
    columns["period"] = np.ones(len(rows), np.uint32)
    return Trace(
        {"begin_ns": 0},
        tuple(TracedProcess(i, "x") for i in range(processes)),
        Samples(**columns),
        ending=Ending(0, int(runtime_ms * MS), 0),
    )


SLOW = trace_of([(1, 7), (2, 7), (3, 8), (11, 8), (12, 9), (35, 9)], 40)
FAST = trace_of([(1, 7), (5, 8), (19, 9)], 20)


def runtime_ms(chosen: layout.Layout, windows: int, by: CutBy = CutBy.TIME) -> float:
    pages = index_pages(SLOW)
    return estimate(cut(SLOW, windows, by), cut(FAST, windows, by), pages, chosen).runtime_ns / MS


def test_one_window_by_hand() -> None:
    pages = index_pages(SLOW)
    assert pages.address.tolist() == [7 * PAGE, 8 * PAGE, 9 * PAGE]
    # Two of six accesses are fast: 40 - 20 * 2/6.
    only_7 = np.array([True, False, False])
    assert runtime_ms(only_7, 1) == pytest.approx(40 - 20 / 3)
    assert runtime_ms(layout.all_slow(pages), 1) == 40
    assert runtime_ms(layout.all_fast(pages), 1) == 20


def test_windows_of_time_by_hand() -> None:
    # Four windows of 10 ms, fast 5 ms: shares 2/3, 0/2, no sample at all, 0/1.
    assert runtime_ms(np.array([True, False, False]), 4) == pytest.approx(10 - 5 * 2 / 3 + 30)
    # The empty window adds its slow time even where all is fast.
    assert runtime_ms(np.ones(3, np.bool_), 4) == pytest.approx(5 + 5 + 10 + 5)


def test_windows_of_accesses_by_hand() -> None:
    # Halves of three accesses: slow 0-11 ms and 11-40 ms; fast: two accesses to 19 ms, then one.
    only_9 = np.array([False, False, True])
    assert runtime_ms(only_9, 2, CutBy.ACCESSES) == pytest.approx(11 + 29 - (29 - 1) * 2 / 3)


def test_a_window_that_gains_less_than_the_guard_gains_nothing() -> None:
    slow, fast = trace_of([(1, 1)], 103), trace_of([(1, 1)], 100)
    pages = index_pages(slow)
    every = layout.all_fast(pages)
    assert estimate(cut(slow, 1), cut(fast, 1), pages, every).runtime_ns == 103 * MS
    slow = trace_of([(1, 1)], 104)
    assert estimate(cut(slow, 1), cut(fast, 1), pages, every).runtime_ns == 100 * MS


@pytest.mark.parametrize("by", [CutBy.TIME, CutBy.ACCESSES])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_windows_add_up_to_the_runtime(by: CutBy, count: int) -> None:
    for trace in (SLOW, FAST, trace_of([], 5)):
        windows = cut(trace, count, by)
        assert len(windows) == count
        assert windows.ns.sum() == pytest.approx(trace.runtime_ns)
        assert (windows.ns >= 0).all()
        assert len(windows.of_sample) == len(trace.samples)


def test_the_number_of_windows_follows_the_slow_run() -> None:
    assert window_count(SLOW, 10 * MS) == 4
    assert window_count(SLOW, 1000 * MS) == 1


def index(accesses: list[float]) -> PageIndex:
    n = len(accesses)
    return PageIndex(
        np.zeros(n, np.uint16),
        np.arange(n, dtype=np.uint64) * np.uint64(PAGE),
        np.arange(n, dtype=np.int32),
        np.array(accesses),
    )


def test_layouts() -> None:
    pages = index([5, 1, 9, 9, 0])
    assert np.flatnonzero(layout.by_heat(pages, 2)).tolist() == [2, 3]
    assert np.flatnonzero(layout.by_heat(pages, 3)).tolist() == [0, 2, 3]
    assert np.flatnonzero(layout.by_heat(pages, 2, hot_first=False)).tolist() == [1, 4]
    assert layout.by_heat(pages, 99).all()
    ranges = [(PAGE, 2 * PAGE), (4 * PAGE, 9 * PAGE)]
    assert np.flatnonzero(layout.in_ranges(pages, ranges)).tolist() == [1, 4]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0])
def test_interleaving_is_even(share: float) -> None:
    fast = layout.interleaved(index([1.0] * 1000), share)
    assert fast.sum() == pytest.approx(1000 * share, abs=1)
    for start in range(0, 900, 100):
        assert fast[start : start + 100].sum() == pytest.approx(100 * share, abs=1)


def test_pages_of_two_processes_are_two() -> None:
    trace = trace_of([(1, 7), (2, 7)], 3, processes=2)
    trace.samples.process[1] = 1
    pages = index_pages(trace)
    assert pages.process.tolist() == [0, 1]
    assert pages.address.tolist() == [7 * PAGE, 7 * PAGE]


def test_the_command_line(tmp_path: Path) -> None:
    slow, fast = str(tmp_path / "slow"), str(tmp_path / "fast")
    write_trace(Path(slow), SLOW)
    write_trace(Path(fast), FAST)

    def hmd(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hmd", "estimate", slow, fast, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    found = json.loads(hmd("--window", "40", "--hot-first", "34%", "--json").stdout)
    assert [e["layout"] for e in found["estimates"]] == ["all slow", "hottest 34%", "all fast"]
    assert found["estimates"][1]["runtime_s"] == pytest.approx(0.04 - 0.02 / 3)
    assert hmd("--sweep").stdout.count("hottest") == 9
    refused = hmd("--hot-first", "120%")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
