# SPDX-License-Identifier: MIT
"""Drain passes over real processes of this host: pages left and reasons. The guest tests moves."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.targets import SafeRegex
from hmd.linux.topology import Node, Topology
from hmd.migrate.drain import DrainRequest, DrainResult, DrainWorker
from tests.fakes.toucher import Toucher

ABSENT = 120
"""A node that no host has: to move there is what the kernel refuses."""

TOPOLOGY = Topology((Node(0, (0,), 1 << 30, (10, 20), 0), Node(ABSENT, (), 1 << 30, (20, 10), 1)))
PAGES = 2000
PLENTY = 1 << 40
RESERVED_PAGES = 1 << 31


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two nodes with room, of which this host has one."""
    for node in (0, ABSENT):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        text = "".join(f"Node {node} {key}: 1048576 kB\n" for key in ("MemTotal", "MemFree"))
        (folder / "meminfo").write_text(text)
    return tmp_path / "sys"


@pytest.fixture
def proc(tmp_path: Path, toucher: Toucher) -> Path:
    """A /proc with one process that has some memory."""
    toucher.touch(PAGES)
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / str(toucher.process.pid)).symlink_to(f"/proc/{toucher.process.pid}")
    (folder / "self").symlink_to("/proc/self")
    (folder / "999999999").mkdir()
    return folder


@pytest.fixture
def worker(proc: Path, sysfs: Path) -> Iterator[DrainWorker]:
    made = DrainWorker(logging.getLogger("test"), proc, sysfs)
    yield made
    made.close()


@pytest.fixture
def drain_request() -> DrainRequest:
    return DrainRequest(1, frozenset({0}), TOPOLOGY)


def after_passes(worker: DrainWorker, enough: Callable[[DrainResult], bool]) -> DrainResult:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if enough(worker.progress):
            return worker.progress
        time.sleep(0.01)
    raise AssertionError(f"waited without result: {worker.progress}")


def first(progress: DrainResult) -> bool:
    return progress.passes > 0


def test_drain_to_absent_node_reports_pages_as_offline(
    worker: DrainWorker, drain_request: DrainRequest
) -> None:
    worker.send(drain_request, PLENTY)
    progress = after_passes(worker, first)
    assert "no_room" not in progress.left[0]
    assert progress.left[0]["offline"] > PAGES
    assert (progress.settled, progress.moved_pages) == (True, 0)


def test_drain_without_free_memory_moves_nothing(
    worker: DrainWorker, drain_request: DrainRequest, sysfs: Path
) -> None:
    meminfo = sysfs / f"devices/system/node/node{ABSENT}/meminfo"
    meminfo.write_text(meminfo.read_text().replace("MemFree: 1048576", "MemFree: 400"))
    worker.send(drain_request, PLENTY)
    left = after_passes(worker, first).left[0]
    assert left["no_room"] > PAGES - 100
    assert left["offline"] == 100


def test_drain_dry_run_reports_would_move(worker: DrainWorker, drain_request: DrainRequest) -> None:
    worker.send(replace(drain_request, dry_run=True), PLENTY)
    progress = after_passes(worker, first)
    assert progress.left[0]["would_move"] > PAGES
    assert progress.moved_pages == 0


def test_drain_leaves_pinned_processes(
    worker: DrainWorker, drain_request: DrainRequest, toucher: Toucher
) -> None:
    worker.send(replace(drain_request, pinned=frozenset({toucher.process})), PLENTY)
    left = after_passes(worker, first).left[0]
    assert left["pinned"] > PAGES
    assert "offline" not in left


def test_drain_leaves_mappings_to_keep(worker: DrainWorker, drain_request: DrainRequest) -> None:
    patterns = (SafeRegex(r"\[stack\]"), SafeRegex("python"))
    keeping = replace(drain_request, unmovable=lambda _, found: found.keeping(patterns))
    worker.send(keeping, PLENTY)
    left = after_passes(worker, first).left[0]
    assert left["kept"] > 100
    assert left["offline"] > PAGES


def test_drain_leaves_followed_processes_to_ticks_first(
    worker: DrainWorker, drain_request: DrainRequest, toucher: Toucher
) -> None:
    worker.send(replace(drain_request, spared=frozenset({toucher.process})), PLENTY)
    progress = after_passes(worker, first)
    assert not progress.settled
    assert not sum(progress.left[0].values())
    # Once they have nothing left to move it is looked at as well, at once.
    worker.send(drain_request, PLENTY)
    assert after_passes(worker, lambda p: p.settled).left[0]["offline"] > PAGES


def test_drain_without_budget_moves_nothing(
    worker: DrainWorker, drain_request: DrainRequest
) -> None:
    worker.send(drain_request, 0)
    time.sleep(0.2)
    assert worker.progress == DrainResult()
    worker.send(drain_request, PLENTY)
    assert after_passes(worker, first).serial == 1


def test_drain_of_another_request_restarts(
    worker: DrainWorker, drain_request: DrainRequest
) -> None:
    worker.send(drain_request, PLENTY)
    after_passes(worker, first)
    worker.send(replace(drain_request, serial=2), PLENTY)
    assert after_passes(worker, lambda p: p.serial == 2).passes == 1
    assert worker.send(None, 0) == 0
    assert worker.progress == DrainResult()


def test_drain_of_sparse_reserve_passes_and_ends_when_stopped(
    worker: DrainWorker, drain_request: DrainRequest, toucher: Toucher
) -> None:
    """Page by page, 8 TiB of reserved memory take seven minutes of queries."""
    if huge_source() is not HugeSource.SCAN:
        pytest.skip("this kernel has no PAGEMAP_SCAN")
    toucher.touch(RESERVED_PAGES, "reserve")
    worker.send(drain_request, PLENTY)
    progress = after_passes(worker, first)
    assert progress.left[0]["offline"] > PAGES
    worker.close()
    assert worker._thread is not None
    assert not worker._thread.is_alive()


def test_drain_search_rests_for_its_share_of_the_cpu(
    worker: DrainWorker, drain_request: DrainRequest, proc: Path
) -> None:
    """On a node without pages each process is searched without effect."""
    for number in range(200):
        (proc / f"{10**9 + number}").symlink_to(f"/proc/{os.getpid()}")
    spare = replace(drain_request, drained=frozenset({ABSENT}), cpu_share=0.001)
    worker.send(spare, PLENTY)
    time.sleep(3.0)
    assert worker._thread is not None
    clock = time.pthread_getcpuclockid(worker._thread.ident or 0)
    assert time.clock_gettime(clock) < 0.3
    worker.close()
    assert worker.progress.passes == 0


def test_drain_worker_closed_while_waiting_ends(
    worker: DrainWorker, drain_request: DrainRequest
) -> None:
    worker.send(drain_request, 0)
    worker.close()
    assert worker.progress == DrainResult()


def test_drain_after_a_failed_pass_continues(
    worker: DrainWorker, drain_request: DrainRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replace(drain_request, unmovable=lambda *_: 1 / 0)  # type: ignore[arg-type]
    worker.send(broken, PLENTY)
    deadline_s = time.monotonic() + 60
    while "a pass failed" not in caplog.text and time.monotonic() < deadline_s:
        time.sleep(0.01)
    worker.send(replace(drain_request, serial=2), PLENTY)
    assert after_passes(worker, first).serial == 2
