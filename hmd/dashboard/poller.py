"""The only client of the daemon: polls once per second, whatever the number of browsers.

Takes a status socket, keeps the histories, publishes the page's data as finished JSON; readers in
other threads take the last bytes and do not wait. Heat maps of large processes are large: they are
requested so rarely that reading them takes ``HEAT_COST`` of the time.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hmd.control.client import ask
from hmd.dashboard.heat_grids import HeatGrids
from hmd.dashboard.history import History
from hmd.dashboard.status_validation import HeatAnswer, StatusAnswer, read_heat_map, read_status
from hmd.errors import UnreachableError

POLL_INTERVAL_S: Final = 1.0
HEAT_COST: Final = 0.1
MOST_STATUS_BYTES: Final = 4 * 2**20
MOST_HEAT_BYTES: Final = 48 * 2**20
QUIET_TICKS: Final = 10
"""Ticks without progress after which a daemon counts as stalled; at least five seconds."""


class Poller:
    """State of the daemon on ``socket``; ``state`` and ``heat`` may be called by any thread."""

    def __init__(
        self, socket: Path, window_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty; ``poll`` polls once, ``start`` polls until ``stop``."""
        self._socket, self._clock = socket, clock
        self._history, self._heat = History(window_s), HeatGrids(window_s)
        self._window_s = window_s
        self._status: StatusAnswer | None = None
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
            status = read_status(ask(self._socket, "status", most_bytes=MOST_STATUS_BYTES))
            self._take(status)
            if self._clock() >= self._heat_due_s:
                self._poll_heat()
            self._error = ""
        except UnreachableError as error:
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

    def _take(self, status: StatusAnswer) -> None:
        old = self._status
        if old is None or (old.started_s, old.ticks) != (status.started_s, status.ticks):
            self._ticked_s = self._clock()
        self._status = status
        self._history.take(status)

    def _poll_heat(self) -> None:
        begun_s = self._clock()
        try:
            new = self._heat_after(self._heat.last_s)
            if self._heat.is_ahead_of(new):
                new = self._heat_after(-math.inf)
            with self._lock:
                if self._heat.take(new):
                    self._grids.clear()
        finally:
            now_s = self._clock()
            pause_s = max(self._history.spacing_s, (now_s - begun_s) / HEAT_COST)
            self._heat_due_s = now_s + pause_s

    def _heat_after(self, after_s: float) -> HeatAnswer:
        """Return the snapshots after a time, and always the last one."""
        arguments = {"after_s": after_s} if math.isfinite(after_s) else {}
        return read_heat_map(
            ask(self._socket, "heatmap", arguments, most_bytes=MOST_HEAT_BYTES), after_s
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
                "status": None if status is None else status.model_dump(exclude={"rounds"}),
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
        rows = self._status.processes if self._status is not None else []
        known = {f"{row.pid}:{row.start_ticks}": row for row in rows}
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
