"""Compilation of functions by numba, whose machine code is kept in a cache where there is one.

Numba keeps it next to the source, else in the user's ``~/.cache``, or in ``NUMBA_CACHE_DIR``. A
user who can write to none of them gets code that is compiled again in each process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any


def compile_cached(function: Callable[..., Any], *signature: Any, **options: Any) -> Any:
    """Return what ``numba.njit`` makes of a function, cached if this user can write to a cache.

    Without a signature it is compiled at its first call.
    """
    import numba

    njit: Callable[..., Any] = numba.njit
    try:
        return njit(*signature, cache=True, **options)(function)
    except RuntimeError as error:
        # What numba.core.caching raises where no folder can be written to.
        if "no locator available" not in str(error):
            raise
    _note_missing_cache()
    return njit(*signature, **options)(function)


@cache
def _note_missing_cache() -> None:
    """Log, once per process, that compiled code is not kept."""
    logging.getLogger("hmd").warning(
        "hmd compiles its kernels again at each start: this user can write to no cache of numba;"
        " set NUMBA_CACHE_DIR to a folder of your own"
    )
