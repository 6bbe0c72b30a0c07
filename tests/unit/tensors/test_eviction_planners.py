# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.tensors.publications import planner_entry
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import G10, RULES, STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS, planner_named
from hmd.tensors.trace import READ, WRITE, TensorTrace
from tests.unit.tensors.conftest import R, W, g10_trace, in_place_system, make_trace, small_system


def training_step(layers: int, megabytes: int, ms: float) -> TensorTrace:
    """Return forward kernels that write activations and backward kernels that read them."""
    forward = [(ms, [(layer - 1, R), (layer, W)] if layer else [(0, W)]) for layer in range(layers)]
    backward = [(ms, [(layer, R)]) for layer in reversed(range(layers))]
    return make_trace([megabytes] * layers, forward + backward)


@st.composite
def steps(draw: st.DrawFn) -> TensorTrace:
    """Return a random step: tensors that are written before they are read, and some weights."""
    tensors = draw(st.integers(3, 10))
    sizes = [draw(st.integers(1, 6)) for _ in range(tensors)]
    weights = draw(st.integers(0, 2))
    written = set(range(weights))
    kernels = []
    for _ in range(draw(st.integers(2, 14))):
        count = draw(st.integers(1, 3))
        uses: dict[int, int] = {}
        for _ in range(count):
            tensor = draw(st.integers(0, tensors - 1))
            mode = (
                draw(st.sampled_from([READ, WRITE, READ | WRITE])) if tensor in written else WRITE
            )
            uses[tensor] = mode
        written |= set(uses)
        kernels.append((draw(st.floats(0.05, 3)), list(uses.items())))
    return make_trace(sizes, kernels, persistent=range(weights))


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", ["lru", "lru-free", "g10", "portfolio"])
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(trace=steps())
def test_plan_of_random_step_is_carried_out_above_bound(
    name: str, rules: str, trace: TensorTrace
) -> None:
    problem = StepProblem(trace, small_system(19, host_mib=16), RULES[rules])
    found = problem.price(planner_named(name).plan(problem))
    bound = lower_bound_seconds(trace, problem.system, problem.rules)
    assert found.seconds >= bound * (1 - 1e-9) - 1e-6


def test_portfolio_step_with_enough_bandwidth_takes_ideal_time() -> None:
    trace = training_step(8, 8, 4.0)
    problem = StepProblem(trace, small_system(32), STRICT)
    found = problem.price(PLANNERS["portfolio"].plan(problem))
    assert found.seconds == pytest.approx(trace.ideal_seconds, rel=0.01)
    assert found.moved_bytes > 0


def test_portfolio_step_bound_by_link_reaches_the_bound() -> None:
    trace = training_step(12, 8, 0.2)
    problem = StepProblem(trace, small_system(32), STRICT)
    found = problem.price(PLANNERS["portfolio"].plan(problem))
    bound = lower_bound_seconds(trace, problem.system, STRICT)
    assert bound > 1.5 * trace.ideal_seconds
    assert found.seconds < 1.15 * bound
    lru = problem.price(PLANNERS["lru-free"].plan(problem))
    assert found.seconds < lru.seconds


@pytest.mark.parametrize(
    ("name", "planner", "cycles"),
    [
        ("bert-128", "g10", 7087296457),
        ("bert-256", "g10", 8773229325),
        ("bert-512", "g10@1.394", 17607178175),
        ("bert-1024", "g10", 47061169065),
        ("resnet152-256", "g10", 127337222181),
        ("resnet152-1024", "g10", 133620599659),
        ("resnet152-1280", "g10", 137304113890),
    ],
)
def test_g10_of_g10_trace_takes_published_cycles(name: str, planner: str, cycles: int) -> None:
    trace = g10_trace(name)
    problem = StepProblem(trace, load_system("g10"), G10)
    found = problem.price(planner_entry(planner).plan(problem))
    assert min(found.step_ticks) == pytest.approx(cycles, rel=0.01)


@pytest.mark.parametrize(
    ("name", "cycles"), [("bert-256", 8773229325), ("resnet152-1280", 137304113890)]
)
def test_g10_of_g10_trace_takes_published_cycles_exactly(name: str, cycles: int) -> None:
    problem = StepProblem(g10_trace(name), load_system("g10"), G10)
    found = problem.price(planner_entry("g10").plan(problem))
    assert min(found.step_ticks) == cycles


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("name", "share"), [("bert-256", 0.999), ("bert-512", 0.785)])
def test_portfolio_of_g10_trace_share_of_ideal(name: str, share: float, rules: str) -> None:
    trace = g10_trace(name)
    problem = StepProblem(trace, load_system("g10"), RULES[rules])
    found = problem.price(PLANNERS["portfolio"].plan(problem))
    assert trace.ideal_seconds / found.seconds >= share


def test_portfolio_in_place_is_never_slower_than_its_candidates() -> None:
    problem = StepProblem(training_step(8, 8, 1.0), in_place_system(32), STRICT)
    portfolio = problem.price(PLANNERS["portfolio"].plan(problem)).seconds
    for name in ("lru-free", "autotm", "sentinel", "deeptm"):
        assert portfolio <= problem.price(planner_entry(name).plan(problem)).seconds
