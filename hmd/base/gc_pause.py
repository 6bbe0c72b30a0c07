# SPDX-License-Identifier: MIT
"""Pauses of Python's cyclic garbage collector, where much is loaded that stays.

Imports and compiled kernels make hundreds of thousands of objects, nearly all of which live as long
as the process. Their repeated collection takes a tenth of the start, and a full collection some
50 ms of a later tick.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable gc inside the block and ``gc.freeze()`` at its end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
