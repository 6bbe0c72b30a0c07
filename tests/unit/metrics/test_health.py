# SPDX-License-Identifier: MIT
"""Health: the age of the last tick, by the clock and over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from hmd.metrics.exporter import MetricsServer
from hmd.metrics.observer import Observer
from hmd.metrics.status import ALLOWED_S, ALLOWED_TICKS, TickHealth, TickWatch
from tests.fakes.free_port import free_port


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_tick_watch_before_first_tick_unhealthy() -> None:
    assert TickWatch(Clock()).health() == TickHealth(False, "no tick yet")


@pytest.mark.parametrize("tick_s", [0.05, 1.0, 3600.0])
def test_tick_watch_hung_tick_unhealthy_after_three_ticks_and_30_s(tick_s: float) -> None:
    clock = Clock()
    watch = TickWatch(clock)
    watch.record_tick(tick_s)
    assert watch.health().healthy
    clock.now_s += 3 * tick_s + 29.9
    assert watch.health().healthy
    clock.now_s += 0.2
    assert not watch.health().healthy
    watch.record_tick(tick_s)
    assert watch.health().healthy
    assert (ALLOWED_TICKS, ALLOWED_S) == (3, 30.0)


@pytest.fixture
def served(observer: Observer) -> Iterator[tuple[str, TickWatch, Clock]]:
    clock = Clock()
    watch = TickWatch(clock)
    address = f"127.0.0.1:{free_port()}"
    server = MetricsServer(address, lambda: observer.latest, watch.health)
    yield address, watch, clock
    server.close()


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_healthz_age_of_last_tick_decides_status_code(served: tuple[str, TickWatch, Clock]) -> None:
    address, watch, clock = served
    assert get(address) == (503, "no tick yet\n")
    watch.record_tick(1.0)
    clock.now_s += 2.0
    assert get(address) == (200, "last tick 2.0 s ago, at most 33 s\n")
    clock.now_s += 60.0
    assert get(address) == (503, "last tick 62.0 s ago, at most 33 s\n")
