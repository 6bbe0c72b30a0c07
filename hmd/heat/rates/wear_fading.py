"""Wear: what recent moves have added to pages fades, a sixteenth per tick.

Costs about 0.1 ns per page that is counted for itself, and per chunk.
"""

from __future__ import annotations

from hmd.heat.kernels import Uint8Plane, Uint8s, inline, kernel


@inline
def _fade(wear: Uint8s) -> int:
    """Reduce some wear; return a number above 0 where any is left."""
    left = 0
    for i in range(len(wear)):
        worn = wear[i] - (wear[i] >> 4) - int(wear[i] > 0)
        wear[i] = worn
        left |= worn
    return left


@kernel
def fade_wear(pages: Uint8Plane, chunks: Uint8s) -> bool:
    """Reduce the wear of rows of pages and of chunks; return whether any is left."""
    left = _fade(chunks)
    for row in range(len(pages)):
        left |= _fade(pages[row])
    return left > 0
