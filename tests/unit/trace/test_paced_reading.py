# SPDX-License-Identifier: MIT
"""Readings of large processes while they are recorded: put off after one that took long."""

from __future__ import annotations

import time

from hmd.trace.recorder import READ_FREE_S, READ_SHARE, PacedReading


def spend(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def test_short_reading_repeated_at_once() -> None:
    paced = PacedReading()
    assert paced.begin(0.0)
    paced.end(0.0)
    assert paced.begin(0.0)


def test_long_reading_put_off_for_its_share_of_the_time() -> None:
    paced = PacedReading()
    took_s = 2 * READ_FREE_S
    assert paced.begin(10.0)
    spend(took_s)
    paced.end(10.0)
    assert not paced.begin(10.0 + 0.99 * took_s / READ_SHARE)
    assert paced.begin(1e9)
