"""What the daemon relies on, of every sampler that runs here (hmd.sample.sampler.Sampler)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pytest

from hmd.machine.process import ProcessId, identify
from hmd.sample.batch import AccessBatch, Kind
from hmd.sample.emulated import open_emulated
from hmd.sample.faults import open_faults
from hmd.sample.sampler import Sampler

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
    """A sampler, and a way to make accesses that it samples every one of."""

    sampler: Sampler

    def access(self, pages: int) -> range:
        """Access that many fresh pages of the program; returns their addresses."""
        ...


class Faults:
    def __init__(self, toucher: Any) -> None:
        self.sampler = open_faults()
        self._toucher = toucher

    def access(self, pages: int) -> range:
        return self._toucher.touch(pages)  # type: ignore[no-any-return]


class Emulated:
    """The rings of an emulated machine with the samples of a real program's real pages."""

    ROOT = 0x1234

    def __init__(self, toucher: Any, memory: Any, physical: Callable[[int, int], int]) -> None:
        self.sampler = open_emulated(sysfs=memory.sysfs)
        self._toucher, self._memory, self._physical = toucher, memory, physical

    def access(self, pages: int) -> range:
        touched: range = self._toucher.touch(pages)
        enabled = self._memory.control[3]
        for i, page in enumerate(touched if enabled else ()):
            physical = self._physical(self._toucher.process.pid, page)
            self._memory.sample(i % 2, self.ROOT, page + 8, physical + 8, store=i % 3 == 0)
        return touched


@pytest.fixture(params=["faults", "emulated"])
def source(request: pytest.FixtureRequest, toucher: Any) -> Iterator[Source]:
    source: Source
    if request.param == "faults":
        source = Faults(toucher)
    else:
        memory = request.getfixturevalue("emulated_memory")
        source = Emulated(toucher, memory, request.getfixturevalue("physical"))
    yield source
    source.sampler.close()


def of_pages(batch: AccessBatch, pages: range) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.isin(batch.address & ~np.uint64(4095), np.array(pages, np.uint64)))


def another() -> ProcessId:
    process = identify(os.getppid())
    assert process is not None
    return process


def test_columns_are_of_one_length_and_their_types(source: Source, toucher: Any) -> None:
    source.sampler.track([toucher.process])
    source.access(16)
    for batch in (source.sampler.read(), source.sampler.read()):
        for name, dtype in DTYPES.items():
            column = getattr(batch, name)
            assert column.dtype == dtype
            assert column.shape == (len(batch),)
        assert set(batch.kind.tolist()) <= set(Kind)
        assert (batch.period > 0).all()


def test_every_access_is_a_row(source: Source, toucher: Any) -> None:
    source.sampler.track([toucher.process])
    source.sampler.set_period(source.sampler.ladder[0])
    pages = source.access(64)
    batch = source.sampler.read()
    rows = of_pages(batch, pages)
    assert sorted((batch.address[rows] & ~np.uint64(4095)).tolist()) == list(pages)
    assert set(batch.process[rows].tolist()) == {0}


def test_rows_index_what_was_tracked_last(source: Source, toucher: Any) -> None:
    source.sampler.track([toucher.process])
    source.access(8)
    source.sampler.read()
    source.sampler.track([another(), toucher.process])
    pages = source.access(8)
    batch = source.sampler.read()
    assert set(batch.process[of_pages(batch, pages)].tolist()) == {1}


def test_no_rows_of_what_is_not_tracked(source: Source, toucher: Any) -> None:
    source.sampler.track([another()])
    pages = source.access(64)
    batch = source.sampler.read()
    assert len(of_pages(batch, pages)) == 0
    assert source.sampler.stats.dropped >= 64


def test_a_read_with_nothing_to_read_is_empty(source: Source, toucher: Any) -> None:
    source.sampler.track([toucher.process])
    source.sampler.read()
    assert len(of_pages(source.sampler.read(), range(0))) == 0
    source.sampler.track([])
    source.sampler.read()
    assert len(source.sampler.read()) == 0


def test_a_target_that_has_gone_is_no_trouble(source: Source, toucher: Any) -> None:
    source.sampler.track([toucher.process])
    source.access(16)
    toucher.end()
    source.sampler.read()  # what it did before
    assert len(source.sampler.read()) == 0
    source.sampler.track([ProcessId(toucher.process.pid, 1)])
    assert len(source.sampler.read()) == 0


def test_a_batch_is_the_callers(source: Source, toucher: Any) -> None:
    source.sampler.track([toucher.process])
    source.access(32)
    first = source.sampler.read()
    kept = {name: getattr(first, name).copy() for name in DTYPES}
    source.access(32)
    source.sampler.read()
    for name, column in kept.items():
        assert (getattr(first, name) == column).all()


def test_counters_only_grow_and_samples_are_rows(source: Source, toucher: Any) -> None:
    sampler = source.sampler
    sampler.track([toucher.process])
    rows = 0
    before = [0] * 4
    for _ in range(3):
        source.access(16)
        rows += len(sampler.read())
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
    source.sampler.track([toucher.process])
    source.sampler.close()
    source.sampler.close()
    assert len(source.sampler.read()) == 0
    source.sampler.track([toucher.process])
    source.sampler.set_period(17)


def test_it_has_a_name_for_metrics(source: Source) -> None:
    assert source.sampler.name.isidentifier()
