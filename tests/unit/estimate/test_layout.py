# SPDX-License-Identifier: MIT
"""Page index, layouts of pages, and layouts and schedules in files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import ConfigError
from hmd.estimate import layout
from hmd.estimate.layout import read_layout
from hmd.estimate.samples import PageIndex, index_pages, same_addresses
from hmd.estimate.schedule import read_schedule
from hmd.trace.trace import Trace

PAGE = 4096

PagesOf = Callable[..., PageIndex]
TraceOf = Callable[..., Trace]


def test_layout_by_heat_and_by_ranges_expected_pages_fast(pages_of: PagesOf) -> None:
    pages = pages_of([5, 1, 9, 9, 0])
    assert np.flatnonzero(layout.by_heat(pages, 2)).tolist() == [2, 3]
    assert np.flatnonzero(layout.by_heat(pages, 3)).tolist() == [0, 2, 3]
    assert np.flatnonzero(layout.by_heat(pages, 2, hot_first=False)).tolist() == [1, 4]
    assert layout.by_heat(pages, 99).all()
    ranges = [(PAGE, 2 * PAGE), (4 * PAGE, 9 * PAGE)]
    assert np.flatnonzero(layout.in_ranges(pages, ranges)).tolist() == [1, 4]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0])
def test_layout_interleaved_evenly_spread(pages_of: PagesOf, share: float) -> None:
    fast = layout.interleaved(pages_of([1.0] * 1000), share)
    assert fast.sum() == pytest.approx(1000 * share, abs=1)
    for start in range(0, 900, 100):
        assert fast[start : start + 100].sum() == pytest.approx(100 * share, abs=1)


def test_index_pages_same_address_in_two_processes_two_pages(trace_of: TraceOf) -> None:
    trace = trace_of([(1, 7), (2, 7)], 3, processes=2)
    trace.samples.process[1] = 1
    pages = index_pages(trace)
    assert pages.process.tolist() == [0, 1]
    assert pages.address.tolist() == [7 * PAGE, 7 * PAGE]


def test_heat_order_agrees_with_layout_by_heat(pages_of: PagesOf) -> None:
    pages = pages_of([5, 1, 9, 9, 0])
    for hot_first in (True, False):
        order = layout.heat_order(pages, hot_first=hot_first)
        for count in range(6):
            chosen = layout.by_heat(pages, count, hot_first=hot_first)
            assert set(np.flatnonzero(chosen)) == set(order[:count])


def test_same_addresses_shifted_run_differs(slow_run: Trace, fast_run: Trace) -> None:
    assert same_addresses(slow_run, fast_run)
    moved = replace(fast_run.samples, address=fast_run.samples.address + np.uint64(1 << 30))
    assert not same_addresses(slow_run, replace(fast_run, samples=moved))


def test_same_addresses_sparse_samples_still_same(trace_of: TraceOf) -> None:
    rng = np.random.default_rng(5)
    # One in ten pages is seen at all: of the second run's samples as of the first's own.
    slow, fast = (trace_of([(1, int(p)) for p in rng.integers(0, 20_000, 2000)], 9) for _ in "ab")
    assert same_addresses(slow, fast)


@pytest.mark.parametrize(
    "text",
    [
        "1000-2000\n\n# the second and the third\n0x3000 - 0x5000  # end exclusive\n",
        "1000,2000\n3000,5000",
        '{"fast": ["1000-2000", "3000-5000"]}',
        ' ["1000-2000",\n "0x3000-0x5000"]',
    ],
)
def test_read_layout_each_format_same_layout(pages_of: PagesOf, tmp_path: Path, text: str) -> None:
    (tmp_path / "l").write_text(text)
    found = read_layout(tmp_path / "l", pages_of([1] * 8))
    assert np.flatnonzero(found).tolist() == [1, 3, 4]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1000-2000\n\nhot\n", 3),
        ("2000-1000", 1),
        ("# x\n1000", 2),
        ('["1000-2000",\n "oops"]', 2),
        ('{"fast": [\n1,}', 2),
        ('{"slow": ["1000-2000"]}', 1),
        ("[4096]", 1),
    ],
)
def test_read_layout_invalid_line_reported_with_number(
    pages_of: PagesOf, tmp_path: Path, text: str, line: int
) -> None:
    (tmp_path / "l").write_text(text)
    with pytest.raises(ConfigError, match=f"/l:{line}: ") as refused:
        read_layout(tmp_path / "l", pages_of([1]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_read_layout_unreadable_file_refused(
    pages_of: PagesOf, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "l").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot read "):
        read_layout(tmp_path / "l", pages_of([1]))


def test_read_schedule_rows_sorted_and_start_inferred(pages_of: PagesOf, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(
        "time_ms,address,tier\n20,2000,slow # not in order\n0.5,0x1008,fast\n7,9000,slow\n"
    )
    pages = pages_of([1] * 4)
    schedule, start = read_schedule(tmp_path / "s", pages, layout.all_slow(pages))
    assert schedule.time_ns.tolist() == [0.5e6, 7e6, 20e6]
    assert schedule.page.tolist() == [1, 4, 2]
    assert schedule.fast.tolist() == [True, False, False]
    # The page that was never sampled is moved to slow memory, so it was in fast.
    assert start.tolist() == [False] * 4 + [True]


def test_read_schedule_address_in_two_processes_both_pages_moved(
    trace_of: TraceOf, tmp_path: Path
) -> None:
    trace = trace_of([(1, 7), (2, 7)], 3, processes=2)
    trace.samples.process[1] = 1
    pages = index_pages(trace)
    (tmp_path / "s").write_text("1,7000,fast")
    schedule, _ = read_schedule(tmp_path / "s", pages, layout.all_slow(pages))
    assert schedule.page.tolist() == [0, 1]


@pytest.mark.parametrize("text", ["1,1000", "x,1000,fast", "-1,1000,fast", "1,zz,fast", "1,1,dram"])
def test_read_schedule_invalid_line_reported_with_number(
    pages_of: PagesOf, tmp_path: Path, text: str
) -> None:
    (tmp_path / "s").write_text(f"# moves\n1,1000,fast\n{text}\n")
    pages = pages_of([1])
    with pytest.raises(ConfigError, match="/s:3: ") as refused:
        read_schedule(tmp_path / "s", pages, layout.all_slow(pages))
    assert "\n" not in str(refused.value)
