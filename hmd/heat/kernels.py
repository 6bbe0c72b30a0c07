"""How hmd compiles its kernels.

A kernel is a plain function on arrays. It is compiled for the one signature that its annotations
state, with all others of its module: by :func:`warm`, so that no later call waits for a compiler,
or else at the first call. numba is imported then, so that a process that has nothing to count, such
as a daemon without targets' processes, saves its 0.3 s and 60 MiB. Arguments that belong together
are bundled in a ``NamedTuple`` of arrays.

:mod:`hmd.machine_code` keeps the machine code in a cache. Numba's cache checks only the file of the
kernel itself. Most :func:`inline` functions that a kernel calls therefore live in the file of the
kernel. A change of this file, of ``hmd.heat.geometry``, or of a bundle or an inline function that
is defined elsewhere needs ``__pycache__`` removed.

Costs: about a second per kernel to compile, once; about 10 ms per kernel to load from the cache,
and 0.3 s to import numba. A call goes through a ``LazyKernel``, which adds 0.1 µs.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType, NoneType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import numpy.typing as npt

from hmd.machine_code import compile_cached

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning.
_FAST: Final = {"reassoc", "contract", "arcp", "nsz"}

KERNEL_MODULES: Final = (
    "hmd.heat.chunk_index",
    "hmd.heat.sample_counting",
    "hmd.heat.rates.cooling",
    "hmd.heat.rates.posterior_rates",
    "hmd.heat.whole_chunks",
    "hmd.heat.page_counts",
    "hmd.heat.idle_age",
    "hmd.heat.rates.wear_fading",
    "hmd.heat.rates.change_detection",
    "hmd.heat.rates.change_points",
    "hmd.heat.view.page_columns",
    "hmd.heat.page_detail",
    "hmd.heat.view.row_bins",
    "hmd.heat.view.row_sides",
    "hmd.heat.view.row_selection",
    "hmd.heat.view.sampled_rows",
    "hmd.heat.view.leaving_rows",
)


class Layout(NamedTuple):
    """How a kernel expects an array: number of dimensions, numba's layout, whether it is written.

    ``"C"`` is contiguous; ``"A"`` has any stride.
    """

    dimensions: int = 1
    order: str = "C"
    readonly: bool = False


_PLANE: Final = Layout(2)
_VIEW: Final = Layout(order="A", readonly=True)

#: A number that the kernel takes as unsigned: an index that cannot be negative is faster.
Uint64: TypeAlias = Annotated[int, np.uint64]
# Contiguous arrays of one dimension.
Bools: TypeAlias = Annotated[npt.NDArray[np.bool_], Layout()]
Int8s: TypeAlias = Annotated[npt.NDArray[np.int8], Layout()]
Int16s: TypeAlias = Annotated[npt.NDArray[np.int16], Layout()]
Int32s: TypeAlias = Annotated[npt.NDArray[np.int32], Layout()]
Int64s: TypeAlias = Annotated[npt.NDArray[np.int64], Layout()]
Uint8s: TypeAlias = Annotated[npt.NDArray[np.uint8], Layout()]
Uint16s: TypeAlias = Annotated[npt.NDArray[np.uint16], Layout()]
Uint64s: TypeAlias = Annotated[npt.NDArray[np.uint64], Layout()]
Float32s: TypeAlias = Annotated[npt.NDArray[np.float32], Layout()]
Float64s: TypeAlias = Annotated[npt.NDArray[np.float64], Layout()]
# Contiguous arrays of two dimensions, and of three.
Int8Plane: TypeAlias = Annotated[npt.NDArray[np.int8], _PLANE]
Int16Plane: TypeAlias = Annotated[npt.NDArray[np.int16], _PLANE]
Int32Plane: TypeAlias = Annotated[npt.NDArray[np.int32], _PLANE]
Int64Plane: TypeAlias = Annotated[npt.NDArray[np.int64], _PLANE]
Uint8Plane: TypeAlias = Annotated[npt.NDArray[np.uint8], _PLANE]
Float32Plane: TypeAlias = Annotated[npt.NDArray[np.float32], _PLANE]
Float64Plane: TypeAlias = Annotated[npt.NDArray[np.float64], _PLANE]
Int32Cube: TypeAlias = Annotated[npt.NDArray[np.int32], Layout(3)]
Float64Cube: TypeAlias = Annotated[npt.NDArray[np.float64], Layout(3)]
# Arrays of one dimension and any stride, which are only read. They do not fit into a bundle:
# numba converts arrays in plain tuples only.
Int32View: TypeAlias = Annotated[npt.NDArray[np.int32], _VIEW]
Uint8View: TypeAlias = Annotated[npt.NDArray[np.uint8], _VIEW]
Uint32View: TypeAlias = Annotated[npt.NDArray[np.uint32], _VIEW]
Uint64View: TypeAlias = Annotated[npt.NDArray[np.uint64], _VIEW]

_SCALARS: Final = {NoneType: "void", bool: "boolean", int: "int64", float: "float64"}
"""Scalars, and their names among numba's types."""

_loading: Final = threading.RLock()
_unloaded: Final[dict[str, list[tuple[Callable[..., Any], LazyKernel | None]]]] = {}
"""Functions of each module that are not compiled yet, in order; kernels with what calls them."""
_inlines: Final[set[Callable[..., Any]]] = set()
"""The functions of :func:`inline`, as Python has them."""


class LazyKernel:
    """Calls a kernel, which the first call compiles or loads from its cache.

    Other attributes are those of numba's dispatcher.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Return what the kernel returns."""
        if self.compiled is None:
            load(self.function.__module__)
        return self.compiled(*arguments)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled kernel, once it is compiled."""
        if name.startswith("__") or self.compiled is None:
            raise AttributeError(name)
        return getattr(self.compiled, name)


def kernel(function: F) -> F:
    """Have a function compiled for exactly the argument and result types of its annotations.

    Annotations are ``bool``, ``int`` and ``float`` (64 bits), the array types of this module,
    plain tuples of these, and classes of ``NamedTuple`` whose fields are such; ``TypeError`` for
    others.
    """
    for hint in get_type_hints(function, include_extras=True).values():
        _check_type(hint)
    made = LazyKernel(function)
    _unloaded.setdefault(function.__module__, []).append((function, made))
    return cast(F, made)


def inline(function: F) -> F:
    """Have a function compiled that only kernels call: of its file, or that import it by name."""
    _unloaded.setdefault(function.__module__, []).append((function, None))
    _inlines.add(function)
    return function


def load(module: str) -> None:
    """Compile or load the kernels of an imported module.

    Compiled functions replace those of the module: kernels find each other by their global names.
    """
    import numba

    with _loading:
        _load_imported(module)
        for function, kernel_ in _unloaded.get(module, ()):
            if kernel_ is None:
                compiled = numba.njit(error_model="numpy", fastmath=_FAST)(function)
            else:
                compiled = kernel_.compiled = compile_cached(
                    function,
                    _signature(function),
                    nogil=True,
                    error_model="numpy",
                    fastmath=_FAST,
                )
            function.__globals__[function.__name__] = compiled
        _unloaded.pop(module, None)


def _load_imported(module: str) -> None:
    """Replace the inline functions that a module imported by what is compiled of them."""
    names = vars(sys.modules[module])
    for name, value in tuple(names.items()):
        if isinstance(value, FunctionType) and value.__module__ != module and value in _inlines:
            load(value.__module__)
            names[name] = vars(sys.modules[value.__module__])[value.__name__]


def unloaded(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that are not imported, or have kernels that are not loaded."""
    return tuple(name for name in modules if name not in sys.modules or name in _unloaded)


def warm(
    modules: tuple[str, ...] = KERNEL_MODULES, between: Callable[[], None] = lambda: None
) -> int:
    """Compile or load the kernels of some modules; returns the number of modules.

    ``between`` is called after each. With another machine's ``NUMBA_CPU_NAME``, this fills a cache
    for that machine. :func:`hmd.decide.registry.warm` does the same for heat and policies together.
    """
    for name in modules:
        importlib.import_module(name)
        load(name)
        between()
    return len(modules)


@cache
def _check_type(hint: Any) -> None:
    """Raise ``TypeError`` for an annotation that has no numba type."""
    if hint in _SCALARS or get_origin(hint) is Annotated:
        return
    if get_origin(hint) is tuple:
        fields = get_args(hint)
    elif isinstance(hint, type) and issubclass(hint, tuple):
        fields = tuple(get_type_hints(hint, include_extras=True).values())
    else:
        raise TypeError(f"a kernel cannot take or return {hint!r}")
    for each in fields:
        _check_type(each)


def _signature(function: Callable[..., Any]) -> Any:
    """Return the numba signature of an annotated function."""
    hints = get_type_hints(function, include_extras=True)
    returned = _numba_type(hints.pop("return"))
    return returned(*(_numba_type(hint) for hint in hints.values()))


@cache
def _numba_type(hint: Any) -> Any:
    """Return the numba type of an annotation that ``_check_type`` accepts."""
    import numba
    from numba import types

    if hint in _SCALARS:
        return getattr(types, _SCALARS[hint])
    tuple_type: Callable[..., Any] = types.BaseTuple.from_types
    if get_origin(hint) is Annotated:
        array, layout = get_args(hint)
        if array is int:
            return numba.from_dtype(np.dtype(layout))
        dtype = get_args(get_args(array)[1])[0]
        element = numba.from_dtype(np.dtype(dtype))
        return types.Array(element, layout.dimensions, layout.order, readonly=layout.readonly)
    if get_origin(hint) is tuple:
        return tuple_type([_numba_type(each) for each in get_args(hint)])
    fields = get_type_hints(hint, include_extras=True)
    return tuple_type([_numba_type(each) for each in fields.values()], hint)
