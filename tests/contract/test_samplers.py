"""What the daemon relies on, of every sampler that runs here (hmd.sample.sampler.Sampler)."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from hmd.errors import UnavailableError
from hmd.machine.damon_sysfs import Kdamonds
from hmd.machine.process_id import ProcessId, alive, identify
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.damon_cycle import LOOKS
from hmd.sample.damon_sampler import LADDER, open_damon
from hmd.sample.emulated_pebs import open_emulated
from hmd.sample.fault_sampler import open_faults
from hmd.sample.idle_pages import IdlePageBits
from hmd.sample.page_scan import PageScanSampler
from hmd.sample.sampler import Sampler
from hmd.sample.soft_dirty import open_soft_dirty

pytestmark = pytest.mark.root

DTYPES = {
    "process": np.int32,
    "address": np.uint64,
    "kind": np.uint8,
    "cpu": np.uint16,
    "time_ns": np.uint64,
    "weight_ns": np.uint32,
    "period": np.uint32,
}


class Source(Protocol):
    """A sampler, and a way to make accesses that it samples every one of.

    ``sees_others``: it samples all programs, and drops what is not tracked.
    """

    sampler: Sampler
    sees_others: bool

    def track(self, processes: list[ProcessId]) -> None:
        """Track, and see to it that what comes now is sampled."""
        ...

    def access(self, pages: int) -> range:
        """Access that many fresh pages of the program; returns their addresses."""
        ...

    def read(self) -> AccessBatch:
        """Read, where need be until what was accessed has come."""
        ...


class Plain:
    """A source whose sampler has every access at once."""

    sees_others = True

    def __init__(self, sampler: Sampler, toucher: Any) -> None:
        self.sampler = sampler
        self._toucher = toucher

    def track(self, processes: list[ProcessId]) -> None:
        self.sampler.track(processes)

    def access(self, pages: int) -> range:
        return self._toucher.touch(pages)  # type: ignore[no-any-return]

    def read(self) -> AccessBatch:
        return self.sampler.read()


class Emulated(Plain):
    """The rings of an emulated machine with the samples of a real program's real pages."""

    ROOT = 0x1234

    def __init__(self, toucher: Any, memory: Any, physical: Callable[[int, int], int]) -> None:
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
    """A kdamond that finds a region of a real program's real pages accessed at every look."""

    sees_others = False
    PATIENCE_S = 10.0

    def __init__(self, toucher: Any, kernel: Any, note: Path) -> None:
        kdamonds = Kdamonds(kernel.sysfs, kernel.write)
        clock = partial(next, (i / 10 for i in itertools.count()))
        sampler = open_damon(LADDER[0], note=note, clock=clock, kdamonds=kdamonds, regions=40)
        super().__init__(sampler, toucher)
        self._kernel, self._awaited = kernel, False

    def access(self, pages: int) -> range:
        touched = super().access(pages)
        region = (touched.start, touched.stop, LOOKS)
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

    def __init__(self, toucher: Any, bitmap: Any, physical: Callable[[int, int], int]) -> None:
        super().__init__(PageScanSampler(IdlePageBits(bitmap)), toucher)
        self._bitmap, self._physical = bitmap, physical

    def track(self, processes: list[ProcessId]) -> None:
        self.sampler.track(processes)
        self.sampler.read()  # marks all that is there

    def access(self, pages: int) -> range:
        touched = super().access(pages)
        pid = self._toucher.process.pid
        self._bitmap.idle -= {self._physical(pid, page) // 4096 for page in touched}
        return touched


class SoftDirty(Plain):
    sees_others = False

    def __init__(self, toucher: Any) -> None:
        try:
            sampler = open_soft_dirty()
        except UnavailableError as error:
            pytest.skip(str(error))
        super().__init__(sampler, toucher)


@pytest.fixture(params=["faults", "emulated", "damon", "idle", "softdirty"])
def source(request: pytest.FixtureRequest, toucher: Any, tmp_path: Path) -> Iterator[Source]:
    ask = request.getfixturevalue
    source: Source
    match request.param:
        case "faults":
            source = Plain(open_faults(), toucher)
        case "emulated":
            source = Emulated(toucher, ask("emulated_memory"), ask("physical"))
        case "damon":
            source = Damon(toucher, ask("damon_kernel"), tmp_path / "note")
        case "idle":
            source = Idle(toucher, ask("idle_bitmap"), ask("physical"))
        case _:
            source = SoftDirty(toucher)
    yield source
    source.sampler.close()


def of_pages(batch: AccessBatch, pages: range) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.isin(batch.address & ~np.uint64(4095), np.array(pages, np.uint64)))


def another() -> ProcessId:
    process = identify(os.getppid())
    assert process is not None
    return process


def test_columns_are_of_one_length_and_their_types(source: Source, toucher: Any) -> None:
    source.track([toucher.process])
    source.access(16)
    for batch in (source.read(), source.read()):
        for name, dtype in DTYPES.items():
            column = getattr(batch, name)
            assert column.dtype == dtype
            assert column.shape == (len(batch),)
        assert set(batch.kind.tolist()) <= set(Kind)
        assert (batch.period > 0).all()


def test_every_access_is_a_row(source: Source, toucher: Any) -> None:
    source.track([toucher.process])
    source.sampler.set_period(source.sampler.ladder[0])
    pages = source.access(64)
    batch = source.read()
    rows = of_pages(batch, pages)
    assert np.unique(batch.address[rows] & ~np.uint64(4095)).tolist() == list(pages)
    assert set(batch.process[rows].tolist()) == {0}


def test_rows_index_what_was_tracked_last(source: Source, toucher: Any) -> None:
    source.track([toucher.process])
    source.access(8)
    source.read()
    source.track([another(), toucher.process])
    pages = source.access(8)
    batch = source.read()
    assert set(batch.process[of_pages(batch, pages)].tolist()) == {1}


def test_no_rows_of_what_is_not_tracked(source: Source, toucher: Any) -> None:
    source.track([another()])
    pages = source.access(64)
    batch = source.read()
    assert len(of_pages(batch, pages)) == 0
    assert not source.sees_others or source.sampler.stats.dropped >= 64


def test_a_read_with_nothing_to_read_is_empty(source: Source, toucher: Any) -> None:
    source.track([toucher.process])
    source.read()
    assert len(of_pages(source.read(), range(0))) == 0
    source.track([])
    source.read()
    assert len(source.read()) == 0


def test_a_target_that_has_gone_is_no_trouble(source: Source, toucher: Any) -> None:
    source.track([toucher.process])
    source.access(16)
    toucher.end()
    source.read()  # what it did before
    assert len(source.read()) == 0
    source.track([ProcessId(toucher.process.pid, 1)])
    assert len(source.read()) == 0


def test_a_batch_is_the_callers(source: Source, toucher: Any) -> None:
    source.track([toucher.process])
    source.access(32)
    first = source.read()
    kept = {name: getattr(first, name).copy() for name in DTYPES}
    source.access(32)
    source.read()
    for name, column in kept.items():
        assert (getattr(first, name) == column).all()


def test_counters_only_grow_and_samples_are_rows(source: Source, toucher: Any) -> None:
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


def test_the_period_in_force_is_what_set_period_returned(source: Source) -> None:
    sampler = source.sampler
    assert list(sampler.ladder) == sorted(set(sampler.ladder))
    for asked in (*sampler.ladder[::5], 1, 10**9):
        given = sampler.set_period(asked)
        assert given == sampler.period
        assert sampler.ladder[0] <= given <= sampler.ladder[-1]


def test_closing_twice_is_harmless_and_a_closed_sampler_is_quiet(
    source: Source, toucher: Any
) -> None:
    source.track([toucher.process])
    source.sampler.close()
    source.sampler.close()
    assert len(source.read()) == 0
    source.track([toucher.process])
    source.sampler.set_period(17)


def test_it_has_a_name_for_metrics_and_words_for_people(source: Source) -> None:
    assert source.sampler.name.isidentifier()
    assert source.sampler.name in CAPABILITIES
    assert source.sampler.capabilities == CAPABILITIES[source.sampler.name]
    assert source.sampler.detail
    assert "\n" not in source.sampler.detail


def test_what_it_costs_outside_only_grows(source: Source, toucher: Any) -> None:
    before = source.sampler.outside_cpu_s
    assert before >= 0
    source.track([toucher.process])
    source.access(8)
    source.read()
    assert source.sampler.outside_cpu_s >= before
