# SPDX-License-Identifier: MIT
"""What a reload takes over, and what it changes, in a daemon of this process."""

from __future__ import annotations

import io
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hmd.config.load import loads
from hmd.daemon.log import start_log
from hmd.daemon.service import Service
from hmd.daemon.systemd import Notifier
from hmd.policy.admin import Pin
from tests.fakes.free_port import free_port


class Reloaded:
    """A service whose configuration a test changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.targets, self.extra, self.metrics = "[]", "", "off"
        self.service = Service(lambda: loads(self._text(), "test"), "test", Notifier({}))

    def _text(self) -> str:
        return (
            f"tick: 1h\ntargets: {self.targets}\nsample: {{sampler: faults}}\n{self.extra}\n"
            f"observe: {{metrics: '{self.metrics}', socket: {self._folder}/hmd.sock}}\n"
        )

    def healthz(self) -> int:
        """Return the status of an answer of the port, on 127.0.0.1."""
        port = self.metrics.rpartition(":")[2]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:  # an answer too
            return refused.code


@pytest.fixture
def reloaded(tmp_path: Path) -> Iterator[Reloaded]:
    made = Reloaded(tmp_path)
    yield made
    made.service.close()


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_reload_logs_only_processes_that_join_or_leave(reloaded: Reloaded, sleeper: int) -> None:
    service, stream = reloaded.service, io.StringIO()
    start_log("info", stream, {})
    reloaded.targets = f"[{{name: one, pid: {sleeper}}}]"
    extras = ("", "decide: {policy: age}", "heat: {store_weight: 2}")
    for now_s, extra in enumerate(extras):
        reloaded.extra = extra
        assert service.reload()
        service.tick(float(now_s))
    reloaded.targets = f"[{{name: two, pid: {sleeper}}}]"
    assert service.reload()
    service.tick(9.0)
    lines = [line.partition("info: ")[2] for line in stream.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("target ")] == [
        f"target one: following pid {sleeper}",
        f"target two: following pid {sleeper}",
        f"target one: left pid {sleeper}",
    ]


def test_drain_and_pin_published_between_reload_and_next_tick(
    reloaded: Reloaded, sleeper: int
) -> None:
    service = reloaded.service
    reloaded.targets = f"[{{name: one, pid: {sleeper}}}]"
    assert service.reload()
    service.tick(0.0)
    (process,) = service.stages.tracked.processes
    address = 1 << 40
    pages = np.zeros((1, 512), np.int8)
    service.stages.state.heat.record_nodes(0, np.array([address], np.uint64), pages)
    service.stages.admin.target_pins["one"] = Pin(None, 0)
    service.stages.admin.drain(frozenset({0}))
    service.stages.admin.policy = "age"
    service.set_policy("age")
    service._publish_control()
    control = service.observer.latest.control
    assert (control.policy_override, control.pinned) == ("age", 1)
    assert [(drain.node, drain.waiting_pages) for drain in control.drains] == [(0, 0)]
    assert not service.explain(process, address)["pages"][0]["movable"]


def test_reloads_before_a_tick_is_due_postpone_no_later_tick(
    reloaded: Reloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, waits_s = reloaded.service, []

    def end_at_once(due_s: float) -> None:  # as a SIGHUP ends the wait
        waits_s.append(due_s - time.monotonic())

    monkeypatch.setattr(service, "_wait", end_at_once)
    service.run(ticks=4)
    assert len(waits_s) == 3
    assert max(waits_s) <= service.stages.budget.tick_s


def test_reload_moves_metrics_to_another_address_on_same_port(reloaded: Reloaded) -> None:
    service, port = reloaded.service, free_port()
    for host in ("127.0.0.1", "0.0.0.0", "127.0.0.1"):
        reloaded.metrics = f"{host}:{port}"
        assert service.reload()
        assert reloaded.healthz() in (200, 503)


def test_metrics_stay_where_another_address_on_same_port_fails(reloaded: Reloaded) -> None:
    service, port = reloaded.service, free_port()
    reloaded.metrics = f"127.0.0.1:{port}"
    assert service.reload()
    reloaded.metrics = f"192.0.2.1:{port}"
    assert not service.reload()
    assert f"cannot serve metrics on 192.0.2.1:{port}" in str(service.observer.latest.reload.error)
    assert reloaded.healthz() in (200, 503)
