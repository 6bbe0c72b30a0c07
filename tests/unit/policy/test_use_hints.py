# SPDX-License-Identifier: MIT
"""Hints of programs: what is taken, what is refused, and when it lapses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.base.errors import UsageError
from hmd.linux.procfs import ProcessId
from hmd.policy.use_hints import MAX_PROCESSES, MAX_USES, STEP_PARTS, HintTable

ONE, OTHER = ProcessId(10, 1), ProcessId(11, 1)
HALF = STEP_PARTS // 2
GOOD: dict[str, Any] = {
    "plan": 1,
    "first": 0,
    "uses": [[4096, 8192, 0, HALF, 64], [12288, 4096, HALF, STEP_PARTS, 128]],
    "begun_ns": 100 * 10**9,
    "step_ns": 8 * 10**9,
}


def test_hints_next_use_in_seconds_from_now() -> None:
    table = HintTable()
    table.accept(OTHER, GOOD)
    hints = table.at([ONE, OTHER], 102.0)
    assert hints is not None
    assert hints.process.tolist() == [1, 1]
    assert hints.begins_s.tolist() == [0.0, 2.0]
    assert hints.ends_s.tolist() == [2.0, 6.0]
    assert hints.step_s.tolist() == [0.0, 8.0]
    assert hints.end.tolist() == [12288, 16384]


def test_hints_use_that_is_over_expected_in_next_step() -> None:
    table = HintTable()
    table.accept(ONE, GOOD)
    hints = table.at([ONE], 106.0)
    assert hints is not None
    assert hints.begins_s.tolist() == [2.0, 0.0]


def test_hints_step_that_takes_longer_waits_for_next() -> None:
    table = HintTable()
    table.accept(ONE, GOOD)
    late = table.at([ONE], 120.0)
    assert late is not None
    assert late.begins_s.tolist() == [0.0, 4.0]


@pytest.mark.parametrize("now_s", [80.0, 133.0])
def test_hints_lapse_without_steps(now_s: float) -> None:
    table = HintTable()
    table.accept(ONE, GOOD)
    assert table.at([ONE], now_s) is None


def test_hints_of_one_plan_add_up_and_another_plan_replaces_them() -> None:
    table = HintTable()
    table.accept(ONE, GOOD)
    table.accept(ONE, {**GOOD, "first": 2})
    both = table.at([ONE], 100.0)
    assert both is not None
    assert len(both.process) == 4
    table.accept(ONE, {**GOOD, "uses": []})
    table.accept(ONE, {**GOOD, "first": 1, "uses": GOOD["uses"][:1]})
    other = table.at([ONE], 100.0)
    assert other is not None
    assert other.address.tolist() == [4096, 4096, 4096, 12288]
    table.accept(ONE, {**GOOD, "plan": 2})
    new = table.at([ONE], 100.0)
    assert new is not None
    assert len(new.process) == 2


def test_hints_that_have_not_all_come_are_those_that_have() -> None:
    table = HintTable()
    table.accept(ONE, {**GOOD, "first": MAX_USES, "uses": []})
    assert table.at([ONE], 100.0) is None
    table.accept(ONE, {**GOOD, "first": MAX_USES - 2})
    hints = table.at([ONE], 100.0)
    assert hints is not None
    assert hints.address.tolist() == [4096, 12288]


def test_hints_of_many_processes_bounded() -> None:
    table = HintTable()
    processes = [ProcessId(100 + each, 1) for each in range(MAX_PROCESSES + 1)]
    for process in processes:
        table.accept(process, GOOD)
    assert table.at(processes[:1], 100.0) is None
    assert table.at(processes[1:], 100.0) is not None


WRONG: list[dict[str, Any]] = [
    {"uses": [[4096, 8192, 0, HALF]]},
    {"uses": [[4097, 8192, 0, HALF, 1]]},
    {"uses": [[4096, 0, 0, HALF, 1]]},
    {"uses": [[4096, 1 << 57, 0, HALF, 1]]},
    {"uses": [[-4096, 8192, 0, HALF, 1]]},
    {"uses": [[4096, 8192, HALF, HALF, 1]]},
    {"uses": [[4096, 8192, 0, STEP_PARTS + 1, 1]]},
    {"uses": [[4096, 8192, 0, HALF, 1 << 40]]},
    {"uses": [[4096, 8192.0, 0, HALF, 1]]},
    {"uses": [[True, 4096, 0, HALF, 1]]},
    {"uses": [[4096, 4096, 0, 1, 1]] * (MAX_USES + 1)},
    {"first": MAX_USES - 1},
    {"first": -1},
    {"step_ns": 0},
    {"step_ns": 10**18},
    {"begun_ns": 1 << 80},
    {"plan": None},
    {"pid": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_hints_wrong_refused_and_nothing_kept(wrong: dict[str, Any]) -> None:
    table = HintTable()
    with pytest.raises(UsageError, match="hint: "):
        table.accept(ONE, {**GOOD, **wrong})
    assert table.at([ONE], 100.0) is None


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), junk))
def test_hints_anything_else_is_no_error_but_usage(wrong: dict[str, Any]) -> None:
    table = HintTable()
    try:
        table.accept(ONE, {**GOOD, **wrong})
    except UsageError:
        return
    table.at([ONE], 100.0)
