# SPDX-License-Identifier: MIT
"""What sampling records cost the sampled CPU: costs by hand, and no effect on what overlaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.access_model import AccessModel
from hmd.base.errors import HmdError
from hmd.emulate.preset import load
from hmd.emulate.timing_params import ModelPart, timing_params
from tests.unit.timing.conftest import GIB, Columns, Machine

RECORD_PS, INTERRUPT_PS, BUFFER = 250_000, 4_000_000, 10
COSTS = {
    "sample_record_ps": RECORD_PS,
    "sample_interrupt_ps": INTERRUPT_PS,
    "sample_buffer_records": BUFFER,
}


def test_records_cost_their_time_and_an_interrupt_per_full_buffer(machine: Machine) -> None:
    model = machine(**COSTS)
    assert model.sample(0, 9) == 9 * RECORD_PS
    assert model.sample(0, 1) == RECORD_PS + INTERRUPT_PS
    assert model.sample(0, 25) == 25 * RECORD_PS + 2 * INTERRUPT_PS
    assert model.sample(1, 9) == 9 * RECORD_PS, "the buffer is the CPU's own"
    counters = model.counters(0)
    assert counters.sampling_ps == counters.busy_ps == 35 * RECORD_PS + 3 * INTERRUPT_PS


def test_records_with_timestamps_cost_an_interrupt_each(machine: Machine) -> None:
    model = machine(**COSTS)
    assert model.sample(0, 7, each_interrupts=True) == 7 * (RECORD_PS + INTERRUPT_PS)
    model.sample(0, 9)
    assert model.counters(0).sampling_ps == 16 * RECORD_PS + 7 * INTERRUPT_PS


def test_records_cost_nothing_without_the_part(machine: Machine) -> None:
    model = machine(parts=ModelPart.ALL & ~ModelPart.SAMPLING, **COSTS)
    assert model.sample(0, 1000) == 0
    assert (model.clock_ps, model.counters(0).sampling_ps) == (0, 0)


def test_buffer_of_no_record_is_refused(machine: Machine) -> None:
    with pytest.raises(HmdError, match="sample_buffer_records must be at least 1"):
        machine(sample_buffer_records=0)


def chased(columns: Columns, scattered: Any) -> Any:
    """Dependent loads of scattered lines of the slow node."""
    address = scattered(400, GIB)
    return columns(address, value=np.append(address[1:], 0) + np.uint64(1 << 40))


@pytest.mark.parametrize("dependent", [True, False])
@pytest.mark.parametrize("every", [1, 7])
def test_record_slows_a_program_by_its_cost_whatever_overlaps(
    machine: Machine, columns: Columns, scattered: Any, dependent: bool, every: int
) -> None:
    """A miss in flight is not hidden behind the record: published costs are net of overlap."""
    quiet = ModelPart.ALL & ~ModelPart.BANDWIDTH
    stream = chased(columns, scattered) if dependent else columns(scattered(400, GIB))
    plain, sampled = machine(parts=quiet), machine(parts=quiet, **COSTS)
    for row in range(len(stream)):
        access = (
            int(stream.instructions[row]),
            int(stream.vaddr[row]),
            int(stream.paddr[row]),
        )
        for model in (plain, sampled):
            model.access(0, *access, value=int(stream.value[row]))
        if row % every == 0:
            sampled.sample(0, 1)
    last = int(stream.instructions[-1])
    for model in (plain, sampled):
        model.idle(0, last)
    added = sampled.counters(0).busy_ps - plain.counters(0).busy_ps
    assert added == sampled.counters(0).sampling_ps > 0


@pytest.mark.parametrize("name", ["dram-pm", "dram-cxl"])
def test_preset_record_costs_what_was_published(name: str) -> None:
    """Akiyama and Hirofuchi, ROSS 2017: 200 to 300 ns for each record, with a full buffer."""
    with AccessModel(timing_params(load(name))) as model:
        each = model.sample(0, 100_000) / 100_000
        timed = model.sample(1, 1000, each_interrupts=True) / 1000
    assert 200_000 <= each <= 300_000
    assert timed > 10 * each
