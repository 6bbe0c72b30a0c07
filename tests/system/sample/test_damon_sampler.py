# SPDX-License-Identifier: MIT
"""The DAMON sampler: monitored processes, restarts and clean-up."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.linux.damon import DamonError, Kdamond, Kdamonds
from hmd.linux.page_calls import query_nodes
from hmd.linux.procfs import ProcessId, identify
from hmd.sample.damon_sampler import (
    INTERVALS_PER_CYCLE,
    MAX_INTERVAL_US,
    MAX_PROCESSES,
    MIN_INTERVAL_US,
    MIN_REGIONS,
    PERIODS,
    START_INTERVAL_US,
    DamonCycle,
    DamonSampler,
    next_interval_us,
    open_damon,
)
from hmd.sample.sampler import SampleSettings
from tests.fakes.damon_kernel import DamonKernel
from tests.fakes.toucher import Toucher


@pytest.fixture
def kdamonds(damon_kernel: DamonKernel) -> Kdamonds:
    return Kdamonds(damon_kernel.sysfs, damon_kernel.write, busy_s=0.5)


@pytest.fixture
def watch(kdamonds: Kdamonds) -> DamonCycle:
    kdamonds.set_count(1)
    clock = partial(next, itertools.count())
    return DamonCycle(Kdamond(kdamonds, clock=lambda: 0.0), Path("/proc"), clock, max_regions=40)


@pytest.fixture
def sampler(kdamonds: Kdamonds, tmp_path: Path) -> Iterator[DamonSampler]:
    sampler = open_damon(
        SampleSettings(period=PERIODS[0]),
        note=tmp_path / "note",
        kdamonds=kdamonds,
        max_regions=40,
    )
    yield sampler
    sampler.close()


def this_process() -> ProcessId:
    process = identify(os.getpid())
    assert process is not None
    return process


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_damon_cycle_leaves_no_kdamond_running(
    watch: DamonCycle, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    ours, its = this_process(), toucher.process
    watch.run_cycle([ours, its])
    assert damon_kernel.targets() == [ours.pid, its.pid]
    assert 40 >= sum(len(damon_kernel.regions(i)) for i in (0, 1)) > 30
    assert not damon_kernel.on()
    assert damon_kernel.cycles == 1


def test_damon_leaves_out_ended_processes(
    watch: DamonCycle, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    ours, its = this_process(), toucher.process
    watch.run_cycle([its, ours])
    toucher.end()
    damon_kernel.accesses[ours.pid] = [(0, 1 << 47, INTERVALS_PER_CYCLE)]
    seen = watch.run_cycle([its, ours])
    assert damon_kernel.targets() == [ours.pid]
    assert seen is not None
    assert [process for process, _, _ in seen.rows] == [ours]
    assert len(seen.rows[0][1]) > 0
    assert watch.run_cycle([its]) is None


def test_damon_splits_accessed_regions_and_merges_idle_ones(
    watch: DamonCycle, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    pages = toucher.touch(8192)
    hot = (pages.start, pages.start + 2048 * 4096)

    def within() -> list[tuple[int, int]]:
        return [r for r in damon_kernel.regions(0) if hot[0] <= r[0] and r[1] <= hot[1]]

    for _ in range(8):
        damon_kernel.accesses[toucher.process.pid] = [(*hot, INTERVALS_PER_CYCLE // 2)]
        seen = watch.run_cycle([toucher.process])
    assert seen is not None
    assert len(within()) > 12
    ((_, address, counts),) = seen.rows
    assert counts[(address >= hot[0]) & (address < hot[1])].sum() > 0.9 * counts.sum()
    assert set(range(*hot, 4096)) <= set(address.tolist())


def test_damon_rows_cover_time_since_the_last_cycle(
    watch: DamonCycle, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    """The clock advances one second per call: two calls per cycle, one if it is empty."""
    toucher.touch(512)
    totals = []
    for looked_at in (True, True, True, False, True):
        if not looked_at:
            assert watch.run_cycle([]) is None
            continue
        damon_kernel.accesses[toucher.process.pid] = [(0, 1 << 47, INTERVALS_PER_CYCLE // 2)]
        interval_us = watch.sample_us
        seen = watch.run_cycle([toucher.process])
        assert seen is not None
        ((_, address, counts),) = seen.rows
        pages = len(np.unique(address))
        totals.append(int(counts.sum()) * interval_us / 1e6 / pages)
    assert totals[1:] == pytest.approx([2 * totals[0], 2 * totals[0], totals[0]], rel=0.05)
    # Half of the intervals, and what is reported for pages that are absent.
    assert 0.5 <= totals[0] < 1


@pytest.mark.parametrize(
    ("count", "factor"), [(INTERVALS_PER_CYCLE, 0.5), (INTERVALS_PER_CYCLE // 2, 1), (2, 2)]
)
def test_damon_interval_follows_the_access_rate(
    watch: DamonCycle, damon_kernel: DamonKernel, toucher: Toucher, count: int, factor: float
) -> None:
    sample_us = damon_kernel.path / "0/contexts/0/monitoring_attrs/intervals/sample_us"
    damon_kernel.accesses[toucher.process.pid] = [(0, 1 << 47, count)]
    watch.run_cycle([toucher.process])
    assert sample_us.read_text() == f"{START_INTERVAL_US}\n"
    watch.run_cycle([toucher.process])
    assert sample_us.read_text() == f"{round(START_INTERVAL_US * factor)}\n"


@pytest.mark.parametrize("seen", [0.0, 0.01, 0.3, 0.5, 0.7, 1.0])
def test_damon_interval_is_bounded(seen: float) -> None:
    intervals = list(
        itertools.accumulate([START_INTERVAL_US] * 40, lambda us, _: next_interval_us(us, seen))
    )
    assert all(MIN_INTERVAL_US <= us <= MAX_INTERVAL_US for us in intervals)
    assert intervals[-1] == {0.0: MAX_INTERVAL_US, 0.01: MAX_INTERVAL_US, 0.3: MAX_INTERVAL_US}.get(
        seen, START_INTERVAL_US if seen == 0.5 else MIN_INTERVAL_US
    )


def test_damon_on_a_slow_machine_lengthens_its_cycle(
    kdamonds: Kdamonds, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    """The clock advances one second per call, so that an interval takes 25 ms."""
    kdamonds.set_count(1)
    kdamond = Kdamond(kdamonds, clock=partial(next, itertools.count()))
    watch = DamonCycle(kdamond, Path("/proc"), max_regions=40)
    toucher.touch(2048)
    damon_kernel.slow = True
    counts, intervals = [], []
    for _ in range(3):
        assert watch.run_cycle([toucher.process]) is None
        counts.append(len(damon_kernel.regions(0)))
        intervals.append(watch.sample_us)
    assert intervals == [MAX_INTERVAL_US] * 3
    assert min(counts[:2]) > MIN_REGIONS >= counts[2]
    damon_kernel.slow = False
    for _ in range(5):
        damon_kernel.accesses[toucher.process.pid] = [(0, 1 << 47, INTERVALS_PER_CYCLE)]
        assert watch.run_cycle([toucher.process]) is not None
    assert len(damon_kernel.regions(0)) > MIN_REGIONS
    assert watch.sample_us == 25_000 / 4


def test_damon_rows_are_of_resident_pages(
    watch: DamonCycle, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    toucher.touch(32)
    damon_kernel.accesses[toucher.process.pid] = [(0, 1 << 47, INTERVALS_PER_CYCLE)]
    seen = watch.run_cycle([toucher.process])
    assert seen is not None
    ((_, address, counts),) = seen.rows
    assert (query_nodes(toucher.process.pid, address) >= 0).all()
    assert counts.min() >= 1


def test_damon_closed_leaves_no_kdamond(
    sampler: DamonSampler, kdamonds: Kdamonds, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    sampler.track([toucher.process])
    until(lambda: damon_kernel.cycles > 0)
    sampler.close()
    assert kdamonds.count == 0


def test_damon_without_reads_starts_no_cycle(
    sampler: DamonSampler, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    sampler.track([toucher.process])
    until(lambda: damon_kernel.cycles == 1)
    time.sleep(1.5 * PERIODS[0] / 1000)
    assert damon_kernel.cycles == 1
    sampler.read()
    until(lambda: damon_kernel.cycles == 2)


def test_damon_error_is_raised_by_read(
    sampler: DamonSampler, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    damon_kernel.exclusive = True
    sampler.track([toucher.process])

    def refused() -> bool:
        try:
            sampler.read()
        except DamonError as error:
            return "in use by another" in str(error)
        return False

    until(refused)
    damon_kernel.exclusive = False
    sampler.read()
    until(lambda: damon_kernel.cycles > 0)


def test_damon_beyond_its_process_limit_monitors_the_first(
    sampler: DamonSampler, damon_kernel: DamonKernel, toucher: Toucher
) -> None:
    gone = [ProcessId(2**22 + i, 1) for i in range(MAX_PROCESSES)]
    sampler.track([*gone[1:], toucher.process, gone[0]])
    until(lambda: damon_kernel.cycles > 0)
    assert damon_kernel.targets() == [toucher.process.pid]


def test_damon_without_vaddr_operations_is_refused(
    damon_kernel: DamonKernel, tmp_path: Path
) -> None:
    def write(path: Path, text: str) -> None:
        if path.name == "operations":
            raise OSError(22, "Invalid argument")
        damon_kernel.write(path, text)

    kdamonds = Kdamonds(damon_kernel.sysfs, write)
    with pytest.raises(DamonError, match="CONFIG_DAMON_VADDR"):
        open_damon(note=tmp_path / "note", kdamonds=kdamonds)
    assert kdamonds.count == 0
