"""How hmd compiles its kernels: the only module that imports numba.

A kernel is a plain function on arrays. It is compiled when its module is imported, for the one
signature that its annotations state, so that no call ever waits for a compiler. Arguments that
belong together are bundled in a ``NamedTuple`` of arrays.

Machine code is cached next to the source or in ``NUMBA_CACHE_DIR``. Numba's cache checks only the
file of the kernel itself. The :func:`inline` functions that a kernel calls therefore live in the
file of the kernel, and a change of this file, of ``hmd.heat.geometry`` or of a bundle that is
defined elsewhere needs ``__pycache__`` removed.

Costs: about a second per kernel to compile, once; about 10 ms per kernel to load from the cache,
and 0.3 s to import numba.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import NoneType
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

import numba
import numpy as np
import numpy.typing as npt
from numba import types

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
    "hmd.heat.page_columns",
    "hmd.heat.page_detail",
    "hmd.heat.row_selection",
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
Uint32s: TypeAlias = Annotated[npt.NDArray[np.uint32], Layout()]
Uint64s: TypeAlias = Annotated[npt.NDArray[np.uint64], Layout()]
Float32s: TypeAlias = Annotated[npt.NDArray[np.float32], Layout()]
Float64s: TypeAlias = Annotated[npt.NDArray[np.float64], Layout()]
# Contiguous arrays of two dimensions, and of three.
Int8Plane: TypeAlias = Annotated[npt.NDArray[np.int8], _PLANE]
Int64Plane: TypeAlias = Annotated[npt.NDArray[np.int64], _PLANE]
Uint8Plane: TypeAlias = Annotated[npt.NDArray[np.uint8], _PLANE]
Float32Plane: TypeAlias = Annotated[npt.NDArray[np.float32], _PLANE]
Float64Plane: TypeAlias = Annotated[npt.NDArray[np.float64], _PLANE]
Float64Cube: TypeAlias = Annotated[npt.NDArray[np.float64], Layout(3)]
# Arrays of one dimension and any stride, which are only read. They do not fit into a bundle:
# numba converts arrays in plain tuples only.
Int32View: TypeAlias = Annotated[npt.NDArray[np.int32], _VIEW]
Int64View: TypeAlias = Annotated[npt.NDArray[np.int64], _VIEW]
Uint8View: TypeAlias = Annotated[npt.NDArray[np.uint8], _VIEW]
Uint32View: TypeAlias = Annotated[npt.NDArray[np.uint32], _VIEW]
Uint64View: TypeAlias = Annotated[npt.NDArray[np.uint64], _VIEW]

_tuple_type: Final[Callable[..., Any]] = types.BaseTuple.from_types
_SCALARS: Final[dict[object, Any]] = {
    NoneType: types.void,
    bool: types.boolean,
    int: types.int64,
    float: types.float64,
}


def kernel(function: F) -> F:
    """Compile a function for exactly the argument and result types that its annotations state.

    Annotations are ``bool``, ``int`` and ``float`` (64 bits), the array types of this module,
    plain tuples of these, and classes of ``NamedTuple`` whose fields are such.
    """
    compiler = numba.njit(
        _signature(function), cache=True, nogil=True, error_model="numpy", fastmath=_FAST
    )
    return cast(F, compiler(function))


def inline(function: F) -> F:
    """Compile a function that only kernels of the same file call."""
    return cast(F, numba.njit(error_model="numpy", fastmath=_FAST)(function))


def warm(modules: tuple[str, ...] = KERNEL_MODULES) -> int:
    """Compile or load the kernels of some modules; returns the number of modules.

    With another machine's ``NUMBA_CPU_NAME``, this fills a cache for that machine.
    :func:`hmd.decide.registry.warm` does the same for heat and policies together.
    """
    for name in modules:
        importlib.import_module(name)
    return len(modules)


def _signature(function: Callable[..., Any]) -> Any:
    """Return the numba signature of an annotated function."""
    hints = get_type_hints(function, include_extras=True)
    returned = _numba_type(hints.pop("return"))
    return returned(*(_numba_type(hint) for hint in hints.values()))


def _numba_type(hint: Any) -> Any:
    """Return the numba type of an annotation; ``TypeError`` for one that has none."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    if get_origin(hint) is Annotated:
        array, layout = get_args(hint)
        if array is int:
            return numba.from_dtype(np.dtype(layout))
        dtype = get_args(get_args(array)[1])[0]
        element = numba.from_dtype(np.dtype(dtype))
        return types.Array(element, layout.dimensions, layout.order, readonly=layout.readonly)
    if get_origin(hint) is tuple:
        return _tuple_type([_numba_type(each) for each in get_args(hint)])
    if isinstance(hint, type) and issubclass(hint, tuple):
        fields = get_type_hints(hint, include_extras=True)
        return _tuple_type([_numba_type(each) for each in fields.values()], hint)
    raise TypeError(f"a kernel cannot take or return {hint!r}")
