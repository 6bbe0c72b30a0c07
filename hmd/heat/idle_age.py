"""Idle age: the time since each page was last sampled, one byte per page.

The low seven bits of a byte are a code: single ticks up to 16, then eight steps per octave, so
that a time is exact to an eighth, up to 2**18 ticks. The top bit marks a page that was never
sampled since it appeared. Ageing costs about 0.5 ns per page and tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Int32s, Uint8Plane, Uint8s, kernel

#: The byte of a page that has just appeared, or is absent.
NEW: Final = 0x80

_CODES: Final = 0x80
_EXACT: Final = 16
_STEPS: Final = 8


@dataclass(frozen=True, slots=True)
class IdleAge:
    """Idle ages, shape ``(n,)``.

    ``ticks`` since a page's last sample, or since it appeared if it was never ``sampled``; above 16
    at most an eighth too many.
    """

    ticks: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.bool_]


def _spans() -> npt.NDArray[np.int64]:
    """Return how many ticks a page keeps each code."""
    octave = np.maximum(np.arange(_CODES) - _EXACT, -1) // _STEPS
    spans: npt.NDArray[np.int64] = 1 << (octave + 1)
    return spans


_SPAN: Final = _spans()
_TICKS: Final = np.concatenate([[0], np.cumsum(_SPAN[:-1])]).astype(np.int32)


def successors(tick: int) -> npt.NDArray[np.uint8]:
    """Return the byte that follows each byte at a tick, shape ``(256,)``."""
    code = np.arange(_CODES)
    # All pages of one code advance together.
    following = np.minimum(code + (tick % _SPAN == 0), _CODES - 1)
    return np.concatenate([following, following + NEW]).astype(np.uint8)


@kernel
def age(chunks: int, following: Uint8s, owner: Int32s, idle: Uint8Plane, rested: Uint8s) -> None:
    """Age every page, and every chunk, by a tick; ``following`` comes from :func:`successors`.

    ``idle`` are rows of pages, free where their ``owner`` is below 0; ``rested`` is by chunk.
    """
    for row in range(len(owner)):
        if owner[row] >= 0:
            for i in range(idle.shape[1]):
                idle[row, i] = following[idle[row, i]]
    for chunk in range(chunks):
        rested[chunk] = following[rested[chunk]]


def idle_age(code: npt.NDArray[np.uint8]) -> IdleAge:
    """Return the idle ages that bytes encode, shape ``(n,)``."""
    return IdleAge(_TICKS[code & (NEW - 1)], code < NEW)
