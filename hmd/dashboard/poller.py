# SPDX-License-Identifier: MIT
"""The page's data: polls the daemon once per second, whatever the number of browsers.

Keeps the last minutes of shares, rates, moves and heat maps within fixed bounds, and publishes them
as finished JSON; readers in other threads take the last bytes and do not wait. Heat maps of large
processes are large: they are requested so rarely that reading them takes ``HEAT_COST`` of the time.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.base.units import PAGE_BYTES
from hmd.control.client import ask_bytes
from hmd.control.status_json import read_heat_map, read_status, status_document
from hmd.metrics.heat_map import HeatMap, ProcessHeat, grid_of
from hmd.metrics.status import ProcessStatus, Status, TickMoves

POLL_INTERVAL_S: Final = 1.0
HEAT_COST: Final = 0.1
MAX_STATUS_BYTES: Final = 4 * 2**20
MAX_HEAT_BYTES: Final = 48 * 2**20
QUIET_TICKS: Final = 10
"""Ticks without progress after which a daemon counts as stalled; at least five seconds."""

POINTS: Final = 300
"""Points of a line over time."""

ROUNDS: Final = 60
"""Ticks with moves that are listed."""

LINES: Final = 6
"""Targets whose share is drawn; the largest are."""

MOMENTS: Final = 300
"""Columns of a heat map: 25 MB for eight processes of 512 bins each on two tiers."""

_NOT_SHOWN: Final = {"recent_moves", "control"}
"""Fields of the status that the page gets in another form, or not at all."""

ROWS: Final = 96
"""Rows of a heat map: enough for the height that the page gives it."""

Processes = Mapping[str, Mapping[str, npt.NDArray[Any]]]
"""The rows of processes in a heat map at one moment, by process and column."""


class HeatGrids:
    """Heat maps of the last minutes, with moments at least ``window_s / MOMENTS`` apart."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._tiers = 0
        self._moments: deque[tuple[float, Processes]] = deque(maxlen=MOMENTS)

    @property
    def last_s(self) -> float:
        """The daemon's clock at the last moment that was kept."""
        return self._moments[-1][0] if self._moments else -math.inf

    def add(self, answer: HeatMap) -> bool:
        """Add the new part of an answer; returns whether there was one."""
        if answer.tiers != self._tiers or self.is_ahead_of(answer):
            self._moments.clear()
            self._tiers = answer.tiers
        spacing_s = self._window_s / MOMENTS
        newest_s = last_s = self.last_s
        for moment in answer.moments:
            if moment.now_s > newest_s and moment.now_s - newest_s >= spacing_s:
                newest_s = moment.now_s
                processes = {process_key(each): _columns(each) for each in moment.processes}
                self._moments.append((newest_s, processes))
        while self._moments and newest_s - self._moments[0][0] > self._window_s:
            self._moments.popleft()
        return newest_s > last_s

    def is_ahead_of(self, answer: HeatMap) -> bool:
        """Return whether the daemon's clock is behind: it is another machine, or was rebooted."""
        return bool(answer.moments) and answer.moments[-1].now_s < self.last_s

    def processes(self) -> list[str]:
        """Return the keys of the processes of the last moment, largest first."""
        return list(self._moments[-1][1]) if self._moments else []

    def answer(self, key: str) -> bytes | None:
        """Return a process's grid as JSON, None if it has none.

        ``heat`` and ``fast`` have a row for each of ``address`` (hexadecimal) and a column for
        each of ``age_s`` (seconds before the last moment); null is where there was no memory.
        """
        own = [(now_s, processes[key]) for now_s, processes in self._moments if key in processes]
        if not own:
            return None
        seen = grid_of(own, ROWS)
        behind_s = self.last_s - own[0][0]
        return json.dumps(
            {
                "process": key,
                "address": [f"{start:x}" for start in seen.address.tolist()],
                "age_s": [round(behind_s - at_s, 3) for at_s in seen.seconds.tolist()],
                "heat": _cells(seen.heat),
                "fast": _cells(seen.fast),
            },
            separators=(",", ":"),
        ).encode()


def process_key(process: ProcessHeat | ProcessStatus) -> str:
    """Return the identity of a process, ``pid:start``."""
    return f"{process.pid}:{process.start_ticks}"


def _columns(process: ProcessHeat) -> Mapping[str, npt.NDArray[Any]]:
    return {
        "bin_bytes": np.array(process.bin_bytes, np.int64),
        "bin": np.array(process.bin, np.uint64),
        "heat": np.array(process.heat, np.float32),
        "pages": np.array(process.pages, np.int32),
    }


def _cells(table: npt.NDArray[np.float64]) -> list[list[float | None]]:
    """Return cells with three digits, null for NaN."""
    return [
        [None if value != value else float(f"{value:.3g}") for value in row]
        for row in table.tolist()
    ]


@dataclass(frozen=True, slots=True)
class Point:
    """One point: shares are of accesses since the preceding point, None without accesses.

    ``at_s`` is Unix time; rates are bytes per second since the preceding point, None after a gap.
    """

    at_s: float
    fast_share: float | None
    promoted_bytes_per_s: float | None
    demoted_bytes_per_s: float | None
    by_target: dict[str, float | None]


_DRAWN: Final = ("fast_share", "promoted_bytes_per_s", "demoted_bytes_per_s")
"""What is drawn of all targets together."""


class History:
    """Points at least ``window_s / POINTS`` apart, and the last rounds of moves."""

    def __init__(self, window_s: float) -> None:
        self.spacing_s = window_s / POINTS
        self._window_s = window_s
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._rounds: deque[tuple[float, TickMoves]] = deque(maxlen=ROUNDS)
        self._last: Status | None = None
        self._noted: tuple[float, int] = (0.0, 0)

    def add(self, status: Status) -> None:
        """Add an answer if a tick has ended since the last one."""
        self._add_rounds(status)
        last = self._last
        if last is not None and status.at_s < last.at_s:
            self._points.clear()  # the clock was set back
            last = None
        if last is not None and status.at_s - last.at_s < max(self.spacing_s, 1e-9):
            return
        while self._points and status.at_s - self._points[0].at_s > self._window_s:
            self._points.popleft()
        self._points.append(_point(last, status))
        self._last = status

    def series(self) -> dict[str, Any]:
        """Return columns of shape ``(points,)``, oldest first, and one column per target."""
        points = list(self._points)
        return {
            "at_s": [round(p.at_s, 3) for p in points],
            **{name: [_short(getattr(p, name)) for p in points] for name in _DRAWN},
            "targets": [
                {"name": name, "fast_share": [_short(p.by_target.get(name)) for p in points]}
                for name in self._largest()
            ],
        }

    def rounds(self) -> list[dict[str, Any]]:
        """Return the last rounds of moves, newest first; ``at_s`` is Unix time."""
        return [{"at_s": at_s, **asdict(moves)} for at_s, moves in reversed(self._rounds)]

    def _add_rounds(self, status: Status) -> None:
        for moves in status.recent_moves:
            if (status.started_s, moves.tick) > self._noted:
                self._noted = status.started_s, moves.tick
                self._rounds.append((round(status.started_s + moves.uptime_s, 3), moves))

    def _largest(self) -> list[str]:
        if self._last is None:
            return []
        ordered = sorted(self._last.targets, key=lambda t: -sum(t.resident_bytes))
        return [target.name for target in ordered[:LINES]]


def _point(before: Status | None, now: Status) -> Point:
    shares = {target.name: target.fast_share for target in now.targets}
    seconds = now.at_s - before.at_s if before is not None else 0.0
    # Another daemon, or one whose tiers have changed, counts from zero.
    anew = before is None or (before.pid, before.started_s) != (now.pid, now.started_s)
    if before is None or anew or now.ticks < before.ticks or seconds <= 0:
        return Point(now.at_s, None, None, None, shares)
    up = now.moves.promoted_bytes - before.moves.promoted_bytes
    down = now.moves.demoted_bytes - before.moves.demoted_bytes
    served = [b - a for a, b in zip(_accesses(before), _accesses(now), strict=False)]
    known = sum(served[:-1])
    return Point(
        now.at_s,
        min(max(served[0] / known, 0.0), 1.0) if known > 0 else None,
        max(up, 0) / seconds,
        max(down, 0) / seconds,
        shares,
    )


def _accesses(status: Status) -> list[float]:
    """Return accesses by tier of all targets, the last of unknown placement."""
    rows = (target.accesses for target in status.targets)
    return [sum(column) for column in zip(*rows, strict=True)] or [0.0] * (len(status.tiers) + 1)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


class Poller:
    """State of the daemon on ``socket``; ``state`` and ``heat`` may be called by any thread."""

    def __init__(
        self, socket: Path, window_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty; ``poll`` polls once, ``start`` polls until ``stop``."""
        self._socket, self._clock = socket, clock
        self._history, self._heat = History(window_s), HeatGrids(window_s)
        self._window_s = window_s
        self._status: Status | None = None
        self._error = "the daemon has not been asked yet"
        self._heat_due_s = self._ticked_s = float("-inf")
        self._grids: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_polling, name="hmd-watch", daemon=True)
        self._state = self._publish()

    def start(self) -> None:
        """Poll once per second in a separate thread, until ``stop``."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def poll(self) -> None:
        """Poll the daemon once and publish the result; invalid answers raise nothing."""
        try:
            status = read_status(ask_bytes(self._socket, "status", max_bytes=MAX_STATUS_BYTES))
            self._add(status)
            if self._clock() >= self._heat_due_s:
                self._poll_heat()
            self._error = ""
        except HmdError as error:  # no daemon, no permission any more, or no answer of one
            self._error = str(error)
        self._state = self._publish()

    def state(self) -> bytes:
        """Return all but the heat maps, as JSON."""
        return self._state

    def heat(self, key: str) -> bytes | None:
        """Return the heat map of a process (``pid:start``) as JSON; None where there is none."""
        with self._lock:
            if key not in self._grids:
                made = self._heat.answer(key)
                if made is None:
                    return None
                self._grids[key] = made
            return self._grids[key]

    def _add(self, status: Status) -> None:
        old = self._status
        if old is None or (old.started_s, old.ticks) != (status.started_s, status.ticks):
            self._ticked_s = self._clock()
        self._status = status
        self._history.add(status)

    def _poll_heat(self) -> None:
        begun_s = self._clock()
        try:
            new = self._heat_after(self._heat.last_s)
            if self._heat.is_ahead_of(new):
                new = self._heat_after(-math.inf)
            with self._lock:
                if self._heat.add(new):
                    self._grids.clear()
        finally:
            now_s = self._clock()
            pause_s = max(self._history.spacing_s, (now_s - begun_s) / HEAT_COST)
            self._heat_due_s = now_s + pause_s

    def _heat_after(self, after_s: float) -> HeatMap:
        """Return the snapshots after a time, and always the last one."""
        arguments = {"after_s": after_s} if math.isfinite(after_s) else {}
        return read_heat_map(
            ask_bytes(self._socket, "heatmap", arguments, max_bytes=MAX_HEAT_BYTES)
        )

    def _publish(self) -> bytes:
        status = self._status
        return json.dumps(
            {
                "reached": not self._error,
                "error": self._error,
                "socket": str(self._socket),
                "window_s": self._window_s,
                "quiet_s": self._quiet_s(),
                "page_bytes": PAGE_BYTES,
                "status": status and status_document(status, exclude=_NOT_SHOWN),
                "restored": status.control.restored if status else "",
                "not_restored": status.control.not_restored if status else "",
                "series": self._history.series(),
                "rounds": self._history.rounds(),
                "maps": self._maps(),
            },
            separators=(",", ":"),
        ).encode()

    def _quiet_s(self) -> int:
        """Return the time that the daemon has answered without a tick, 0 if that is usual."""
        if self._status is None or self._error:
            return 0
        quiet_s = self._clock() - self._ticked_s
        return int(quiet_s) if quiet_s > max(5.0, QUIET_TICKS * self._status.tick_s) else 0

    def _maps(self) -> list[dict[str, Any]]:
        """Return the processes with heat maps, with their names if the status has them."""
        rows = self._status.processes if self._status is not None else ()
        known = {process_key(row): row for row in rows}
        return [
            {
                "key": key,
                "pid": int(key.partition(":")[0]),
                "name": known[key].name if key in known else "?",
                "target": known[key].target if key in known else "",
            }
            for key in self._heat.processes()
        ]

    def _keep_polling(self) -> None:
        while not self._stopped.is_set():
            begun_s = time.monotonic()
            self.poll()
            self._stopped.wait(max(0.0, POLL_INTERVAL_S - (time.monotonic() - begun_s)))
