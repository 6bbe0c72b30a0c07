# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from hmd.base.units import MIB
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import G10, RULES, STRICT, MemorySystem, load_system
from hmd.tensors.move_plan import ANY, WHOLE, Move, MovePlanError, plan_of
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import PLANNERS
from hmd.tensors.simulator import SlowPlanError, simulate_step
from hmd.tensors.trace import TensorTrace
from tests.unit.tensors.conftest import R, W, in_place_system, make_trace, small_system

GPU, HOST, SSD, NONE = 0, 1, 2, 3


def pair() -> TensorTrace:
    """Return a step that writes 8 MiB, works on 8 MiB else, and reads the first again."""
    return make_trace(
        [8, 8],
        [(1, [(0, W)]), (10, []), (1, [(1, W)]), (1, [(1, R)]), (10, []), (1, [(0, R)])],
    )


@pytest.mark.parametrize("rules", RULES)
def test_step_that_fits_takes_ideal_time(rules: str) -> None:
    moves = [(0, 0, NONE, GPU, WHOLE), (1, 1, NONE, GPU, WHOLE)]
    found = simulate_step(pair(), small_system(64), RULES[rules], plan_of(moves))
    # The first allocation waits for the end of its slot, 25 µs.
    assert found.seconds == pytest.approx(pair().ideal_seconds, abs=30e-6)
    assert found.moved_bytes == 0


@pytest.mark.parametrize("rules", RULES)
def test_step_with_planned_moves_hides_them(rules: str) -> None:
    moves = [
        (0, 0, NONE, GPU, WHOLE),
        (1, 0, GPU, HOST, WHOLE),
        (2, 1, NONE, GPU, WHOLE),
        (4, 1, GPU, NONE, WHOLE),
        (4, 0, HOST, GPU, WHOLE),
    ]
    found = simulate_step(pair(), small_system(8), RULES[rules], plan_of(moves))
    assert found.seconds == pytest.approx(pair().ideal_seconds, abs=60e-6)
    assert found.moved_bytes == 16 * MIB


def test_step_without_moves_stalls_for_the_transfers() -> None:
    found = simulate_step(pair(), small_system(8), STRICT, plan_of([]))
    stalls = found.seconds - pair().ideal_seconds
    # 8 MiB out while the second tensor is allocated, 8 MiB in before the last kernel, one fault.
    transfer = 8 * MIB / 8e9
    assert stalls == pytest.approx(2 * transfer + 45e-6, rel=0.05)
    assert found.stall[2] / 1e9 == pytest.approx(transfer, rel=0.05)
    assert found.stall[5] / 1e9 == pytest.approx(transfer + 45e-6, rel=0.05)


def test_step_part_of_tensor_moves_only_its_bytes() -> None:
    moves: list[Move] = [(0, 0, NONE, GPU, WHOLE), (1, 0, GPU, HOST, 2 * MIB)]
    found = simulate_step(pair(), small_system(64), STRICT, plan_of(moves))
    assert found.moved[:, HOST, 1].sum() == 2 * MIB
    assert found.moved[:, HOST, 0].sum() == 2 * MIB


def with_latency(system: MemorySystem, **latencies: float) -> MemorySystem:
    """Return a system whose links have these latencies, in microseconds."""
    links = tuple(
        link.model_copy(update={"latency_us": latencies.get(link.name, 0.0)})
        for link in system.links
    )
    return system.model_copy(update={"links": links})


def fetched_late(tensors: int) -> tuple[TensorTrace, list[Move]]:
    """Return a step that needs 8 MiB, in so many tensors, when it begins to fetch them."""
    both = range(tensors)
    trace = make_trace(
        [8 // tensors] * tensors,
        [(1, [(each, W) for each in both]), (10, []), (1, [(each, R) for each in both])],
    )
    moves = [(0, each, NONE, GPU, WHOLE) for each in both]
    moves += [(1, each, GPU, HOST, WHOLE) for each in both]
    return trace, moves + [(2, each, HOST, GPU, WHOLE) for each in both]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("tensors", [1, 4])
def test_latency_delays_each_transaction_by_its_path(rules: str, tensors: int) -> None:
    trace, moves = fetched_late(tensors)
    systems = (small_system(8), with_latency(small_system(8), pcie=300.0, dram=200.0, flash=7e5))
    stalls = [
        simulate_step(trace, system, RULES[rules], plan_of(moves)).seconds for system in systems
    ]
    # A slot has 25 us; latencies of one path add up, those of other links do not count.
    assert stalls[1] - stalls[0] == pytest.approx(tensors * 500e-6, abs=30e-6)


def test_latency_of_one_tensor_in_parts_counts_once() -> None:
    trace, moves = fetched_late(1)
    halves: list[Move] = [*moves[:2], (2, 0, HOST, GPU, 4 * MIB), (2, 0, HOST, GPU, 4 * MIB)]
    system = with_latency(small_system(8), pcie=500.0)
    prices = [
        simulate_step(trace, system, STRICT, plan_of(each)).seconds for each in (moves, halves)
    ]
    assert prices[0] == prices[1]


def test_latency_longer_than_idle_limit_is_waited_for() -> None:
    trace = make_trace([8], [(1, [(0, R)])], persistent=[0])
    system = with_latency(small_system(8), flash=9e5)
    found = simulate_step(trace, system, STRICT, plan_of([]), steps=1)
    assert found.seconds == pytest.approx(0.9 + 8 * MIB / 2e9 + 1e-3, abs=200e-6)


def test_latency_leaves_bound_below_price() -> None:
    system = with_latency(small_system(8), pcie=400.0)
    found = simulate_step(pair(), system, STRICT, plan_of([]))
    least = [lower_bound_seconds(pair(), each, STRICT) for each in (system, small_system(8))]
    assert least[0] == least[1]
    assert found.seconds > simulate_step(pair(), small_system(8), STRICT, plan_of([])).seconds
    assert found.seconds > least[0]


def test_step_flash_takes_over_from_full_host() -> None:
    found = simulate_step(pair(), small_system(8, host_mib=4), STRICT, plan_of([]))
    assert found.moved[:, SSD, 1].sum() == pytest.approx(4 * MIB, rel=0.01)


def test_kernels_in_place_pay_for_slow_operands() -> None:
    trace = make_trace([8, 8], [(1, [(0, W)]), (1, [(1, W)]), (1, [(0, R), (1, R)])])
    found = simulate_step(trace, in_place_system(8), STRICT, plan_of([]))
    slow = 8 * MIB * ((1 / 10e9 - 1 / 50e9) + (1 / 40e9 - 1 / 100e9))
    assert found.seconds - trace.ideal_seconds == pytest.approx(slow, rel=1e-4)


def test_kernels_in_place_wait_for_access_per_slow_operand() -> None:
    trace = make_trace([8, 8], [(1, [(0, W)]), (1, [(1, W)]), (1, [(0, R), (1, R)])])
    systems = (in_place_system(8), in_place_system(8, access_us=70.0))
    prices = [simulate_step(trace, each, STRICT, plan_of([])).seconds for each in systems]
    # Tensor 1 is in the slower tier, and two kernels use it.
    assert prices[1] - prices[0] == pytest.approx(2 * 70e-6, abs=1e-9)


@pytest.mark.parametrize("rules", RULES)
def test_step_beyond_limit_is_refused_and_below_it_priced_alike(rules: str) -> None:
    trace, moves = fetched_late(4)
    plan, system = plan_of(moves), small_system(8)
    price = simulate_step(trace, system, RULES[rules], plan)
    below = simulate_step(trace, system, RULES[rules], plan, limit_seconds=price.seconds + 1e-6)
    assert below.step_ticks == price.step_ticks
    with pytest.raises(SlowPlanError, match="longer than the limit"):
        simulate_step(trace, system, RULES[rules], plan, limit_seconds=price.seconds * 0.9)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([(0, 7, GPU, HOST, WHOLE)], "kernel 0, tensor 7: no tensor 7"),
        ([(9, 0, GPU, HOST, WHOLE)], "kernel 9, tensor 0: no kernel 9"),
        ([(0, 0, GPU, 5, WHOLE)], "no target 5"),
        ([(1, 0, GPU, NONE, WHOLE)], "kernel 1, tensor 0: freed, and read later"),
        ([(1, 0, GPU, HOST, 0)], "kernel 1, tensor 0: no bytes"),
    ],
)
def test_plan_that_cannot_be_carried_out_refused(moves: list[Move], message: str) -> None:
    with pytest.raises(MovePlanError, match=message):
        simulate_step(pair(), small_system(64), STRICT, plan_of(moves))


def test_plan_that_overfills_host_refused() -> None:
    with pytest.raises(MovePlanError, match="kernel 1, tensor 0: host is overfilled"):
        simulate_step(
            pair(), small_system(64, host_mib=4), STRICT, plan_of([(1, 0, GPU, HOST, WHOLE)])
        )


def test_kernel_that_exceeds_fastest_tier_refused() -> None:
    with pytest.raises(MovePlanError, match="kernel 0, tensor 0: the kernel uses"):
        simulate_step(pair(), small_system(4), STRICT, plan_of([]))


def test_lru_of_g10_trace_takes_published_cycles(g10_bert: TensorTrace) -> None:
    problem = StepProblem(g10_bert, load_system("g10"), G10)
    found = problem.price(PLANNERS["lru"].plan(problem))
    assert g10_bert.ideal_ticks == 8742558777
    assert found.step_ticks == pytest.approx((28867913422, 23580084389), rel=1e-4)


@pytest.mark.parametrize(("rules", "share"), [("g10", 0.434), ("strict", 0.862)])
def test_lru_free_of_g10_trace_share_of_ideal(
    g10_bert: TensorTrace, rules: str, share: float
) -> None:
    problem = StepProblem(g10_bert, load_system("g10"), RULES[rules])
    found = problem.price(PLANNERS["lru-free"].plan(problem))
    assert g10_bert.ideal_seconds / found.seconds == pytest.approx(share, abs=0.001)


def test_free_by_any_source_accepted_after_last_read() -> None:
    simulate_step(pair(), small_system(16), STRICT, plan_of([(4, 1, ANY, NONE, WHOLE)]))


@pytest.mark.parametrize("rules", RULES)
def test_page_from_full_host_leaves_its_room_to_the_page_pushed_out(rules: str) -> None:
    weights = make_trace([4, 4, 4], [(0.1, [(each, R)]) for each in range(3)], range(3))
    problem = StepProblem(weights, small_system(4, host_mib=4), RULES[rules])
    found = problem.price(plan_of([]))
    # The first kernel of the second step: its weight is in the host, which is full.
    assert found.moved[0, 1].tolist() == [4 * MIB, 4 * MIB - 4096]
    assert found.moved[0, 2].tolist() == [0, 4096]
