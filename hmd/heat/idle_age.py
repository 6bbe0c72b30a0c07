"""For how long pages were not seen in use: a byte a page, on a scale that widens with time.

A byte's low seven bits are a code: ticks up to 16 one by one, then eight steps an octave, so that
a time is told within an eighth, up to 2**18 ticks. The top bit marks a page that was never
sampled since it came. Ageing costs about 0.5 ns a page and tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Uint8Plane, Uint8s, kernel

#: The byte of a page that has just come, or is not there.
NEW: Final = 0x80

_CODES: Final = 0x80
_EXACT: Final = 16
_STEPS: Final = 8


@dataclass(frozen=True, slots=True)
class Idle:
    """For how long pages were not seen in use, shape ``(chunks, 512)``.

    ``ticks`` since a page's last sample, or since it came where it was never ``sampled``; above 16
    they are at most an eighth too many. All rows of a huge page have what its last sample says.
    """

    ticks: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.bool_]


def _spans() -> npt.NDArray[np.int64]:
    """Return for how many ticks a page keeps each code."""
    octave = np.maximum(np.arange(_CODES) - _EXACT, -1) // _STEPS
    spans: npt.NDArray[np.int64] = 1 << (octave + 1)
    return spans


_SPAN: Final = _spans()
_TICKS: Final = np.concatenate([[0], np.cumsum(_SPAN[:-1])]).astype(np.int32)


def successors(tick: int) -> npt.NDArray[np.uint8]:
    """Return what becomes of each byte at a tick, shape ``(256,)``."""
    code = np.arange(_CODES)
    # All pages of a code go on together.
    following = np.minimum(code + (tick % _SPAN == 0), _CODES - 1)
    return np.concatenate([following, following + NEW]).astype(np.uint8)


@kernel
def age(chunks: int, following: Uint8s, idle: Uint8Plane) -> None:
    """Let every page be idle for a tick more; ``following`` as of :func:`successors`."""
    for chunk in range(chunks):
        for i in range(idle.shape[1]):
            idle[chunk, i] = following[idle[chunk, i]]


def decoded(idle: npt.NDArray[np.uint8], huge: npt.NDArray[np.bool_]) -> Idle:
    """Return times out of bytes, shape ``(chunks, 512)``; ``huge`` by chunk."""
    if huge.any():
        idle = idle.copy()
        # Bytes of pages that were sampled are less than those of pages that were not.
        idle[huge] = idle[huge].min(axis=1, keepdims=True)
    return Idle(_TICKS[idle & (NEW - 1)], idle < NEW)
