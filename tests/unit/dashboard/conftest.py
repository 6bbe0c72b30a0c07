# SPDX-License-Identifier: MIT
"""Fixtures: a daemon with minutes of history on a real status socket, and the page's server."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.cli.dashboard_command import _sweep
from hmd.control.status_json import status_answer
from hmd.control.status_socket import StatusSocket
from hmd.dashboard.http_server import JSON, Content, PageServer, page_contents
from hmd.dashboard.poller import Poller
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import Ending, Trace, TracedProcess
from hmd.trace.writer import write_trace
from tests.unit.dashboard.machine import Machine

WINDOW_S = 600.0
TICKS = 140


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Served:
    """A running server; ``watch`` polls only on request."""

    server: PageServer
    watch: Poller

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.server.server_address

    def ask(
        self,
        path: str,
        method: str = "GET",
        host: str | None = "localhost",
        **headers: str,
    ) -> Reply:
        """Return the answer to one request; without a Host header where that is None."""
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True)
            if host is not None:
                connection.putheader("Host", host)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        """Return the state document that the page requests."""
        document: dict[str, Any] = json.loads(self.ask("/state.json").body)
        return document


def run_of(latency_ns: int, runtime_ms: int, tier: str) -> Trace:
    """A run over 32 MiB whose lower pages are hotter."""
    rng, samples = np.random.default_rng(latency_ns), 6000
    columns = {name: np.zeros(samples, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.sort(rng.integers(0, runtime_ms * 10**6, samples)).astype(np.uint64)
    page = np.minimum(rng.geometric(0.0006, samples), 8191)
    columns["address"] = (page * 4096).astype(np.uint64)
    columns["kind"][:] = Kind.LOAD
    columns["latency_ns"][:] = latency_ns
    columns["period"][:] = 100
    columns["instructions"] = np.cumsum(np.where(np.arange(samples) % 2, 50, 20_000)).astype("<u8")
    return Trace(
        {"begin_ns": 0, "tier": tier, "command": ["./program"]},
        (TracedProcess(4711, "program"),),
        Samples(**columns),
        ending=Ending(0, runtime_ms * 10**6, 0),
    )


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of a program, all slow and all fast."""
    folder = tmp_path_factory.mktemp("traces")
    files = [folder / "slow.hmdt", folder / "fast.hmdt"]
    write_trace(files[0], run_of(300, 400, "slow"))
    write_trace(files[1], run_of(150, 200, "fast"))
    return files


@pytest.fixture(scope="session")
def sweep(traces: list[Path]) -> bytes:
    """What ``hmd dashboard --traces slow.hmdt fast.hmdt`` serves as the curve."""
    return _sweep(traces).replace(f"{traces[0].parent}/".encode(), b"")


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def machine() -> Machine:
    """The daemon; a test that lets it tick changes it for later tests."""
    return Machine()


@pytest.fixture(scope="session")
def socket(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The daemon's status socket."""
    answers = {
        "status": lambda _: status_answer(machine.observer.latest),
        "heatmap": lambda asked: machine.heat_map.answer(asked.arguments),
    }
    served = StatusSocket(tmp_path_factory.mktemp("run") / "hmd.sock", answers)
    yield served.path
    served.close()


@pytest.fixture(scope="session")
def watched(machine: Machine, socket: Path) -> Poller:
    """A poller that polled the daemon while it ticked, in virtual time."""
    watch = Poller(socket, WINDOW_S, clock=lambda: machine.now_s)
    for tick in range(TICKS):
        machine.tick()
        if tick % 3 == 2 or tick == TICKS - 1:
            watch.poll()
    return watch


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers; they stop at the end of the test."""
    running: list[tuple[PageServer, threading.Thread]] = []

    def made(watch: Poller, sweep: bytes = b"null") -> Served:
        contents = {
            **page_contents(),
            "/state.json": Content(JSON, lambda _: watch.state()),
            "/heat.json": Content(JSON, lambda query: watch.heat(query.get("process", ""))),
            "/sweep.json": Content(JSON, lambda _: sweep),
        }
        server = PageServer("127.0.0.1", 0, contents)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return Served(server, watch)

    yield made
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()
