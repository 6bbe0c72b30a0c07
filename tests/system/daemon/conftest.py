# SPDX-License-Identifier: MIT
"""Fixtures: a daemon as a separate process on this host, with the faults sampler."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hmd.control.client import ask
from tests.fakes.free_port import free_port

TIMEOUT_S = 60.0
FAULTER = """
import mmap, sys, time
print("up", flush=True)
while True:
    memory = mmap.mmap(-1, 4 << 20)
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    time.sleep(0.02)
    memory.close()
"""
"""Faults pages in for ever: a program that page faults show."""


def wait_for(what: Callable[[], Any], description: str) -> Any:
    """Return the first true answer."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        answer = what()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"waited {TIMEOUT_S:.0f} s without result for: {description}")


class Daemon:
    """``hmd run`` with a configuration in ``folder``; its notifications and log are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "hmd.yaml"
        self.socket = folder / "run/hmd.sock"
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "log"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.manager.setblocking(False)
        self.notifications: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, targets: str, extra: str = "") -> None:
        self.config.write_text(
            f"tick: 50ms\nrescan: 100ms\ntargets: {targets}\n{extra}"
            "sample: {sampler: faults, period: 1, cpu_quota: 50%}\n"
            f"observe: {{metrics: '{self.address}', socket: {self.socket}}}\n"
        )

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hmd", "run", "--config", str(self.config), *options],
                stderr=log,
                env=environ,
            )
        return self.process

    def notified(self) -> list[str]:
        """Return all notifications since the start."""
        while True:
            try:
                self.notifications.append(self.manager.recv(4096).decode())
            except BlockingIOError:
                return self.notifications

    def wait_ready(self, times: int = 1) -> None:
        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            return sum(line.startswith("READY=1") for line in self.notified()) >= times

        wait_for(ready, "READY=1")

    def status(self) -> dict[str, Any]:
        return ask(self.socket, "status", timeout_s=20)

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        raise AssertionError(f"no {name}{json.dumps(labels)}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.manager.close()


@pytest.fixture(scope="module")
def module_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("daemon"))
    yield daemon
    daemon.end()


@pytest.fixture
def new_daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.end()


@pytest.fixture
def faulter() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", FAULTER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.send_signal(signal.SIGKILL)
