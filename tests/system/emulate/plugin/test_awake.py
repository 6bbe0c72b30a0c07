# SPDX-License-Identifier: MIT
"""The time in which at least one watched vCPU is awake, by their own clocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest


class Watched:
    """vCPUs 0 and 1 of a machine, halted."""

    def __init__(self, parts: Any, shared: Any):
        self._lib, self._header = parts.lib, shared.native.header
        self._awake, self.memory = parts.lib.awake_new(), shared.memory
        self.memory.watch(0, 1)

    def wake(self, vcpu: int, clock_ps: int) -> None:
        self._lib.awake_enter(self._awake, self._header, vcpu, clock_ps)

    def halt(self, vcpu: int, clock_ps: int) -> None:
        self._lib.awake_leave(self._awake, self._header, vcpu, clock_ps)

    def storm(self, vcpu: int, rounds: int) -> None:
        self._lib.awake_storm(self._awake, self._header, vcpu, rounds)


@pytest.fixture
def watched(parts: Any, make_shared: Callable[[int], Any]) -> Watched:
    return Watched(parts, make_shared(1 << 20))


def test_awake_overlapping_vcpus_counted_once(watched: Watched) -> None:
    watched.wake(0, 100)
    watched.wake(1, 130)
    watched.halt(0, 150)
    assert watched.memory.awake_ps == 0, "vCPU 1 has not halted"
    watched.halt(1, 180)
    assert watched.memory.awake_ps == 80


def test_awake_halt_of_the_slower_clock_last_does_not_shorten(watched: Watched) -> None:
    watched.wake(0, 100)
    watched.wake(1, 100)
    watched.halt(0, 200)
    watched.halt(1, 150)
    assert watched.memory.awake_ps == 100


def test_awake_pause_between_intervals_not_counted(watched: Watched) -> None:
    for start in (100, 300):
        watched.wake(0, start)
        watched.halt(0, start + 50)
    assert watched.memory.awake_ps == 100


def test_awake_interval_that_begins_before_the_last_ended_not_counted_twice(
    watched: Watched,
) -> None:
    watched.wake(0, 100)
    watched.halt(0, 200)
    watched.wake(1, 150)
    watched.halt(1, 260)
    assert watched.memory.awake_ps == 160


def test_awake_vcpu_that_is_not_watched_ignored(watched: Watched) -> None:
    watched.memory.watch(0)
    watched.wake(1, 100)
    watched.halt(1, 200)
    assert watched.memory.awake_ps == 0


def test_awake_threads_that_wake_and_halt_at_once_count_each_time_once(watched: Watched) -> None:
    rounds = 100_000
    threads = [threading.Thread(target=watched.storm, args=(vcpu, rounds)) for vcpu in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rounds <= watched.memory.awake_ps <= 2 * rounds
