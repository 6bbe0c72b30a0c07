"""Pauses of Python's cyclic collector (gc), where much is loaded that stays.

Imports and compiled kernels make hundreds of thousands of objects, nearly all of which live as long
as the process: to look through them again and again takes a tenth of the start, and a collection of
all of them some 50 ms of a later tick.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect nothing within; what is there at the end is never looked through again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
