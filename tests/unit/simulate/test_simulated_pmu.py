"""The simulated PMU: what its counters sample, with which periods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hmd.emulate.miss_stream import MissFlag, MissStream
from hmd.emulate.preset import Preset
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.emulated_pebs import PREFETCHED_SCALE
from hmd.sample.memory_events import STORE_SCALE
from hmd.simulate.simulated_machine import SimulatedMachine
from hmd.simulate.simulated_pmu import PmuSettings, SimulatedPmu

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
        (MissFlag.COVERED, Kind.LOAD, PREFETCHED_SCALE),
        (MissFlag.STORE, Kind.STORE, STORE_SCALE),
    ],
)
def test_simulated_pmu_each_counter_its_period(
    settled: MissStream, preset: Preset, flag: int, kind: Kind, scale: int
) -> None:
    batch = samples_of(settled, preset, flag)
    assert len(batch) == pytest.approx(len(settled) / (scale * PERIOD), abs=1)
    assert set(batch.kind.tolist()) == {kind}
    assert set(batch.period.tolist()) == {scale * PERIOD}


def test_simulated_pmu_kernel_rows_not_sampled(settled: MissStream, preset: Preset) -> None:
    assert len(samples_of(settled, preset, MissFlag.KERNEL)) == 0
