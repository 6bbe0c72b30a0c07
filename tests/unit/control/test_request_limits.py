# SPDX-License-Identifier: MIT
"""What one user may ask for per second, and have written to the log."""

from __future__ import annotations

import logging

import pytest

from hmd.base.errors import HmdError
from hmd.control.requests import (
    BURST,
    LOG_WINDOW_S,
    MAX_LINES,
    MAX_OWN_LINES,
    RATE_PER_S,
    REQUEST_CPU_S,
    Peer,
    RequestLog,
    RequestRate,
)

ALICE, BOB = Peer(0, 1000, 1000), Peer(0, 1001, 1001)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def taken(rate: RequestRate, peer: Peer, count: int) -> int:
    """Return how many of ``count`` requests are let through."""
    through = 0
    for _ in range(count):
        try:
            rate.admit(peer)
        except HmdError:
            continue
        through += 1
    return through


def test_request_rate_beyond_burst_limited_per_user() -> None:
    clock = Clock()
    rate = RequestRate(clock)
    assert taken(rate, ALICE, 10_000) == BURST
    assert taken(rate, BOB, 10) == 10
    clock.now_s += 5
    assert taken(rate, ALICE, 10_000) == 5 * RATE_PER_S
    clock.now_s += 3600
    assert taken(rate, ALICE, 10_000) == BURST


def test_request_that_takes_long_counts_as_several() -> None:
    clock = Clock()
    rate = RequestRate(clock)
    rate.admit(ALICE)
    rate.charge(ALICE, REQUEST_CPU_S / 2)
    assert taken(rate, ALICE, 10_000) == BURST - 1
    clock.now_s += 3600
    rate.admit(ALICE)
    rate.charge(ALICE, 2 * BURST * REQUEST_CPU_S)
    with pytest.raises(HmdError, match=r"uid 1000 asks too often: .* next in 13 s"):
        rate.admit(ALICE)
    assert taken(rate, BOB, 1) == 1
    clock.now_s += BURST / RATE_PER_S + 1
    assert taken(rate, ALICE, 10_000) > 0


def test_request_rate_of_many_users_bounded_in_memory() -> None:
    rate = RequestRate(Clock())
    for uid in range(5000):
        rate.admit(Peer(0, uid, uid))
    assert len(rate._buckets) <= 1024


def test_request_log_flood_of_one_user_three_lines_and_a_sum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = RequestLog(logging.getLogger("test"), clock)
    for number in range(1000):
        log.write(ALICE, logging.WARNING, f"refused {number}")
    log.write(BOB, logging.WARNING, "refused too")
    assert len(caplog.messages) == MAX_OWN_LINES + 1
    clock.now_s += LOG_WINDOW_S
    log.flush()
    assert caplog.messages[-1] == f"admin requests that were not logged: {1000 - 3} by uid 1000"
    log.flush()
    log.write(ALICE, logging.WARNING, "again")
    assert caplog.messages[-1] == "again"


def test_request_log_many_users_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RequestLog(logging.getLogger("test"), clock)
    for uid in range(2000):
        log.write(Peer(0, uid, uid), logging.WARNING, "refused")
    assert len(caplog.messages) == MAX_LINES
    clock.now_s += LOG_WINDOW_S
    log.flush()
    assert caplog.messages[-1].endswith(f"and of {2000 - MAX_LINES - 8} other users")
