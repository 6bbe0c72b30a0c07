# SPDX-License-Identifier: MIT
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


def test_pacing_check_is_due_once_per_batch(parts: Any, pacing: Any) -> None:
    assert pacing.batch_ps == pytest.approx(parts.lib.PACING_BATCH_NS * 1000 / 20, abs=1)
    assert not parts.lib.pacing_due(pacing, 1_000_000 + pacing.batch_ps - 1)
    assert parts.lib.pacing_due(pacing, 1_000_000 + pacing.batch_ps)


def test_pacing_host_time_is_at_least_dilated_time(parts: Any, pacing: Any) -> None:
    began, clock_ps = pacing.now_ns, 1_000_000
    for _ in range(200):
        clock_ps += 3 * pacing.batch_ps
        parts.lib.pacing_look(pacing, clock_ps)
    assert parts.lib.pacing_host_ns() - began >= (clock_ps - 1_000_000) * 20 / 1000 - 1
    assert pacing.paced_ns > 0


def test_pacing_long_wait_is_split(parts: Any, pacing: Any) -> None:
    parts.lib.pacing_look(pacing, 1_000_000 + 10**12)
    assert pacing.paced_ns >= parts.lib.PACING_MAX_WAIT_NS
    assert pacing.due_ns > pacing.now_ns, "the rest stays due"
    assert parts.lib.pacing_due(pacing, 1_000_000 + 10**12), "at the very next occasion"


def test_pacing_behind_schedule_keeps_credit_and_counts_lag(parts: Any, pacing: Any) -> None:
    time.sleep(0.005)
    parts.lib.pacing_look(pacing, 1_000_000 + pacing.batch_ps)
    assert pacing.behind_ns >= 4_000_000
    assert pacing.due_ns == pacing.now_ns - parts.lib.PACING_CREDIT_NS
    assert pacing.paced_ns == 0


def test_pacing_restarted_has_no_debt_and_no_credit(parts: Any, pacing: Any) -> None:
    time.sleep(0.002)
    parts.lib.pacing_start(pacing, 9_000_000)
    assert pacing.due_ns == pacing.now_ns
    assert (pacing.at_ps, pacing.behind_ns, pacing.paced_ns) == (9_000_000, 0, 0)


def test_pacing_without_dilation_never_waits(parts: Any) -> None:
    free = parts.ffi.new("struct pacing *")
    parts.lib.pacing_init(free, 0.0)
    parts.lib.pacing_start(free, 0)
    for clock_ps in range(0, 10**12, 10**10):
        parts.lib.pacing_look(free, clock_ps)
    assert (free.paced_ns, free.behind_ns) == (0, 0)
    assert not parts.lib.pacing_due(free, free.next_ps - 1)


def test_pacing_set_dilation_ignores_invalid_values(parts: Any, pacing: Any) -> None:
    parts.lib.pacing_set(pacing, 40.0)
    assert pacing.dilation == 40.0
    assert pacing.batch_ps == pytest.approx(parts.lib.PACING_BATCH_NS * 1000 / 40, abs=1)
    for wrong in (-1.0, float("nan"), float("inf")):
        parts.lib.pacing_set(pacing, wrong)
        assert pacing.dilation == 40.0
