# SPDX-License-Identifier: MIT
"""The traces that were recorded from bench/tensors/training_steps; PyTorch is not needed here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace, read_trace

FOLDER = Path(__file__).parents[4] / "bench/tensors/training_steps"
NAMES = ("mlp_mixer", "recurrent_network", "residual_network", "transformer_decoder")


@pytest.fixture(scope="module", params=NAMES)
def trace(request: pytest.FixtureRequest) -> TensorTrace:
    return read_trace(FOLDER / f"{request.param}.npz")


def test_recorded_trace_small_and_of_its_script(trace: TensorTrace) -> None:
    assert (FOLDER / f"{trace.name}.npz").stat().st_size < 200 * 1024
    assert f"hmd tensors record {trace.name}.py" in trace.source


def test_recorded_trace_every_weight_is_read_and_updated(trace: TensorTrace) -> None:
    weights = trace.tensor_persistent & (trace.tensor_kind == TensorKind.WEIGHT)
    modes = np.zeros(trace.tensors, np.int64)
    np.bitwise_or.at(modes, trace.use_tensor, trace.use_mode)
    assert weights.sum() >= 10
    assert np.mean(modes[weights] == READ | WRITE) > 0.95


def test_recorded_trace_optimizer_state_as_large_as_weights(trace: TensorTrace) -> None:
    size, kind = trace.tensor_bytes, trace.tensor_kind
    weights, state = (int(size[kind == each].sum()) for each in (0, TensorKind.OPTIMIZER))
    # Momentum has one number per weight, Adam two; buffers have none.
    assert 0.95 <= state / weights <= 2.05


def test_recorded_trace_activations_wait_for_backward(trace: TensorTrace) -> None:
    life = vitality(trace)
    backward = int(life.first[trace.tensor_kind == TensorKind.GRADIENT].min())
    activations = trace.tensor_kind == TensorKind.ACTIVATION
    waiting = activations & (life.first < backward) & (life.last >= backward)
    assert trace.tensor_bytes[waiting].sum() > 0.3 * trace.tensor_bytes[activations].sum()


def test_recorded_trace_first_use_of_intermediate_writes(trace: TensorTrace) -> None:
    order = np.lexsort((trace.use_kernel, trace.use_tensor))
    tensors, at = np.unique(trace.use_tensor[order], return_index=True)
    first = trace.use_mode[order][at]
    made = np.isin(trace.tensor_kind[tensors], (TensorKind.ACTIVATION, TensorKind.GRADIENT))
    made &= ~trace.tensor_persistent[tensors]
    assert (first[made] & WRITE).all()


@pytest.mark.parametrize("planner", ["lru-free", "g10", "sentinel", "portfolio"])
def test_recorded_trace_is_planned_and_priced(planner: str) -> None:
    trace = read_trace(FOLDER / "mlp_mixer.npz")
    life = vitality(trace)
    room = max(life.peak_bytes // 2, int(life.working_bytes.max() * 1.05))
    system = load_system("g10").changed({"gpu": room // 4096 * 4096})
    problem = StepProblem(trace, system, STRICT)
    found = problem.price(PLANNERS[planner].plan(problem))
    assert found.seconds >= trace.ideal_seconds
