"""Delay of moves: the time from the samples of a tick until the pages of its plan have moved.

Takes times of a tick's stages, gives seconds. Pages save nothing until then, so that policies do
not count it.
"""

from __future__ import annotations

from typing import Final

# The weight of the last tick with moves in the mean.
_NEWS: Final = 0.2
# What a tick without moves leaves of the mean.
_KEPT: Final = 0.95


class MoveDelay:
    """The mean delay over ticks with moves; ``mean_s`` is 0 before the first.

    It fades in ticks without moves: one that is too long for any move to pay is never measured
    again, as where the daemon was stopped while pages moved.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._read_s, self._known, self._moved = 0.0, False, True

    def begin(self, now_s: float) -> None:
        """Start a tick: its samples have been read."""
        if not self._moved:
            self.mean_s *= _KEPT
        self._read_s, self._moved = now_s, False

    def observe(self, begun_s: float, ended_s: float) -> None:
        """Count a tick whose moves were made between two times: half of them were by the middle."""
        delay_s = max((begun_s + ended_s) / 2 - self._read_s, 0.0)
        self.mean_s += (_NEWS if self._known else 1.0) * (delay_s - self.mean_s)
        self._known = self._moved = True
