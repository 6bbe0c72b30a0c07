# SPDX-License-Identifier: MIT
"""Pages of a real child leave memory: those of a file go back to it, also without swap."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hmd.linux.page_calls import page_out, query_nodes
from hmd.linux.procfs import ProcessId, identify
from hmd.migrate.pageout import Pageout, PageoutSettings, _join_ranges, _split_into_calls
from hmd.policy.plan import Plan
from hmd.policy.planning import OUT

PAGES = 512
PAGE = mmap.PAGESIZE
CHILD = """
import ctypes, mmap, sys
file = open(sys.argv[1], "r+b")
of_file = mmap.mmap(file.fileno(), 0)
own = mmap.mmap(-1, 512 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
own.madvise(mmap.MADV_NOHUGEPAGE)
for memory in (of_file, own):
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = memory[at] if memory is of_file else 1
    print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Child:
    process: ProcessId
    of_file: int
    own: int


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    file = tmp_path / "pages"
    file.write_bytes(os.urandom(PAGES * PAGE))
    with file.open() as written:
        # Dirty pages cannot be dropped before they are written.
        os.fsync(written.fileno())
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stdin
        of_file, own = (int(running.stdout.readline()) for _ in range(2))
        process = identify(running.pid)
        assert process
        yield Child(process, of_file, own)
        running.stdin.close()


def addresses(start: int, pages: int = PAGES) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.uint64(start) + np.arange(pages, dtype=np.uint64) * np.uint64(PAGE)


def out_plan(process: ProcessId, *pages: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Plan:
    address = np.concatenate(pages)
    n = len(address)
    return Plan(
        (process,),
        np.zeros(n, np.int32),
        address,
        np.ones(n, np.uint32),
        np.zeros(n, np.int16),
        np.full(n, OUT, np.int16),
        np.zeros(n, np.float32),
        np.zeros(n, np.int32),
    )


def resident(child: Child, start: int) -> int:
    return int((query_nodes(child.process.pid, addresses(start)) >= 0).sum())


def has_swap() -> bool:
    return len(Path("/proc/swaps").read_text().splitlines()) > 1


def test_pageout_writes_file_pages_back(child: Child) -> None:
    pageout = Pageout()
    plan = out_plan(child.process, addresses(child.of_file))
    assert resident(child, child.of_file) == PAGES
    sent = pageout.apply(plan, 1 << 40, 0.0)
    assert sent.tried.all()
    # One that the kernel was just looking at may stay.
    assert sent.out_bytes >= (PAGES - 32) * PAGE
    assert resident(child, child.of_file) * PAGE == PAGES * PAGE - sent.out_bytes
    assert (sent.node < 0).sum() * PAGE == sent.out_bytes


def test_pageout_within_budget_takes_first_rows(child: Child) -> None:
    plan = out_plan(child.process, addresses(child.of_file)[::-1])
    sent = Pageout().apply(plan, 100 * PAGE + 5, 0.0)
    assert np.flatnonzero(sent.tried).tolist() == list(range(100))
    assert resident(child, child.of_file) >= PAGES - 100


@pytest.mark.skipif(has_swap(), reason="this host has swap: the pages would leave")
def test_pageout_without_swap_defers_pages(child: Child) -> None:
    pageout = Pageout()
    plan = out_plan(child.process, addresses(child.own, 64), addresses(child.of_file, 64))
    sent = pageout.apply(plan, 1 << 40, 0.0)
    assert (sent.node[:64] == 0).all()
    assert resident(child, child.own) == PAGES
    again = pageout.apply(plan, 1 << 40, 1.0)
    assert not again.tried[:64].any()
    assert pageout.apply(plan, 1 << 40, 1000.0).tried[:64].all()


def test_pageout_dry_run_makes_no_call(child: Child) -> None:
    pageout = Pageout(PageoutSettings(dry_run=True))
    sent = pageout.apply(out_plan(child.process, addresses(child.of_file)), 1 << 40, 0.0)
    assert sent.out_bytes == 0
    assert not sent.tried.any()
    assert resident(child, child.of_file) == PAGES


def test_pageout_without_time_makes_no_call(child: Child) -> None:
    pageout = Pageout(PageoutSettings(limit_s=0.0))
    sent = pageout.apply(out_plan(child.process, addresses(child.of_file)), 1 << 40, 0.0)
    assert not sent.tried.any()


def test_pageout_skips_unmapped_ranges(child: Child) -> None:
    start = np.array([4096, child.of_file, 8192, child.own, 12288], np.uint64)
    size = np.array([1, PAGES, 1, PAGES, 1], np.uint64) * np.uint64(PAGE)
    assert page_out(child.process, start, size) == 2 * PAGES * PAGE
    assert resident(child, child.of_file) <= 32


def test_pageout_of_reused_pid_touches_nothing(child: Child) -> None:
    other = ProcessId(child.process.pid, child.process.start_ticks + 1)
    plan = out_plan(other, addresses(child.of_file))
    sent = Pageout().apply(plan, 1 << 40, 0.0)
    assert not sent.tried.any()
    assert sent.out_bytes == 0
    assert resident(child, child.of_file) == PAGES
    gone = subprocess.Popen(["true"])
    gone.wait()
    none = np.empty(0, np.uint64)
    assert page_out(ProcessId(gone.pid, 1), none, none) == -3


def test_pageout_merges_adjacent_rows() -> None:
    address = np.array([0, 1, 2, 4, 5, 1024], np.uint64) * np.uint64(PAGE)
    size = np.array([1, 1, 1, 1, 1, 512], np.uint64) * np.uint64(PAGE)
    start, length = _join_ranges(address, size)
    assert (start // PAGE).tolist() == [0, 4, 1024]
    assert (length // PAGE).tolist() == [3, 2, 512]


def test_pageout_call_is_bounded_in_pages() -> None:
    parts = _split_into_calls(np.array([1] * 1500 + [512] * 4, np.uint32))
    assert [len(part) for part in parts] == [1024, 477, 2, 1]
    assert np.concatenate(parts).tolist() == list(range(1504))
