"""The one place where numba is named: how hmd compiles its kernels.

A kernel is a plain function on flat arrays, compiled when its module is imported, for one
explicit signature, so that no call ever waits for a compiler. Machine code is cached beside the
source or in ``NUMBA_CACHE_DIR``. Numba's cache watches the file of a kernel only: the
:func:`inline` functions that a kernel calls live in its file, and who changes this file or
hmd.heat.geometry removes ``__pycache__``.

Costs, natively: about a second a kernel to compile, once; about 10 ms a kernel to load, and 0.3 s
for numba to get ready.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning.
_FAST: Final = {"reassoc", "contract", "arcp", "nsz"}

KERNEL_MODULES: Final = (
    "hmd.heat.sample_counting",
    "hmd.heat.cooling",
    "hmd.heat.rates",
    "hmd.heat.page_counts",
    "hmd.heat.idle_age",
    "hmd.heat.change_detection",
)


def column(dtype: str) -> str:
    """Return the type of a one-dimensional array that is only read, whatever its stride."""
    return f"Array({dtype}, 1, 'A', True)"


def kernel(*arguments: str, returns: str = "void") -> Callable[[F], F]:
    """Compile a function on flat arrays for exactly these argument types.

    Types are numba's names, as in ``int64`` or ``float32[:, ::1]``, and those of
    :func:`column`.
    """
    signature = f"{returns}({', '.join(arguments)})"

    def compile_kernel(function: F) -> F:
        compiler = numba.njit(
            signature, cache=True, nogil=True, error_model="numpy", fastmath=_FAST
        )
        return cast(F, compiler(function))

    return compile_kernel


def inline(function: F) -> F:
    """Compile a function that only kernels of the same file call."""
    return cast(F, numba.njit(error_model="numpy", fastmath=_FAST)(function))


def warm(modules: tuple[str, ...] = KERNEL_MODULES) -> int:
    """Compile or load every kernel of the heat room; returns how many files hold them.

    To fill a cache for another machine, run it with that machine's ``NUMBA_CPU_NAME``.
    :func:`hmd.decide.registry.warm` does this and the kernels of the policies.
    """
    for name in modules:
        importlib.import_module(name)
    return len(modules)
