# SPDX-License-Identifier: MIT
"""Page faults of real processes, sampled through the real kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.page_faults import PERIODS, open_faults
from hmd.sample.ring_sampler import RingSampler
from tests.fakes.toucher import Toucher


@pytest.fixture
def sampler() -> Iterator[RingSampler]:
    sampler = open_faults()
    yield sampler
    sampler.close()


def within(batch: AccessBatch, pages: range) -> list[int]:
    """Addresses of the batch in these pages."""
    rows = (batch.address >= pages.start) & (batch.address < pages.stop)
    return sorted(batch.address[rows].tolist())


@pytest.mark.parametrize("verb", ["touch", "thread"])
def test_fault_sampler_reports_every_first_touch(
    sampler: RingSampler, toucher: Toucher, verb: str
) -> None:
    sampler.track([toucher.process])
    pages = toucher.touch(64, verb)
    batch = sampler.read()
    assert within(batch, pages) == list(pages)
    assert set(batch.process.tolist()) == {0}
    assert set(batch.kind.tolist()) == {Kind.FAULT}
    assert set(batch.period.tolist()) == {1}
    assert (np.diff(batch.time_ns[batch.cpu == batch.cpu[0]].astype(np.int64)) >= 0).all()
    assert sampler.stats.lost == sampler.stats.corrupt == 0
    assert sampler.stats.samples == len(batch)


def test_fault_sampler_drops_untracked_process(sampler: RingSampler, toucher: Toucher) -> None:
    sampler.track([ProcessId(1, 0)])
    pages = toucher.touch(64)
    assert within(sampler.read(), pages) == []
    assert sampler.stats.dropped >= 64


def test_fault_sampler_without_processes_samples_nothing(
    sampler: RingSampler, toucher: Toucher
) -> None:
    toucher.touch(64)
    assert len(sampler.read()) == 0
    sampler.track([toucher.process])
    toucher.touch(4)
    assert len(sampler.read()) > 0
    sampler.track([])
    sampler.read()
    before = sampler.stats.dropped
    toucher.touch(64)
    assert len(sampler.read()) == 0
    assert sampler.stats.dropped == before


def test_fault_sampler_rows_index_tracked_order(sampler: RingSampler, toucher: Toucher) -> None:
    sampler.track([ProcessId(2**22, 1), toucher.process, ProcessId(1, 0)])
    pages = toucher.touch(16)
    batch = sampler.read()
    assert set(batch.process[np.isin(batch.address, list(pages))].tolist()) == {1}


def test_fault_sampler_reads_last_samples_of_ended_process(
    sampler: RingSampler, toucher: Toucher
) -> None:
    sampler.track([toucher.process])
    pages = toucher.touch(64)
    toucher.end()
    assert len(within(sampler.read(), pages)) == 64


def test_fault_sampler_tells_reused_pid_apart(sampler: RingSampler, toucher: Toucher) -> None:
    earlier = ProcessId(toucher.process.pid, toucher.process.start_ticks - 1)
    sampler.track([earlier])
    toucher.touch(64)
    assert len(sampler.read()) == 0


def test_fault_sampler_period_samples_one_in_n(sampler: RingSampler, toucher: Toucher) -> None:
    sampler.track([toucher.process])
    assert sampler.set_period(7) == 7
    sampler.read()
    pages = toucher.touch(7 * 64)
    batch = sampler.read()
    # One of seven, and those of other programs on the same CPU count towards the seven.
    assert 1 <= len(within(batch, pages)) <= 65
    assert set(batch.period.tolist()) == {7}


@pytest.mark.parametrize(("asked", "given"), [(0, PERIODS[0]), (13, 13), (10**9, PERIODS[-1])])
def test_fault_sampler_period_is_rounded_to_the_ladder(
    sampler: RingSampler, asked: int, given: int
) -> None:
    assert sampler.set_period(asked) == given
    assert sampler.period == given


def test_fault_sampler_with_full_ring_counts_lost(toucher: Toucher) -> None:
    sampler = open_faults(ring_pages=1)
    try:
        sampler.track([toucher.process])
        toucher.touch(2000)
        kept = len(sampler.read())
        # The kernel writes the count of the lost before the next record that fits.
        toucher.touch(1)
        kept += len(sampler.read())
        assert sampler.stats.lost > 0
        assert kept + sampler.stats.dropped + sampler.stats.lost >= 2001
    finally:
        sampler.close()


def test_fault_sampler_closed_reads_nothing(sampler: RingSampler, toucher: Toucher) -> None:
    sampler.track([toucher.process])
    sampler.close()
    sampler.close()
    assert len(sampler.read()) == 0
    sampler.track([])
    assert sampler.set_period(7) == 1
