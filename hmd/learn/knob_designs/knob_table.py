"""A tabular Q-learner that sets the knobs, in the manner of ArtMem (ISCA 2025): a baseline.

The state is the share of accesses that the fast tier serves, in tenths, or that nothing was
sampled: 12 states. As there, two tables share state and reward: one chooses the volume of moves,
the other a step of the threshold. The reward is this project's, seconds saved, and not ArtMem's,
which is the change of that share with a penalty. Watkins and Dayan, "Q-learning", Machine Learning
1992.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hmd.learn.environment.knob_signals import SIGNALS, Figures

STATES: Final = 12
VOLUMES: Final = (-1.0, -0.75, -0.5, -0.25, 0.0)
"""Places of the volume that the first table chooses from."""
STEPS: Final = (-0.5, -0.25, 0.0, 0.25, 0.5)
"""Steps of the threshold's place that the second chooses from."""

_SHARE, _SAMPLES, _LAST = (
    SIGNALS.index(name) for name in ("fast_share", "samples", "last_confidence")
)
_NOTHING: Final = STATES - 1

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KnobTable:
    """Values of actions by state: ``volume`` and ``step``, both of shape ``(12, 5)``."""

    volume: Values
    step: Values

    kind = "table"

    @classmethod
    def zeros(cls) -> Self:
        """Return tables that know nothing."""
        return cls(np.zeros((STATES, len(VOLUMES))), np.zeros((STATES, len(STEPS))))

    def __call__(self, signals: Figures) -> list[float]:
        """Return the places of the knobs in the next tick."""
        return places_of(signals, self.best(state_of(signals)))

    def best(self, state: int) -> tuple[int, int]:
        """Return the actions of the highest values."""
        return int(np.argmax(self.volume[state])), int(np.argmax(self.step[state]))

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the file has of it."""
        return {"volume": self.volume, "step": self.step}

    @classmethod
    def of(cls, columns: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the tables of a file; ValueError or KeyError where it has none."""
        made = cls(*(columns[name].astype(np.float64) for name in ("volume", "step")))
        for values, actions in ((made.volume, VOLUMES), (made.step, STEPS)):
            if values.shape != (STATES, len(actions)) or not np.isfinite(values).all():
                raise ValueError("a table has another shape, or a value that is not finite")
        return made


def state_of(signals: Figures) -> int:
    """Return the state of a tick: tenths of accesses on the fast tier, 11 without samples."""
    if signals[_SAMPLES] <= 0:
        return _NOTHING
    return int(np.clip(round(10 * float(signals[_SHARE])), 0, 10))


def places_of(signals: Figures, actions: tuple[int, int]) -> list[float]:
    """Return the places of the knobs: the volume, the threshold a step from its last place."""
    volume, step = actions
    threshold = float(np.clip(signals[_LAST] + STEPS[step], -1.0, 1.0))
    return [VOLUMES[volume], threshold, 0.0]
