# SPDX-License-Identifier: MIT
"""The contract of every sampler, as hmd.sample.sampler.Sampler states it."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from hmd.linux.damon import Kdamonds
from hmd.linux.procfs import ProcessId, alive, identify
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.damon_sampler import INTERVALS_PER_CYCLE, PERIODS, open_damon
from hmd.sample.emulated_pebs import open_emulated
from hmd.sample.idle_pages import IdlePageSampler
from hmd.sample.page_faults import open_faults
from hmd.sample.pmu import open_pmu
from hmd.sample.sampler import CAPABILITIES, Sampler, SampleSettings
from tests.fakes.damon_kernel import DamonKernel
from tests.fakes.idle_bitmap import IdleBitmap
from tests.fakes.plugin_memory import EmulatedMemory
from tests.fakes.software_pmu import FAULTS, MINOR_FAULTS, SoftwarePmu
from tests.fakes.toucher import Toucher

pytestmark = pytest.mark.root

DTYPES = {
    "process": np.int32,
    "address": np.uint64,
    "kind": np.uint8,
    "cpu": np.uint16,
    "time_ns": np.uint64,
    "latency_ns": np.uint32,
    "period": np.uint32,
}


class Source(Protocol):
    """A sampler and a way to make accesses, all of which it samples.

    ``sees_others``: it samples all programs, and drops samples of programs not tracked.
    ``has_kernel_thread``: a thread of the kernel works for it.
    """

    sampler: Sampler
    sees_others: bool
    has_kernel_thread: bool

    def track(self, processes: list[ProcessId]) -> None:
        """Track these processes; accesses from now on are sampled."""
        ...

    def access(self, pages: int) -> range:
        """Access this number of fresh pages of the program; returns their addresses."""
        ...

    def read(self) -> AccessBatch:
        """Read until the accesses have arrived."""
        ...


class Plain:
    """A source whose sampler reports every access at once."""

    sees_others = True
    has_kernel_thread = False

    def __init__(self, sampler: Sampler, toucher: Toucher) -> None:
        self.sampler = sampler
        self._toucher = toucher

    def track(self, processes: list[ProcessId]) -> None:
        self.sampler.track(processes)

    def access(self, pages: int) -> range:
        return self._toucher.touch(pages)

    def read(self) -> AccessBatch:
        return self.sampler.read()


class Emulated(Plain):
    """The rings of an emulated machine with the samples of a real program's real pages."""

    ROOT = 0x1234

    def __init__(
        self, toucher: Toucher, memory: EmulatedMemory, physical: Callable[[int, int], int]
    ) -> None:
        super().__init__(open_emulated(sysfs=memory.sysfs), toucher)
        self._memory, self._physical = memory, physical

    def access(self, pages: int) -> range:
        touched: range = self._toucher.touch(pages)
        enabled = self._memory.control[3]
        for i, page in enumerate(touched if enabled else ()):
            physical = self._physical(self._toucher.process.pid, page)
            self._memory.sample(i % 2, self.ROOT, page + 8, physical + 8, store=i % 3 == 0)
        return touched


class Damon(Plain):
    """A kdamond that finds a region of a real program's real pages accessed at every check."""

    sees_others = False
    has_kernel_thread = True
    PATIENCE_S = 10.0

    def __init__(self, toucher: Toucher, kernel: DamonKernel, note: Path) -> None:
        kdamonds = Kdamonds(kernel.sysfs, kernel.write)
        clock = partial(next, (i / 10 for i in itertools.count()))
        sampler = open_damon(
            SampleSettings(period=PERIODS[0]),
            note=note,
            clock=clock,
            kdamonds=kdamonds,
            max_regions=40,
        )
        super().__init__(sampler, toucher)
        self._kernel, self._awaited = kernel, False

    def access(self, pages: int) -> range:
        touched = super().access(pages)
        region = (touched.start, touched.stop, INTERVALS_PER_CYCLE)
        self._kernel.accesses[self._toucher.process.pid] = [region]
        self._awaited = self._toucher.process in self._tracked
        return touched

    def track(self, processes: list[ProcessId]) -> None:
        self._tracked = processes
        super().track(processes)

    def read(self) -> AccessBatch:
        deadline = time.monotonic() + self.PATIENCE_S
        batch = self.sampler.read()
        while self._awaited and not len(batch) and alive(self._toucher.process):
            assert time.monotonic() < deadline
            time.sleep(0.01)
            batch = self.sampler.read()
        self._awaited = False
        return batch


class Idle(Plain):
    """Idle page tracking that sees a real program's real pages lose their mark."""

    sees_others = False

    def __init__(
        self, toucher: Toucher, bitmap: IdleBitmap, physical: Callable[[int, int], int]
    ) -> None:
        super().__init__(IdlePageSampler(bitmap), toucher)
        self._bitmap, self._physical = bitmap, physical

    def track(self, processes: list[ProcessId]) -> None:
        self.sampler.track(processes)
        self.sampler.read()  # marks all that is there

    def access(self, pages: int) -> range:
        touched = super().access(pages)
        pid = self._toucher.process.pid
        self._bitmap.idle -= {self._physical(pid, page) // 4096 for page in touched}
        return touched


def open_software_pmu(pmu: SoftwarePmu) -> Sampler:
    """The sampler of the PMU over software events, so that it runs on a host without a PMU.

    Loads are page faults, stores are minor faults; one counter each, or an access would be two
    samples of one kind.
    """
    pmu.device(mem_loads=FAULTS, mem_stores=MINOR_FAULTS)
    return open_pmu(SampleSettings(), pmu.proc, pmu.sysfs)


@pytest.fixture(params=["pmu", "faults", "emulated", "damon", "idle"])
def source(request: pytest.FixtureRequest, toucher: Toucher, tmp_path: Path) -> Iterator[Source]:
    ask = request.getfixturevalue
    source: Source
    match request.param:
        case "pmu":
            source = Plain(open_software_pmu(ask("software_pmu")), toucher)
        case "faults":
            source = Plain(open_faults(), toucher)
        case "emulated":
            source = Emulated(toucher, ask("emulated_memory"), ask("physical"))
        case "damon":
            source = Damon(toucher, ask("damon_kernel"), tmp_path / "note")
        case _:
            source = Idle(toucher, ask("idle_bitmap"), ask("physical"))
    yield source
    source.sampler.close()


def of_pages(batch: AccessBatch, pages: range) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.isin(batch.address & ~np.uint64(4095), np.array(pages, np.uint64)))


@pytest.fixture
def another() -> Iterator[ProcessId]:
    """Another process, so small that a read has room for both."""
    with subprocess.Popen(["sleep", "600"]) as popen:
        process = identify(popen.pid)
        assert process is not None
        yield process
        popen.kill()


def test_sampler_batch_has_typed_columns_of_one_length(source: Source, toucher: Toucher) -> None:
    source.track([toucher.process])
    source.access(16)
    first = source.read()
    assert len(first) >= 16
    for batch in (first, source.read()):
        for name, dtype in DTYPES.items():
            column = getattr(batch, name)
            assert column.dtype == dtype
            assert column.shape == (len(batch),)
        assert set(batch.kind.tolist()) <= set(Kind)
        assert (batch.period > 0).all()


def test_sampler_at_shortest_period_reports_every_access(source: Source, toucher: Toucher) -> None:
    source.track([toucher.process])
    source.sampler.set_period(source.sampler.periods[0])
    pages = source.access(64)
    batch = source.read()
    rows = of_pages(batch, pages)
    assert np.unique(batch.address[rows] & ~np.uint64(4095)).tolist() == list(pages)
    assert set(batch.process[rows].tolist()) == {0}


def test_sampler_rows_index_processes_tracked_last(
    source: Source, toucher: Toucher, another: ProcessId
) -> None:
    source.track([toucher.process])
    source.access(8)
    source.read()
    source.track([another, toucher.process])
    pages = source.access(8)
    batch = source.read()
    assert set(batch.process[of_pages(batch, pages)].tolist()) == {1}


def test_sampler_drops_rows_of_untracked_processes(source: Source, another: ProcessId) -> None:
    source.track([another])
    pages = source.access(64)
    batch = source.read()
    assert len(of_pages(batch, pages)) == 0
    if source.sees_others:
        assert source.sampler.stats.dropped >= 64
    else:
        assert source.sampler.stats.dropped == 0


def test_sampler_read_without_accesses_is_empty(source: Source, toucher: Toucher) -> None:
    source.track([toucher.process])
    pages = source.access(16)
    assert len(of_pages(source.read(), pages)) >= 16
    assert len(of_pages(source.read(), pages)) == 0
    source.track([])
    source.read()
    assert len(source.read()) == 0


def test_sampler_of_ended_process_reads_nothing(source: Source, toucher: Toucher) -> None:
    source.track([toucher.process])
    source.access(16)
    toucher.end()
    source.read()  # what it did before
    assert len(source.read()) == 0
    source.track([ProcessId(toucher.process.pid, 1)])
    assert len(source.read()) == 0


def test_sampler_batch_is_unchanged_by_next_read(source: Source, toucher: Toucher) -> None:
    source.track([toucher.process])
    source.access(32)
    first = source.read()
    kept = {name: getattr(first, name).copy() for name in DTYPES}
    source.access(32)
    source.read()
    for name, column in kept.items():
        assert (getattr(first, name) == column).all()


def test_sampler_counters_grow_with_rows(source: Source, toucher: Toucher) -> None:
    sampler = source.sampler
    source.track([toucher.process])
    rows = 0
    before = [0] * 4
    for _ in range(3):
        source.access(16)
        rows += len(source.read())
        stats = sampler.stats
        now = [stats.samples, stats.dropped, stats.lost, stats.wakeups]
        assert all(a <= b for a, b in zip(before, now, strict=True))
        before = now
    assert sampler.stats.samples == rows
    assert sampler.stats.wakeups == 3
    assert sampler.stats.corrupt == 0


def test_sampler_period_is_what_set_period_returned(source: Source) -> None:
    sampler = source.sampler
    assert list(sampler.periods) == sorted(set(sampler.periods))
    for asked in (*sampler.periods[::5], 1, 10**9):
        given = sampler.set_period(asked)
        assert given == sampler.period
        assert sampler.periods[0] <= given <= sampler.periods[-1]


def test_sampler_closed_twice_reads_nothing(source: Source, toucher: Toucher) -> None:
    source.track([toucher.process])
    source.sampler.close()
    source.sampler.close()
    assert len(source.read()) == 0
    source.track([toucher.process])
    source.sampler.set_period(17)


def test_sampler_has_name_and_one_line_detail(source: Source) -> None:
    assert source.sampler.name.isidentifier()
    assert source.sampler.name in CAPABILITIES
    by_name = {str(name): able for name, able in CAPABILITIES.items()}
    assert source.sampler.capabilities == by_name[source.sampler.name]
    assert source.sampler.detail
    assert "\n" not in source.sampler.detail


def test_sampler_outside_cpu_time_is_that_of_its_kernel_thread(
    source: Source, toucher: Toucher
) -> None:
    assert source.sampler.outside_cpu_s == 0
    source.track([toucher.process])
    source.access(8)
    source.read()
    if source.has_kernel_thread:  # the fake kdamond has the pid of this process, which has worked
        assert source.sampler.outside_cpu_s > 0
    else:
        assert source.sampler.outside_cpu_s == 0
