# SPDX-License-Identifier: MIT
"""The bench of the CPU quota: rings that it writes, and a short run of the daemon's loop."""

from __future__ import annotations

import os

import numpy as np
import pytest

from bench.scale.quota import CASES, QuotaCase, QuotaRun, measure
from bench.stages.ring import RECORD, WrittenRing, sampler_over
from hmd.metrics.status import Work


def test_written_rings_samples_are_read_across_the_end_of_the_ring() -> None:
    rings = [WrittenRing(cpu, pages=1) for cpu in range(3)]
    sampler = sampler_over(rings)
    each = 4096 // RECORD.itemsize - 1
    for turn in range(4):
        addresses = np.arange(1, each + 1, dtype=np.uint64) << np.uint64(12 + turn)
        for ring in rings:
            ring.write(addresses)
        batch = sampler.read()
        assert batch.address.tolist() == 3 * addresses.tolist()
        assert set(batch.thread.tolist()) == {os.getpid()}
        assert batch.cpu.tolist() == np.repeat([0, 1, 2], each).tolist()
    sampler.close()


def test_written_ring_without_room_loses_samples() -> None:
    ring = WrittenRing(0, pages=1)
    sampler = sampler_over([ring])
    ring.write(np.ones(1000, np.uint64))
    assert len(sampler.read()) == 4096 // RECORD.itemsize
    sampler.close()


@pytest.mark.parametrize("cpus", [0, 4])
def test_quota_run_counts_all_cpu_time_by_work(cpus: int) -> None:
    run = QuotaRun(QuotaCase("small", 1, 1, 0.05, cpus))
    cpu_s, elapsed_s, ticks, plans = run.run(30.0)
    assert elapsed_s >= 30.0 >= ticks >= plans > 0
    spent_s = run.budget.spent_s
    assert 0 < sum(spent_s.values()) <= cpu_s
    assert all(spent_s[work] > 0 for work in (Work.SAMPLES, Work.DECIDE, Work.OBSERVE))


def test_quota_cases_have_a_row_each() -> None:
    row = measure(QuotaCase("tiny", 1, 2, 0.05), seconds=3.0)
    assert (row.case, row.asked) == ("tiny", 0.05)
    assert row.used > 0
    assert len({case.name for case in CASES}) == len(CASES)
