"""History of the last minutes: shares, rates and moves over time.

Takes checked status answers, keeps at most ``POINTS`` points and ``ROUNDS`` rounds of moves,
whatever the number of targets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from hmd.dashboard.status_validation import StatusAnswer, TickMovesAnswer

POINTS: Final = 300
ROUNDS: Final = 60
LINES: Final = 6
"""Most targets whose share is drawn; the largest are."""


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


class History:
    """Points at least ``window_s / POINTS`` apart, and the last rounds of moves."""

    def __init__(self, window_s: float) -> None:
        """Start empty."""
        self.spacing_s = window_s / POINTS
        self._window_s = window_s
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._rounds: deque[tuple[float, TickMovesAnswer]] = deque(maxlen=ROUNDS)
        self._last: StatusAnswer | None = None
        self._noted: tuple[float, int] = (0.0, 0)

    def take(self, status: StatusAnswer) -> None:
        """Add an answer if a tick has ended since the last one."""
        self._take_rounds(status)
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
            "fast_share": [_short(p.fast_share) for p in points],
            "promoted_bytes_per_s": [_short(p.promoted_bytes_per_s) for p in points],
            "demoted_bytes_per_s": [_short(p.demoted_bytes_per_s) for p in points],
            "targets": [
                {"name": name, "fast_share": [_short(p.by_target.get(name)) for p in points]}
                for name in self._largest()
            ],
        }

    def rounds(self) -> list[dict[str, Any]]:
        """Return the last rounds of moves, newest first; ``at_s`` is Unix time."""
        return [{"at_s": at_s, **moves.model_dump()} for at_s, moves in reversed(self._rounds)]

    def _take_rounds(self, status: StatusAnswer) -> None:
        for moves in status.rounds:
            if (status.started_s, moves.tick) > self._noted:
                self._noted = status.started_s, moves.tick
                self._rounds.append((round(status.started_s + moves.uptime_s, 3), moves))

    def _largest(self) -> list[str]:
        if self._last is None:
            return []
        ordered = sorted(self._last.targets, key=lambda t: -sum(t.resident_bytes))
        return [target.name for target in ordered[:LINES]]


def _point(before: StatusAnswer | None, now: StatusAnswer) -> Point:
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


def _accesses(status: StatusAnswer) -> list[float]:
    """Return accesses by tier of all targets, the last of unknown placement."""
    columns: Iterable[tuple[float, ...]] = zip(*(t.accesses for t in status.targets), strict=True)
    return [sum(column) for column in columns] or [0.0] * (len(status.tiers) + 1)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
