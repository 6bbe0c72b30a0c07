# SPDX-License-Identifier: MIT
"""A program of two threads in the guest: its runtime by the counters, the recording, the replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.suite.ground_truth import RecordedStream
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from bench.suite.replay_check import placed
from hmd.emulate.demo.measure import Meter
from hmd.emulate.preset import load
from hmd.emulate.recordings.recorder import (
    ALL_FAST,
    RECORDED_ON,
    Placement,
    guest,
    program_cpus,
    run_in,
    widest_core,
)
from hmd.emulate.recordings.replay import replayed

INTERLEAVED = Placement("interleave", (0, 1))


@pytest.mark.timeout(600)
def test_program_of_threads_replayed_takes_the_guests_time(tmp_path: Path) -> None:
    program = load_program("ranks")
    command, preset = prepare(program, tmp_path), widest_core(load(RECORDED_ON))
    with guest(preset, command) as machine:
        meter = Meter(machine, program_cpus(command))
        for placement in (INTERLEAVED, ALL_FAST):
            before = meter.read()
            run = run_in(machine, command, placement)
            passed = meter.read().since(before)
            assert passed.busy_s == pytest.approx(run.busy_s, rel=0.001)
            # The meter is read before and after the run's own readings.
            assert passed.instructions >= run.instructions
            assert passed.instructions == pytest.approx(run.instructions, rel=0.001)
            stream = run.recording.stream
            assert stream.cpus == program.threads == 2
            # Both threads execute about a half, and so are awake together.
            executed = [int(stream.instructions[stream.rows_of(cpu)][-1]) for cpu in range(2)]
            assert min(executed) > 0.3 * run.instructions
            recorded = RecordedStream(program.name, stream, run.host_s)
            layout = placed(recorded, run.recording, preset)
            replay_s = replayed(stream, preset, layout) * 1e-12
            assert replay_s == pytest.approx(run.busy_s, rel=0.02)
