"""Knobs of the whole system, which a design of the learned policy sets in each tick.

Takes a place per knob between -1 and 1; gives the knobs. Published designs act on such knobs rather
than on pages: ArtMem (ISCA 2025) on the migration volume and a threshold of heat, IDT (HPDC 2024)
on the age at which pages are demoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from hmd.decide.policies.benefit import BenefitSettings

NAMES: Final = ("volume", "confidence", "horizon")
"""The knobs, in the order of their places."""

NEUTRAL: Final = (0.0, 0.0, 0.0)
"""Places at which the knobs leave the rule as it is."""

# Below this place nothing moves; up to 0, each 0.25 doubles the volume; above, all may move.
_NO_VOLUME: Final = -0.9
_VOLUME_OCTAVES: Final = 4.0
_CONFIDENCE: Final = BenefitSettings().confidence
# The horizon at the ends of its range: 16 times shorter or longer.
_HORIZON_OCTAVES: Final = 4.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a rule may move in a tick, and when.

    ``volume`` is the share of the fast node's memory that may move, both ways together.
    ``confidence`` is how certain a gain must be, in standard deviations. ``horizon`` is how long
    heat is taken to last, relative to what the rule expects: moves have to pay in that time.
    """

    volume: float
    confidence: float
    horizon: float

    @classmethod
    def at(cls, place: Sequence[float]) -> Self:
        """Return the knobs at places of shape ``(3,)``; places beyond -1 and 1 are as these."""
        volume, confidence, horizon = (min(max(float(each), -1.0), 1.0) for each in place)
        return cls(
            0.0 if volume < _NO_VOLUME else 2 ** (_VOLUME_OCTAVES * min(volume, 0.0)),
            _CONFIDENCE * (1 + confidence),
            2 ** (_HORIZON_OCTAVES * horizon),
        )
