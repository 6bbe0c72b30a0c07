"""Heat maps of the last minutes: thinned outlines of processes, as grids for the page.

Takes checked heat maps, keeps at most ``MOMENTS`` of them as arrays: 25 MB for eight processes
of 512 bins each on two tiers.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.dashboard.status_validation import HeatAnswer, OutlineAnswer
from hmd.observe.heat_grid import grid

MOMENTS: Final = 300
ROWS: Final = 96
"""Rows of a grid: enough for the height that the page gives it."""


class HeatGrids:
    """Moments at least ``window_s / MOMENTS`` apart."""

    def __init__(self, window_s: float) -> None:
        """Start empty."""
        self._window_s = window_s
        self._tiers = 0
        self._moments: deque[dict[str, Any]] = deque(maxlen=MOMENTS)

    @property
    def last_s(self) -> float:
        """The daemon's clock at the last moment that was kept."""
        return self._moments[-1]["now_s"] if self._moments else float("-inf")

    def take(self, answer: HeatAnswer) -> bool:
        """Add the new part of an answer; returns whether there was one."""
        if answer.tiers != self._tiers or self.is_ahead_of(answer):
            self._moments.clear()
            self._tiers = answer.tiers
        spacing_s = self._window_s / MOMENTS
        newest_s = last_s = self.last_s
        for moment in answer.moments:
            if moment.now_s > newest_s and moment.now_s - newest_s >= spacing_s:
                newest_s = moment.now_s
                outlines = [_compact(outline) for outline in moment.processes]
                self._moments.append({"now_s": moment.now_s, "processes": outlines})
        while self._moments and newest_s - self._moments[0]["now_s"] > self._window_s:
            self._moments.popleft()
        return newest_s > last_s

    def is_ahead_of(self, answer: HeatAnswer) -> bool:
        """Return whether the daemon's clock is behind: it is another machine, or was rebooted."""
        return bool(answer.moments) and answer.moments[-1].now_s < self.last_s

    def processes(self) -> list[str]:
        """Return the processes of the last moment, largest first, as ``pid:start``."""
        last = self._moments[-1]["processes"] if self._moments else []
        return [_key(process) for process in last]

    def answer(self, key: str) -> bytes | None:
        """Return a process's grid as JSON, None if it has none.

        ``heat`` and ``fast`` have a row for each of ``address`` (hexadecimal) and a column for
        each of ``age_s`` (seconds before the last moment); null is where there was no memory.
        """
        own = [
            {"now_s": m["now_s"], "processes": [p for p in m["processes"] if _key(p) == key]}
            for m in self._moments
        ]
        own = [moment for moment in own if moment["processes"]]
        if not own:
            return None
        pid = own[0]["processes"][0]["pid"]
        seen = grid({"moments": own}, pid, ROWS)
        behind_s = self._moments[-1]["now_s"] - own[0]["now_s"]
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


def _key(process: dict[str, Any]) -> str:
    return f"{process['pid']}:{process['start_ticks']}"


def _compact(outline: OutlineAnswer) -> dict[str, Any]:
    """Return an outline of the heat map's JSON, with arrays as columns."""
    return {
        "pid": outline.pid,
        "start_ticks": outline.start_ticks,
        "chunk": np.array(outline.chunk, np.uint64),
        "heat": np.array(outline.heat, np.float32),
        "pages": np.array(outline.pages, np.int32),
    }


def _cells(table: npt.NDArray[np.float64]) -> list[list[float | None]]:
    """Return cells with three digits, null for NaN."""
    return [
        [None if value != value else float(f"{value:.3g}") for value in row]
        for row in table.tolist()
    ]
