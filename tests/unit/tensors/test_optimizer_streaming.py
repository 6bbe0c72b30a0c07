# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.training_steps.mixed_precision import MixedPrecisionStep
from hmd.tensors.memory_system import RULES, STRICT, MemorySystem, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named, portfolio
from hmd.tensors.planners.myelin import optimizer_buckets
from hmd.tensors.trace import TensorKind

STEP = MixedPrecisionStep()
ACTIVATIONS = (STEP.layers + 1) * STEP.activation_bytes
PCIE_GBPS = {"PCIe 3": 15.754, "PCIe 5": 63.015}


def quartered(rate: float) -> MemorySystem:
    """Return a GPU with a quarter of what the step needs without streaming."""
    whole = STEP.resident_bytes + ACTIVATIONS
    return load_system("g10").changed(
        {"gpu": whole // 4 // 4096 * 4096}, rates={"pcie": rate, "dram": rate}
    )


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("rate", PCIE_GBPS.values(), ids=PCIE_GBPS)
def test_myelin_with_a_quarter_of_the_memory_loses_at_most_a_tenth(rate: float, rules: str) -> None:
    problem = StepProblem(STEP.trace(), quartered(rate), RULES[rules])
    found = problem.price(planner_named("myelin").plan(problem))
    assert problem.trace.ideal_seconds / found.seconds >= 0.9


def test_myelin_keeps_axonns_bytes_and_two_more_buckets() -> None:
    problem = StepProblem(STEP.trace(), quartered(15.754), STRICT)
    found = problem.price(planner_named("myelin").plan(problem))
    used = int(found.occupied[:, 0].max())
    # While a bucket is updated, the next arrives and the one before leaves.
    assert used <= STEP.streamed_bytes + 2 * 16 * STEP.bucket + ACTIVATIONS
    assert used < (STEP.resident_bytes + ACTIVATIONS) / 4


def test_mixed_precision_step_has_twenty_bytes_per_parameter() -> None:
    trace = STEP.trace()
    weights, gradients, state, wide = (
        int(trace.tensor_bytes[trace.tensor_kind == kind].sum())
        for kind in (
            TensorKind.WEIGHT,
            TensorKind.GRADIENT,
            TensorKind.OPTIMIZER,
            TensorKind.WORKSPACE,
        )
    )
    parts = (2, 2, 12, 4)
    assert (weights, gradients, state, wide) == tuple(each * STEP.parameters for each in parts)


def test_optimizer_buckets_hold_all_state_once_within_their_size() -> None:
    problem = StepProblem(STEP.trace(), quartered(15.754), STRICT)
    size = 3 * 4 * STEP.bucket
    buckets = optimizer_buckets(problem, size)
    state = np.flatnonzero(problem.trace.tensor_kind == TensorKind.OPTIMIZER)
    assert sorted(np.concatenate(buckets).tolist()) == state.tolist()
    assert max(int(problem.trace.tensor_bytes[each].sum()) for each in buckets) <= size


def test_portfolio_streams_optimizer_state_as_fast_as_myelin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if it were a step of thousands of kernels: no program is solved.
    monkeypatch.setattr(portfolio, "_PROGRAM_ROWS", 0)
    problem = StepProblem(STEP.trace(), quartered(15.754), STRICT)
    found = problem.price(planner_named("portfolio").plan(problem)).seconds
    assert found <= problem.price(planner_named("myelin").plan(problem)).seconds * 1.001
