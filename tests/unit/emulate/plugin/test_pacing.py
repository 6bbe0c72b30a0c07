"""Pacing: the host's clock never lags behind the dilated modelled clock.

Only bounds that a busy host cannot break are asserted.
"""

from __future__ import annotations

import time
from typing import Any

import pytest


@pytest.fixture
def pacing(parts: Any) -> Any:
    one = parts.ffi.new("struct pacing *")
    parts.lib.pacing_init(one, 20.0)
    parts.lib.pacing_start(one, 1_000_000)
    return one


def test_a_look_is_due_each_two_microseconds_of_host_time(parts: Any, pacing: Any) -> None:
    assert pacing.batch_ps == pytest.approx(parts.lib.PACING_BATCH_NS * 1000 / 20, abs=1)
    assert not parts.lib.pacing_due(pacing, 1_000_000 + pacing.batch_ps - 1)
    assert parts.lib.pacing_due(pacing, 1_000_000 + pacing.batch_ps)


def test_modelled_time_takes_its_dilated_time_on_the_host(parts: Any, pacing: Any) -> None:
    began, clock_ps = pacing.now_ns, 1_000_000
    for _ in range(200):
        clock_ps += 3 * pacing.batch_ps
        parts.lib.pacing_look(pacing, clock_ps)
    assert parts.lib.pacing_host_ns() - began >= (clock_ps - 1_000_000) * 20 / 1000 - 1
    assert pacing.paced_ns > 0


def test_a_long_debt_is_waited_out_in_parts(parts: Any, pacing: Any) -> None:
    parts.lib.pacing_look(pacing, 1_000_000 + 10**12)
    assert pacing.paced_ns >= parts.lib.PACING_MAX_WAIT_NS
    assert pacing.due_ns > pacing.now_ns, "the rest stays due"
    assert parts.lib.pacing_due(pacing, 1_000_000 + 10**12), "at the very next occasion"


def test_time_lost_is_forgiven_but_for_a_credit_and_counted(parts: Any, pacing: Any) -> None:
    time.sleep(0.005)
    parts.lib.pacing_look(pacing, 1_000_000 + pacing.batch_ps)
    assert pacing.behind_ns >= 4_000_000
    assert pacing.due_ns == pacing.now_ns - parts.lib.PACING_CREDIT_NS
    assert pacing.paced_ns == 0


def test_a_vcpu_that_wakes_owes_nothing_and_has_no_credit(parts: Any, pacing: Any) -> None:
    time.sleep(0.002)
    parts.lib.pacing_start(pacing, 9_000_000)
    assert pacing.due_ns == pacing.now_ns
    assert (pacing.at_ps, pacing.behind_ns, pacing.paced_ns) == (9_000_000, 0, 0)


def test_without_dilation_nothing_waits(parts: Any) -> None:
    free = parts.ffi.new("struct pacing *")
    parts.lib.pacing_init(free, 0.0)
    parts.lib.pacing_start(free, 0)
    for clock_ps in range(0, 10**12, 10**10):
        parts.lib.pacing_look(free, clock_ps)
    assert (free.paced_ns, free.behind_ns) == (0, 0)
    assert not parts.lib.pacing_due(free, free.next_ps - 1)


def test_dilation_can_be_changed_within_bounds(parts: Any, pacing: Any) -> None:
    parts.lib.pacing_set(pacing, 40.0)
    assert pacing.dilation == 40.0
    assert pacing.batch_ps == pytest.approx(parts.lib.PACING_BATCH_NS * 1000 / 40, abs=1)
    for wrong in (-1.0, float("nan"), float("inf")):
        parts.lib.pacing_set(pacing, wrong)
        assert pacing.dilation == 40.0
