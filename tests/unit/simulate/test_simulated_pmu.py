# SPDX-License-Identifier: MIT
"""The simulated PMU: what its counters sample, with which periods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissFlag, MissStream
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.emulated_pebs import PREFETCH_PERIOD_RATIO, START_PERIOD
from hmd.sample.periods import STORE_PERIOD_RATIO, scaled_period
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.pmu import PmuSettings, SimulatedPmu

PERIOD = 23


def samples_of(stream: MissStream, preset: Preset, flag: int) -> AccessBatch:
    """Samples of a program all of whose misses have this flag."""
    flagged = replace(stream, flags=np.full(len(stream), flag, np.uint8))
    with SimulatedMachine(flagged, preset, 256) as machine:
        pmu = SimulatedPmu(machine, PmuSettings(PERIOD))
        machine.run_until(10.0)
        return pmu.read()


@pytest.mark.parametrize(
    ("flag", "kind", "scale"),
    [
        (0, Kind.LOAD, 1),
        (MissFlag.COVERED, Kind.LOAD, PREFETCH_PERIOD_RATIO),
        (MissFlag.STORE, Kind.STORE, STORE_PERIOD_RATIO),
    ],
)
def test_simulated_pmu_each_counter_its_period(
    settled: MissStream, preset: Preset, flag: int, kind: Kind, scale: int
) -> None:
    batch = samples_of(settled, preset, flag)
    assert len(batch) == pytest.approx(len(settled) / scaled_period(PERIOD, scale), abs=1)
    assert set(batch.kind.tolist()) == {kind}
    assert set(batch.period.tolist()) == {scaled_period(PERIOD, scale)}


def test_simulated_pmu_without_period_records_take_their_overhead(
    settled: MissStream, preset: Preset
) -> None:
    limited = PmuSettings(overhead=0.02)
    with SimulatedMachine(settled, preset, 256) as machine:
        pmu, shares, periods = SimulatedPmu(machine, limited), [], [START_PERIOD]
        while not machine.done:
            before_s, records = machine.now_s, pmu.records
            machine.run_until(machine.now_s + 0.004)
            pmu.read()
            taken_s = (pmu.records - records) * machine.record_s
            shares.append(taken_s / (machine.now_s - before_s))
            periods.append(pmu.period)
    assert shares[0] < 0.015  # the period at the start is too long for this program
    assert periods[-1] < START_PERIOD
    assert np.mean(shares[2:-1]) == pytest.approx(0.02, rel=0.3)


def test_simulated_pmu_period_that_is_set_stays(settled: MissStream, preset: Preset) -> None:
    with SimulatedMachine(settled, preset, 256) as machine:
        pmu = SimulatedPmu(machine, PmuSettings(PERIOD))
        machine.run_until(0.004)
        batch = pmu.read()
    assert pmu.period == PERIOD
    scales = 1, STORE_PERIOD_RATIO, PREFETCH_PERIOD_RATIO
    assert set(batch.period.tolist()) <= {scaled_period(PERIOD, scale) for scale in scales}


def test_simulated_pmu_kernel_rows_not_sampled(settled: MissStream, preset: Preset) -> None:
    assert len(samples_of(settled, preset, MissFlag.KERNEL)) == 0
