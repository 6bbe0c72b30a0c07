# SPDX-License-Identifier: MIT
"""Results and goals of the demonstration, from the output of its programs."""

import json

import pytest

from hmd.base.errors import HmdError
from hmd.emulate.demo.measure import Reading, Variant, bound_to
from hmd.emulate.demo.programs import HotsetProgress, HotSetRun, _rate
from hmd.emulate.demo.run import OperationRates, ProgramResult, goals


def progress(time_s: float, updates: int, modelled_s: float, fast: int = 0) -> HotsetProgress:
    phase = 1 if time_s < 5 else 2
    return HotsetProgress(
        time_s,
        phase,
        updates,
        modelled_s,
        Reading(modelled_s, modelled_s, modelled_s, (fast, 100 - fast), 0),
    )


def result(**changed: object) -> ProgramResult:
    rates = {
        variant: OperationRates(10.0, speed)
        for variant, speed in zip(Variant, (100, 40, 60, 95), strict=True)
    }
    values: dict[str, object] = {
        "rates": rates,
        "fast_share_before": 0.4,
        "fast_share_after": 0.95,
        "pages_promoted": 3,
        "pages_demoted": 2,
        "integrity_ok": True,
        "hot_bytes": 48,
        "fast_bytes": 52,
    }
    return ProgramResult(**(values | changed))  # type: ignore[arg-type]


def test_hotset_rate_over_window_in_both_clocks() -> None:
    run = HotSetRun([progress(t, t * 100, t / 20) for t in range(11)])
    assert run.rate(2, 8) == pytest.approx((100, 2000))


def test_hotset_rate_window_without_lines_refused() -> None:
    with pytest.raises(HmdError, match="too few lines"):
        HotSetRun([progress(1, 1, 1)]).rate(0, 10)


def test_hotset_recovery_first_of_two_good_intervals() -> None:
    rates = {5: 10, 6: 90, 7: 20, 8: 96, 9: 100}  # by the second that begins there
    updates, lines = 0, []
    for t in range(5, 11):
        lines.append(progress(t, updates, float(t)))
        updates += rates.get(t, 100)
    assert HotSetRun(lines).seconds_to_recover(5, 100, 0.95) == 3
    assert HotSetRun(lines[:4]).seconds_to_recover(5, 100, 0.95) is None


def test_goals_one_value_out_of_bounds_one_goal_missed() -> None:
    fine = result(seconds_to_recover=4.0, recover_limit_s=4.5)
    assert all(goal.reached for goal in goals({"hotset": fine}))
    late = result(seconds_to_recover=5.0, recover_limit_s=4.5)
    never = result(seconds_to_recover=None, recover_limit_s=4.5)
    wrong = result(integrity_ok=False)
    for bad in (late, never, wrong):
        assert sum(not goal.reached for goal in goals({"x": bad})) == 1


def test_program_result_as_json_names_four_variants() -> None:
    document = json.loads(json.dumps(result().as_json()))
    assert {"all_fast", "all_slow", "first_touch", "hmd"} <= set(document)
    assert document["hmd"] == {"ops_per_s": 10.0, "modelled_ops_per_s": 95}
    assert "rates" not in document


def test_bound_to_only_bound_variants_have_memory_policy() -> None:
    assert "--membind=0" in bound_to(Variant.ALL_FAST, 1)
    assert "--membind=1" in bound_to(Variant.ALL_SLOW, 1)
    for variant in (Variant.FIRST_TOUCH, Variant.HMD):
        assert not any("mem" in word for word in bound_to(variant, 1))


def test_redis_rate_from_csv_or_refused() -> None:
    csv = '"test","rps","avg_latency_ms"\n"GET key:__rand_int__","1234.50","0.1"\n'
    assert _rate(csv) == 1234.5
    with pytest.raises(HmdError, match="rate"):
        _rate("Could not connect\n")
