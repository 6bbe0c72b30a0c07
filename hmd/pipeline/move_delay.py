"""Delay of moves: the time from the samples of a tick until the pages of its plan have moved.

Takes times of a tick's stages, gives seconds. Pages save nothing until then, so that policies do
not count it.
"""

from __future__ import annotations

from statistics import median
from typing import Final

# The weight of the last tick with moves in the mean.
_NEWS: Final = 0.2
# What a tick without moves leaves of the mean, and of the delays that it is made of.
_KEPT: Final = 0.95


class MoveDelay:
    """The mean delay over ticks with moves; ``mean_s`` is 0 before the second.

    Of the last three delays the middle one counts: the first moves of a daemon take it many times
    as long as later ones, since code and memory are touched for the first time, and as long as that
    were expected, nothing would pay. The mean fades in ticks without moves: one that is too long
    for any move to pay is never measured again, as where the daemon was stopped while pages moved.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._last_s = (0.0, 0.0, 0.0)
        self._read_s, self._ticks, self._moved = 0.0, 0, True

    def begin(self, now_s: float) -> None:
        """Start a tick: its samples have been read."""
        if not self._moved:
            self.mean_s *= _KEPT
            first, second, third = self._last_s
            self._last_s = first * _KEPT, second * _KEPT, third * _KEPT
        self._read_s, self._moved = now_s, False

    def observe(self, begun_s: float, ended_s: float) -> None:
        """Count a tick whose moves were made between two times: half of them were by the middle."""
        delay_s = max((begun_s + ended_s) / 2 - self._read_s, 0.0)
        _, before, last = self._last_s
        self._last_s = before, last, delay_s
        self._ticks += 1
        self._moved = True
        weight = _NEWS if self._ticks > 2 else 1.0
        self.mean_s += weight * (median(self._last_s) - self.mean_s)
