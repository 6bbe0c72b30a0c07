# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from bench.tensors.publications.residency_model import (
    ResidencyModel,
    ResidencyOptions,
    gap_kernels,
    residency_moves,
)
from hmd.base.units import MIB
from hmd.tensors.lifetimes import tensor_spans, vitality
from hmd.tensors.memory_system import G10, RULES, STRICT
from hmd.tensors.move_plan import plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.trace import TensorTrace
from tests.unit.tensors.conftest import RW, R, W, in_place_system, make_trace, small_system


def chain(layers: int = 6, size_mib: int = 8, kernel_ms: float = 4.0) -> TensorTrace:
    """Return a step that writes one activation per layer and reads them in reverse order."""
    weights = [(layers + layer, R) for layer in range(layers)]
    forward = [
        (kernel_ms, [(layer, W), weights[layer], *([(layer - 1, R)] if layer else [])])
        for layer in range(layers)
    ]
    backward = [(kernel_ms, [(layer, R), weights[layer]]) for layer in reversed(range(layers))]
    steps = [part for kernel in forward + backward for part in (kernel, (kernel_ms, []))]
    sizes = [size_mib] * layers + [2] * layers
    return make_trace(sizes, steps, persistent=range(layers, 2 * layers))


def test_spans_of_close_uses_are_one_span() -> None:
    trace = make_trace(
        [1, 1], [(1, [(0, W)]), (1, [(0, R)]), (1, []), (1, []), (1, [(0, R)]), (1, [(1, R)])], [1]
    )
    spans = tensor_spans(trace, vitality(trace))
    assert spans.tensor.tolist() == [0, 0, 1]
    assert list(zip(spans.first.tolist(), spans.last.tolist(), strict=True)) == [
        (0, 1),
        (4, 4),
        (5, 5),
    ]
    assert (spans.reads.tolist(), spans.writes.tolist()) == ([1, 1, 1], [1, 0, 0])
    assert gap_kernels(spans, trace.kernels).tolist() == [2, 5]
    assert spans.wraps.tolist() == [0, 1]


@pytest.mark.parametrize("rules", RULES)
def test_residency_of_step_with_room_takes_ideal_time(rules: str) -> None:
    trace = chain()
    problem = StepProblem(trace, small_system(200), RULES[rules])
    residency = ResidencyModel(problem, ResidencyOptions()).solve(20.0)
    assert residency.seconds == pytest.approx(trace.ideal_seconds, rel=1e-4)
    assert (residency.away == 0).all()
    # The weights come from flash in the first step; the rules g10 also wait for allocations.
    price = problem.price(plan_of(residency_moves(residency, problem)))
    assert price.seconds == pytest.approx(trace.ideal_seconds, rel=0.02)


@pytest.mark.parametrize("rules", [G10, STRICT], ids=lambda rules: rules.name)
def test_residency_of_step_without_room_hides_its_moves(rules: object) -> None:
    trace = chain()
    assert rules in (G10, STRICT)
    problem = StepProblem(trace, small_system(44), G10 if rules is G10 else STRICT)
    residency = ResidencyModel(problem, ResidencyOptions(capacity=0.95)).solve(20.0)
    assert residency.away.sum() >= 2
    price = problem.price(plan_of(residency_moves(residency, problem)))
    assert price.seconds == pytest.approx(trace.ideal_seconds, rel=0.02)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_residency_in_place_costs_what_the_simulator_says(share: float) -> None:
    trace = chain(kernel_ms=0.5)
    fast_mib = int(vitality(trace).peak_bytes * share / MIB)
    problem = StepProblem(trace, in_place_system(fast_mib), STRICT)
    residency = ResidencyModel(problem, ResidencyOptions()).solve(20.0)
    assert residency.gap <= 1e-3
    plan = plan_of(residency_moves(residency, problem))
    assert problem.price(plan, steps=3).seconds == pytest.approx(residency.seconds, rel=0.02)


def test_residency_counts_latencies_of_accesses_and_moves() -> None:
    trace = chain(kernel_ms=0.5)
    system = in_place_system(int(vitality(trace).peak_bytes * 0.5 / MIB), access_us=120.0)
    link = system.links[0].model_copy(update={"latency_us": 90.0})
    slow = system.model_copy(update={"links": (link,)})
    seconds = []
    for each in (in_place_system(system.tiers[0].capacity // MIB), slow):
        problem = StepProblem(trace, each, STRICT)
        residency = ResidencyModel(problem, ResidencyOptions()).solve(20.0)
        plan = plan_of(residency_moves(residency, problem))
        assert problem.price(plan, steps=3).seconds == pytest.approx(residency.seconds, rel=0.02)
        seconds.append(residency.seconds)
    assert seconds[1] > seconds[0] + 100e-6


def test_moves_that_wait_for_a_link_delay_no_kernel_while_there_is_room() -> None:
    """Three tensors leave at once, three times what their kernels' time carries; room is due later.

    Each takes 0.84 ms to leave.
    """
    idle: list[tuple[float, list[tuple[int, int]]]] = [(0.2, [])] * 20
    written = [(0.1, [(tensor, W)]) for tensor in range(3)]
    read = [(0.2, [(tensor, R)]) for tensor in range(3)]
    trace = make_trace([8, 8, 8, 26], [*written, *idle, (0.2, [(3, RW)]), *idle, *read])
    problem = StepProblem(trace, in_place_system(30), STRICT)
    residency = ResidencyModel(problem, ResidencyOptions()).solve(20.0)
    assert residency.away.sum() == pytest.approx(3.0)
    assert residency.seconds == pytest.approx(trace.ideal_seconds, rel=2e-3)
    found = problem.price(plan_of(residency_moves(residency, problem)), steps=3)
    assert found.seconds == pytest.approx(residency.seconds, rel=1e-2)


def test_moves_that_wait_for_a_link_take_room_of_the_fastest_tier() -> None:
    """The room is due before three tensors have left: the program counts what is still there."""
    written = [(0.1, [(tensor, W)]) for tensor in range(3)]
    read = [(0.2, [(tensor, R)]) for tensor in range(3)]
    idle: list[tuple[float, list[tuple[int, int]]]] = [(0.2, [])] * 20
    kernels = [*written, *idle[:3], (0.2, [(3, RW)]), *idle, *read]
    trace = make_trace([8, 8, 8, 26], kernels)
    problem = StepProblem(trace, in_place_system(30), STRICT)
    residency = ResidencyModel(problem, ResidencyOptions()).solve(20.0)
    assert residency.seconds > trace.ideal_seconds * 1.02
    found = problem.price(plan_of(residency_moves(residency, problem)), steps=3)
    assert trace.ideal_seconds * 1.02 < found.seconds <= residency.seconds * 1.001
