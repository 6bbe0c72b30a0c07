# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from hmd.base.units import GIB, MIB
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import RULES, STRICT, load_system
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from tests.unit.tensors.conftest import R, W, g10_trace, make_trace, small_system


def test_bound_of_step_that_fits_is_ideal() -> None:
    trace = make_trace([8], [(1, [(0, W)]), (1, [(0, R)])])
    assert lower_bound_seconds(trace, small_system(8), STRICT) == pytest.approx(trace.ideal_seconds)


@pytest.mark.parametrize(("rules", "computed_after"), [("strict", 0.2e-3), ("g10", 0.0)])
def test_bound_of_short_step_counts_the_way_out_and_back(rules: str, computed_after: float) -> None:
    kernels = [(0.1, [(0, W)]), (0.1, [(1, W)]), (0.1, [(1, R)]), (0.1, [(0, R)])]
    trace = make_trace([8, 8], kernels)
    # 4 MiB leave before the second kernel begins, and return between the last two; or by the ends
    # of the second and the last, where kernels compute meanwhile.
    found = lower_bound_seconds(trace, small_system(12), RULES[rules])
    assert found == pytest.approx(4 * MIB / 8e9 + 4 * MIB / 8e9 + computed_after, rel=1e-6)


def test_bound_counts_the_way_back_from_below_a_full_host() -> None:
    kernels = [(0.1, [(each, W)]) for each in range(4)]
    kernels += [(0.1, [(each, R)]) for each in (3, 2, 1, 0)]
    trace = make_trace([8, 8, 8, 8], kernels)
    system = small_system(16, host_mib=4)
    # Of 32 MiB, 12 do not fit GPU and host: flash takes them at 2 GB/s, and gives them back.
    least = 2 * 12 * MIB / 2e9
    found = lower_bound_seconds(trace, system, STRICT)
    assert least < found < least + trace.ideal_seconds
    problem = StepProblem(trace, system, STRICT)
    assert found <= problem.price(planner_named("lru-free").plan(problem)).seconds


@pytest.mark.parametrize(
    ("name", "host_gib", "share"),
    [
        ("bert-256", 128, 1.0),
        ("bert-512", 128, 0.8007),
        ("bert-512", 0, 0.2659),
        ("bert-512", 16, 0.3746),
        ("bert-512", 32, 0.604),
        ("bert-1024", 128, 0.695),
    ],
)
def test_bound_of_g10_trace_share_of_ideal(name: str, host_gib: int, share: float) -> None:
    trace = g10_trace(name)
    system = load_system("g10").changed({"host": host_gib * GIB})
    found = trace.ideal_seconds / lower_bound_seconds(trace, system, STRICT)
    assert found == pytest.approx(share, abs=0.0006)
