# SPDX-License-Identifier: MIT
"""The poller's state and history: bounded, and robust against invalid answers."""

from __future__ import annotations

import json
import socket as sockets
import subprocess
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.base.errors import UnreachableError
from hmd.base.units import PAGE_BYTES
from hmd.control.requests import ControlRequest
from hmd.control.status_json import read_heat_map, read_status, status_answer
from hmd.control.status_socket import StatusSocket
from hmd.dashboard.poller import LINES, MOMENTS, POINTS, ROUNDS, ROWS, HeatGrids, History, Poller
from hmd.metrics.heat_history import HeatHistory, HeatSnapshot
from hmd.metrics.heat_map import MAX_BINS, HeatMap
from hmd.metrics.status import Status
from tests.unit.dashboard.machine import PROGRAMS, STARTED_S, Machine

Document = dict[str, Any]


@pytest.fixture
def status(machine: Machine, watched: Poller) -> Document:
    del watched  # the machine has ticked
    document: Document = json.loads(status_answer(machine.observer.latest))
    return document


@pytest.fixture
def heat_map(machine: Machine, watched: Poller) -> Document:
    del watched
    document: Document = json.loads(machine.heat_map.answer())
    return document


def read_status_of(document: Document) -> Status:
    return read_status(json.dumps(document).encode())


def read_heat_map_of(document: Document) -> HeatMap:
    return read_heat_map(json.dumps(document).encode())


def state(watch: Poller) -> Document:
    shown: Document = json.loads(watch.state())
    return shown


def test_dashboard_import_does_not_load_numba() -> None:
    script = (
        "import sys, hmd.dashboard.http_server, hmd.dashboard.poller; print('numba' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_poller_state_equals_status_answer(watched: Poller, status: Document) -> None:
    shown = state(watched)
    assert (shown["reached"], shown["error"], shown["quiet_s"]) == (True, "", 0)
    for key in ("pid", "ticks", "tiers", "tier_bytes", "heat", "targets", "processes", "sampler"):
        assert shown["status"][key] == status[key]
    assert shown["status"]["moves"]["promoted_bytes"] == status["moves"]["promoted_bytes"] > 0
    assert [m["name"] for m in shown["maps"]] == ["python3", "redis-server", "sqlite3"]


def test_poller_rates_integrated_equal_promoted_bytes(watched: Poller, status: Document) -> None:
    series = state(watched)["series"]
    at_s, up = series["at_s"], series["promoted_bytes_per_s"]
    assert up[0] is None
    moved = sum(rate * (b - a) for a, b, rate in zip(at_s, at_s[1:], up[1:], strict=False))
    first = 12 << 20  # before the first poll, at 8 MiB per second
    assert 0 <= status["moves"]["promoted_bytes"] - moved <= 2 * first
    assert at_s[-1] == pytest.approx(STARTED_S + status["uptime_s"])
    assert all(0 <= share <= 1 for share in series["fast_share"] if share is not None)
    lines = {line["name"]: line["fast_share"][-1] for line in series["targets"]}
    assert lines == {t["name"]: pytest.approx(t["fast_share"], rel=1e-3) for t in status["targets"]}


def test_poller_rounds_unique_newest_first(watched: Poller) -> None:
    recent_moves = state(watched)["rounds"]
    ticks = [each["tick"] for each in recent_moves]
    assert ticks == sorted(set(ticks), reverse=True)
    assert 32 < len(recent_moves) <= ROUNDS  # more than the daemon itself remembers
    for each in recent_moves:
        assert each["planned_pages"] >= sum(flow["planned_pages"] for flow in each["flows"])


def test_poller_heat_map_last_column_equals_daemon_snapshot(
    watched: Poller, heat_map: Document
) -> None:
    key = f"{PROGRAMS[0].process.pid}:{PROGRAMS[0].process.start_ticks}"
    body = watched.heat(key)
    assert body is not None
    shown = json.loads(body)
    kept_s = watched._heat.last_s
    moment = next(m for m in heat_map["moments"] if m["now_s"] == kept_s)
    own = next(p for p in moment["processes"] if p["pid"] == PROGRAMS[0].process.pid)
    per_row = -(-len(own["bin"]) // ROWS)
    first = range(0, len(own["bin"]), per_row)
    assert shown["address"] == [f"{own['bin'][at] * own['bin_bytes']:x}" for at in first]
    heat = [np.mean(own["heat"][at : at + per_row]) for at in first]
    assert [row[-1] for row in shown["heat"]] == pytest.approx(heat, rel=0.01)
    pages = [np.sum(own["pages"][at : at + per_row], axis=0) for at in first]
    fast = [fast / (fast + slow) for fast, slow in pages]
    assert [row[-1] for row in shown["fast"]] == pytest.approx(fast, rel=0.01)
    assert shown["age_s"][-1] == 0
    assert watched.heat("1:1") is None


def test_heat_map_small_process_bins_smaller_than_chunks(heat_map: Document) -> None:
    moment = heat_map["moments"][-1]["processes"]
    for program in PROGRAMS:
        own = next(p for p in moment if p["pid"] == program.process.pid)
        bytes_of_bins = program.mib << 20
        assert own["bin_bytes"] < 2 << 20
        assert len(own["bin"]) <= MAX_BINS
        assert len(own["bin"]) * own["bin_bytes"] == bytes_of_bins
        assert np.sum(own["pages"]) * PAGE_BYTES == bytes_of_bins


def test_history_many_ticks_bounded(status: Document) -> None:
    history = History(600)
    status["targets"] = [deepcopy(status["targets"][0]) | {"name": f"t{i}"} for i in range(64)]
    for tick in range(5 * POINTS):
        status["uptime_s"], status["ticks"] = 3.0 * tick, tick
        status["rounds"] = [status["rounds"][-1] | {"tick": tick, "uptime_s": 3.0 * tick}]
        history.add(read_status_of(status))
    series = history.series()
    assert len(series["at_s"]) <= POINTS
    assert series["at_s"][-1] - series["at_s"][0] <= 600
    assert len(series["targets"]) == LINES
    assert len(history.rounds()) == ROUNDS


def test_heat_grids_many_snapshots_bounded(heat_map: Document) -> None:
    history, outline = HeatGrids(600), heat_map["moments"][-1]["processes"][0]
    large = outline | {
        "bin_bytes": 2 << 20,
        "bin": list(range(512)),
        "heat": [1.0] * 512,
        "pages": [[512, 0]] * 512,
    }
    moment = {"now_s": 0.0, "processes": [large]}
    for second in range(0, 3 * 600, 2):
        shown = {"tiers": 2, "moments": [moment | {"now_s": float(second)}]}
        assert history.add(read_heat_map_of(shown))
        assert not history.add(read_heat_map_of(shown))
    assert len(history._moments) == MOMENTS
    body = history.answer(history.processes()[0])
    assert body is not None
    shown = json.loads(body)
    assert len(shown["address"]) <= ROWS
    assert len(shown["age_s"]) == len(shown["heat"][0]) == MOMENTS


def test_history_daemon_restarted_rates_restart(status: Document) -> None:
    history = History(600)
    history.add(read_status_of(status))
    status |= {"pid": 5, "started_s": status["started_s"] + 500, "uptime_s": 1.0, "ticks": 1}
    history.add(read_status_of(status))
    status |= {"uptime_s": 11.0, "ticks": 11}
    status["moves"]["promoted_bytes"] += 100
    history.add(read_status_of(status))
    assert history.series()["promoted_bytes_per_s"] == [None, None, 10.0]


def test_history_clock_set_back_cleared(status: Document, heat_map: Document) -> None:
    history, maps = History(600), HeatGrids(600)
    history.add(read_status_of(status))
    maps.add(read_heat_map_of(heat_map))
    history.add(read_status_of(status | {"started_s": 1e9}))
    assert len(history.series()["at_s"]) == 1
    for moment in heat_map["moments"]:
        moment["now_s"] /= 1000
    assert maps.add(read_heat_map_of(heat_map))
    assert len(maps._moments) == 1


def test_poller_daemon_starts_and_ends_reached_follows(
    machine: Machine, watched: Poller, tmp_path: Path
) -> None:
    del watched
    watch = Poller(tmp_path / "s", 600, clock=lambda: machine.now_s)
    watch.poll()
    assert state(watch)["status"] is None
    assert state(watch)["error"].startswith("no daemon answers on ")
    answers = {
        "status": lambda _: status_answer(machine.observer.latest),
        "heatmap": lambda asked: machine.heat_map.answer(asked.arguments),
    }
    daemon = StatusSocket(tmp_path / "s", answers)
    watch.poll()
    assert state(watch)["reached"]
    daemon.close()
    watch.poll()
    shown = state(watch)
    assert not shown["reached"]
    assert shown["status"]["ticks"] == machine.observer.latest.ticks  # what was last known
    again = StatusSocket(tmp_path / "s", answers)
    watch.poll()
    assert state(watch)["reached"]
    again.close()


def test_poller_requests_new_snapshots_and_all_of_new_daemon(
    machine: Machine, watched: Poller, tmp_path: Path
) -> None:
    del watched
    clock_s, asked = [0.0], []
    kept = [HeatHistory(machine.topology), HeatHistory(machine.topology)]
    kept[0]._snapshots.extend(HeatSnapshot(at_s, ()) for at_s in (100.0, 110.0, 120.0))
    kept[1]._snapshots.extend(HeatSnapshot(at_s, ()) for at_s in (5.0, 15.0))

    def answer(request: ControlRequest) -> bytes:
        asked.append(request.arguments.get("after_s"))
        return kept[0].answer(request.arguments)

    answers = {"status": lambda _: status_answer(machine.observer.latest), "heatmap": answer}
    daemon = StatusSocket(tmp_path / "s", answers)
    watch = Poller(tmp_path / "s", 600, clock=lambda: clock_s[0])
    for _ in range(2):
        watch.poll()
        clock_s[0] += 60
    assert asked == [None, 120.0]
    kept.pop(0)
    watch.poll()
    assert asked == [None, 120.0, 120.0, None]
    assert [now_s for now_s, _ in watch._heat._moments] == [5.0, 15.0]
    daemon.close()


def test_poller_daemon_without_ticks_quiet_time_reported(
    machine: Machine, watched: Poller, socket: Path
) -> None:
    del watched
    now_s = [0.0]
    watch = Poller(socket, 600, clock=lambda: now_s[0])
    watch.poll()
    now_s[0] = 9.0
    watch.poll()
    assert state(watch)["quiet_s"] == 0
    now_s[0] = 42.0
    watch.poll()
    assert state(watch)["quiet_s"] == 42


class GarbageServer:
    """A server on the socket that answers every request with ``answer``."""

    def __init__(self, path: Path) -> None:
        self.path, self.answer = path, b""
        self._socket = sockets.socket(sockets.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(16)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(sockets.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                try:
                    connection.sendall(self.answer)
                except OSError:
                    continue


@pytest.fixture
def garbage_server(tmp_path: Path) -> Iterator[GarbageServer]:
    made = GarbageServer(tmp_path / "liar")
    yield made
    made.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"\0\xff", b"[]", b"7", b"{}", b'{"status":', b"[" * 100_000, b'{"error": "no"}',
     b'{"ticks": 1e999}', b'"' + b"x" * (5 << 20) + b'"', b"9" * 5000],
    ids=["no-answer", "not-text", "list", "number", "empty-object", "truncated", "deeply-nested",
         "error", "huge-number", "too-long", "too-many-digits"],
)  # fmt: skip
def test_poller_invalid_answer_reported_and_discarded(
    garbage_server: GarbageServer, answer: bytes
) -> None:
    garbage_server.answer = answer
    watch = Poller(garbage_server.path, 600)
    watch.poll()
    shown = state(watch)
    assert (shown["reached"], shown["status"]) == (False, None)
    assert (
        str(garbage_server.path) in shown["error"]
        or "not that of this version of hmd" in shown["error"]
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def paths(document: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    yield here
    inner: Any = ()
    if isinstance(document, dict):
        inner = document.items()
    elif isinstance(document, list):
        inner = enumerate(document[:2])
    for key, value in inner:
        yield from paths(value, (*here, key))


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_poller_document_with_one_wrong_value_refused_or_shown(
    data: st.DataObject, status: Document, heat_map: Document
) -> None:
    heat_map["moments"] = heat_map["moments"][-2:]
    watch = Poller(Path("/nowhere"), 600)
    of_status = data.draw(st.booleans())
    document = status if of_status else heat_map
    places = list(paths(document))[1:]
    place = places[data.draw(st.integers(0, len(places) - 1))]
    wrong = deepcopy(document)
    inner: Any = wrong
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = data.draw(json_values)
    try:
        if of_status:
            watch._add(read_status_of(wrong))
        else:
            watch._heat.add(read_heat_map_of(wrong))
    except UnreachableError as error:
        assert len(str(error)) < 400
    json.loads(watch._publish(), parse_constant=pytest.fail)
    for key in watch._heat.processes():
        json.loads(watch.heat(key) or b"0", parse_constant=pytest.fail)
