"""Training of the tabular design (:mod:`hmd.learn.knob_designs.knob_table`) on episodes.

Takes episodes, gives tables. Each tick is a step of Q-learning in both tables; actions are at
random with a probability that falls from 0.3 to 0.02.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from hmd.learn.environment.episode_run import EpisodeRun
from hmd.learn.environment.episodes import EpisodeSource
from hmd.learn.knob_designs.knob_table import STEPS, VOLUMES, KnobTable, Values, places_of, state_of
from hmd.numpy_archive import read_arrays

_RATE: Final = 0.1
_DISCOUNT: Final = 0.9
_RANDOM: Final = (0.3, 0.02)


class TableLearner:
    """Learns tables; ``ticks`` is the length of the training."""

    def __init__(self, source: EpisodeSource, ticks: int, seed: int) -> None:
        self._source, self._ticks, self._done = source, ticks, 0
        self._random = np.random.default_rng(seed)
        self._table = KnobTable.zeros()
        self._run: EpisodeRun | None = None

    @property
    def ticks(self) -> int:
        """Ticks that it has learnt from."""
        return self._done

    def advance(self, ticks: int) -> KnobTable:
        """Learn until it has learnt from so many ticks; returns a copy of the tables."""
        while self._done < ticks:
            self._tick()
        return KnobTable(self._table.volume.copy(), self._table.step.copy())

    def save(self, folder: Path) -> None:
        """Write what a later ``restore`` continues from; the running episode is not kept."""
        table, partial = self._table, folder / "table.partial"
        with partial.open("wb") as file:
            np.savez(file, volume=table.volume, step=table.step, done=np.array(self._done))
        partial.replace(folder / "table.npz")

    def restore(self, folder: Path) -> None:
        """Continue from what ``save`` wrote."""
        found = read_arrays(folder / "table.npz", ("volume", "step", "done"))
        self._done = int(found.pop("done"))
        self._table = KnobTable.of(found)
        self._random = np.random.default_rng((self._done, len(VOLUMES)))

    def close(self) -> None:
        """Free the machine of the running episode."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _tick(self) -> None:
        if self._run is None or self._run.done:
            self.close()
            self._run = EpisodeRun(self._source.draw(self._random))
        signals = self._run.signals
        state, actions = state_of(signals), self._actions(state_of(signals))
        tick = self._run.step(places_of(signals, actions))
        following = None if tick.done else state_of(tick.signals)
        # In tenths of a percent of a tick: only relative values matter to the choice.
        reward = 1e3 * tick.saved_s / self._run.tick_s
        for values, action in zip((self._table.volume, self._table.step), actions, strict=True):
            ahead = 0.0 if following is None else _DISCOUNT * float(values[following].max())
            _learn(values, state, action, reward + ahead)
        self._done += 1

    def _actions(self, state: int) -> tuple[int, int]:
        begin, end = _RANDOM
        chance = begin + (end - begin) * min(self._done / max(self._ticks, 1), 1.0)
        if self._random.random() < chance:
            return int(self._random.integers(len(VOLUMES))), int(self._random.integers(len(STEPS)))
        return self._table.best(state)


def _learn(values: Values, state: int, action: int, target: float) -> None:
    """Move a value towards its target."""
    values[state, action] += _RATE * (target - values[state, action])
