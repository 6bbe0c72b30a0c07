# SPDX-License-Identifier: MIT
"""How hmd compiles its kernels with numba, and keeps their machine code.

A :func:`kernel` is a plain function on arrays that is compiled for the one signature that its
annotations state. Arguments that belong together are bundled in a ``NamedTuple`` of arrays. An
:func:`inline` function is called by kernels only. A :func:`generic_kernel` is compiled for the
types of its first call.

All functions of a module are compiled, or loaded from the cache, together: by :func:`warm`, or
else at the first call of one of them. numba is imported then, so that a process that has nothing to
count, such as a daemon without targets' processes, saves its 0.3 s and 60 MiB.

Machine code is kept next to the source, else in the user's ``~/.cache``, or in ``NUMBA_CACHE_DIR``;
a user who can write to none of them gets code that is compiled again in each process. What root has
compiled next to the source, as packages do when they are installed, comes first for all users.
Cached code is valid for one :func:`code_digest`, which covers all that is compiled into it, in
whatever file. To compile takes about a second per kernel, to load 10 ms. :func:`compile_pending`
fills the cache in processes of its own, for one that must not stand still. A call goes through a
``LazyKernel``, which adds 0.1 µs.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import cache
from multiprocessing import get_context
from types import CodeType, FunctionType, ModuleType, NoneType
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

from hmd.base.errors import MissingError

F = TypeVar("F", bound=Callable[..., Any])
B = TypeVar("B", bound=tuple[Any, ...])

# Sums may be reordered, so that they vectorise; infinities and NaN keep their meaning.
_FAST: Final = {"reassoc", "contract", "arcp", "nsz"}
_INLINE_OPTIONS: Final = {"error_model": "numpy", "fastmath": _FAST}
_KERNEL_OPTIONS: Final = {**_INLINE_OPTIONS, "nogil": True}
_GENERIC_OPTIONS: Final = {"error_model": "numpy"}


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
# Arrays of one dimension and any stride, which are only read. They do not fit into a bundle:
# numba converts arrays in plain tuples only.
Int32View: TypeAlias = Annotated[npt.NDArray[np.int32], _VIEW]
Uint8View: TypeAlias = Annotated[npt.NDArray[np.uint8], _VIEW]
Uint32View: TypeAlias = Annotated[npt.NDArray[np.uint32], _VIEW]
Uint64View: TypeAlias = Annotated[npt.NDArray[np.uint64], _VIEW]

_SCALARS: Final = {NoneType: "void", bool: "boolean", int: "int64", float: "float64"}
"""Scalars, and their names among numba's types."""

_CONSTANTS: Final = (int, float, complex, str, bytes, NoneType, np.generic, enum.Enum)
"""Types of global values that numba compiles into a function; arrays and tuples as well."""

READ_ONLY: Final = "read only"
"""What numba has for enabled where a cache is only read."""

_loading: Final = threading.RLock()
_unloaded: Final[dict[str, list[tuple[FunctionType, LazyKernel | None]]]] = {}
"""Functions of each imported module that are not compiled yet, in order; None for inline ones."""
_inlines: Final[set[Callable[..., Any]]] = set()
"""The functions of :func:`inline`, as Python has them."""


class LazyKernel:
    """Calls a kernel, which the first call compiles or loads from its cache.

    Other attributes are those of numba's dispatcher. A ``typed`` kernel is compiled for its
    annotations, others for the types of each call.
    """

    def __init__(self, function: FunctionType, *, typed: bool) -> None:
        self.function, self.typed = function, typed
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


def zeros(bundle: type[B], *shape: int) -> B:
    """Return a bundle of arrays of one shape, with zeros."""
    return bundle(*(np.zeros(shape, dtype) for dtype in dtypes(bundle)))


@cache
def dtypes(bundle: type[Any]) -> tuple[np.dtype[Any], ...]:
    """Return the element types of a bundle's arrays."""
    hints = get_type_hints(bundle, include_extras=True).values()
    return tuple(_dtype(get_args(hint)[0]) for hint in hints)


def _dtype(array: Any) -> np.dtype[Any]:
    """Return the element type of an array's annotation."""
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(array)[1])[0])
    return dtype


def kernel(function: F) -> F:
    """Have a function compiled for exactly the argument and result types of its annotations.

    Annotations are ``bool``, ``int`` and ``float`` (64 bits), the array types of this module,
    plain tuples of these, and classes of ``NamedTuple`` whose fields are such; ``TypeError`` for
    others.
    """
    for hint in get_type_hints(function, include_extras=True).values():
        _check_type(hint)
    return _add_lazy(function, typed=True)


def generic_kernel(function: F) -> F:
    """Have a function compiled for the types of each call, with floating point as Python has it."""
    return _add_lazy(function, typed=False)


def inline(function: F) -> F:
    """Have a function compiled that only kernels call: of its file, or that import it by name."""
    _unloaded.setdefault(function.__module__, []).append((cast(FunctionType, function), None))
    _inlines.add(function)
    return function


def _add_lazy(function: F, *, typed: bool) -> F:
    lazy = LazyKernel(cast(FunctionType, function), typed=typed)
    _unloaded.setdefault(function.__module__, []).append((lazy.function, lazy))
    return cast(F, lazy)


def load(module: str) -> None:
    """Compile or load the kernels of an imported module.

    Compiled functions replace those of the module: kernels find each other by their global names.
    With ``NUMBA_DISABLE_JIT=1`` kernels run as Python.
    """
    import numba

    njit: Callable[..., Any] = numba.njit
    disabled: bool = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    with _loading:
        _note_compilations()
        _load_imported(module)
        for function, lazy in _unloaded.get(module, ()):
            compiled: Any = function
            if disabled:
                if lazy is not None:
                    lazy.compiled = function
            elif lazy is None:
                compiled = njit(**_INLINE_OPTIONS)(function)
            elif lazy.typed:
                compiled = lazy.compiled = _cached(function, typed=True)
                compiled.compile(_signature(function))
                compiled.disable_compile()
            else:
                compiled = lazy.compiled = _cached(function, typed=False)
            function.__globals__[function.__name__] = compiled
        _unloaded.pop(module, None)


def _load_imported(module: str) -> None:
    """Replace the functions that a module imported from others by what is compiled of them."""
    names = vars(sys.modules[module])
    for name, value in tuple(names.items()):
        function = value.function if isinstance(value, LazyKernel) else value
        if not isinstance(function, FunctionType) or function.__module__ == module:
            continue
        if isinstance(value, LazyKernel) or function in _inlines:
            load(function.__module__)
            names[name] = vars(sys.modules[function.__module__])[function.__name__]


def pending() -> tuple[str, ...]:
    """Return the imported modules whose kernels are not loaded."""
    return tuple(_unloaded)


def warm(
    modules: tuple[str, ...] = (),
    between: Callable[[], None] = lambda: None,
    skip: Collection[str] = (),
) -> int:
    """Import modules, and load all kernels that were imported; returns of how many modules.

    ``between`` is called after each. Kernels of the modules ``skip`` are not loaded. With another
    machine's ``NUMBA_CPU_NAME``, this fills a cache for that machine.
    """
    for name in modules:
        importlib.import_module(name)
    names = [name for name in pending() if name not in skip]
    for name in names:
        load(name)
        between()
    return len(names)


def uncompiled(skip: Collection[str] = ()) -> dict[str, int]:
    """Return how many kernels of each imported module the cache lacks, in order of imports.

    Modules whose kernels are loaded or all in the cache are left out, and ``skip``. Nothing is
    compiled or loaded; imports numba, and takes about 1 ms per kernel.
    """
    import numba

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return {}
    found = {
        name: sum(
            lazy is not None and lazy.typed and not _is_compiled(function)
            for function, lazy in functions
        )
        for name, functions in tuple(_unloaded.items())
        if name not in skip
    }
    return {name: count for name, count in found.items() if count}


def compile_pending(report: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Compile what the cache lacks of the imported kernels, each module in a fork of its own.

    The compiler's memory, some 10 MiB per kernel, ends with the fork. ``report`` is called before
    the first and after each module with the kernels compiled so far, and of how many. Only for
    processes without other threads. Raises MissingError where that fails.
    """
    counts = uncompiled()
    done, total = 0, sum(counts.values())
    report(done, total)
    if counts:
        _note_compilation()  # here, rather than in each fork
    for name, count in counts.items():
        process = get_context("fork").Process(target=load, args=(name,))
        process.start()
        process.join()
        if process.exitcode:
            raise MissingError(f"cannot compile the kernels of {name}")
        done += count
        report(done, total)


def keeps_code() -> bool:
    """Return whether this user can write to a cache."""
    found = _cache_of(cast(FunctionType, code_digest), typed=False)
    return found is not None and found._enabled != READ_ONLY


def _is_compiled(function: FunctionType) -> bool:
    """Return whether the cache has the machine code of a typed kernel for this CPU."""
    found = _cache_of(function, typed=True)
    return found is not None and _has_code(found, function)


def _has_code(found: Any, function: FunctionType) -> bool:
    from numba.core.registry import cpu_target

    key = found._index_key(_signature(function), cpu_target.target_context.codegen())
    return key in found._cache_file._load_index()


@cache
def _cache_of(function: FunctionType, *, typed: bool) -> Any:
    """Return numba's cache of a function, None where this user can write to none."""
    from numba.core import caching

    options: dict[str, Any] = _KERNEL_OPTIONS if typed else _GENERIC_OPTIONS
    # Numba's own stamp is the time and size of the function's file, which installers and images
    # change. It is compared after unpickling the index, which fails where a class has gone; the
    # version is compared before that.
    text = repr([(k, sorted(v) if isinstance(v, set) else v) for k, v in sorted(options.items())])
    version = f" {code_digest(function, text)}"
    in_tree: Any = caching.InTreeCacheLocator
    if typed and in_tree.from_function(function, function.__code__.co_filename) is None:
        # What the installation of a package has compiled.
        found = _read_only_cache(function, in_tree)
        if _has_code(_stamped(found, version), function):
            return found
    try:
        found = cast(Any, caching).FunctionCache(function)
    except RuntimeError as error:
        # What numba.core.caching raises where no folder can be written to.
        if "no locator available" not in str(error):
            raise
        if not os.environ.get("NUMBA_CACHE_DIR"):
            return None
        found = _read_only_cache(function, caching.UserProvidedCacheLocator)
    return _stamped(found, version)


def _stamped(found: Any, version: str) -> Any:
    """Make code of other versions invalid for a cache; returns it."""
    found._cache_file._version += version
    found._cache_file._source_stamp = ""
    return found


def _read_only_cache(function: FunctionType, locator: Any) -> Any:
    """Return a function's cache where a locator finds it, that is only read, as in images."""
    from numba.core import caching

    every: Any = caching.CacheImpl
    is_writable, locators = locator.ensure_cache_path, every._locator_classes
    locator.ensure_cache_path, every._locator_classes = (lambda _: None), [locator]
    try:
        found = cast(Any, caching).FunctionCache(function)
    finally:
        locator.ensure_cache_path, every._locator_classes = is_writable, locators
    found._enabled, found.save_overload = READ_ONLY, lambda *_: None
    return found


def _cached(function: FunctionType, *, typed: bool) -> Any:
    """Return numba's dispatcher of a function, with a cache if this user can write to one."""
    import numba

    njit: Callable[..., Any] = numba.njit
    dispatcher = njit(**(_KERNEL_OPTIONS if typed else _GENERIC_OPTIONS))(function)
    found = _cache_of(function, typed=typed)
    if found is not None:
        dispatcher._cache = found
    if found is None or (typed and not keeps_code() and not _is_compiled(function)):
        _note_missing_cache()
    return dispatcher


@cache
def _note_compilation() -> None:
    """Log, once per process, why it stands still."""
    if keeps_code():
        logging.getLogger("hmd").warning("compiling kernels: once, and up to a minute")


@cache
def _note_compilations() -> None:
    """Have the first compilation of any kernel logged, not its loading from a cache."""
    from numba.core import event

    class Compilations(event.Listener):
        def on_start(self, event: Any) -> None:
            _note_compilation()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Compilations())  # type: ignore[no-untyped-call]


@cache
def _note_missing_cache() -> None:
    """Log, once per process, that compiled code is not kept."""
    logging.getLogger("hmd").warning(
        "hmd compiles its kernels again at each start: this user can write to no cache of numba;"
        " set NUMBA_CACHE_DIR to a folder of your own"
    )


def code_digest(function: FunctionType, options: str = "") -> str:
    """Return a digest of all that a compiled function depends on.

    That is the code of the function and of those that it calls, in whatever file, the values of the
    constants and the fields of the bundles that these name, and ``options``. Comments, docstrings
    and lines do not count.
    """
    hints = get_type_hints(function, include_extras=True).values()
    state = hashlib.blake2b("\0".join([options, *map(_hint_text, hints)]).encode(), digest_size=16)
    waiting, seen = [function], {function}
    while waiting:
        text, called = _dependencies(waiting.pop())
        state.update(text)
        new = [each for each in called if each not in seen]
        seen.update(new)
        waiting += new
    return state.hexdigest()


@cache
def _dependencies(function: FunctionType) -> tuple[bytes, tuple[FunctionType, ...]]:
    """Return a function's own code with its constants, and the functions that it calls."""
    facts: list[str] = [function.__qualname__]
    called: list[FunctionType] = []
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    for code in _codes(function.__code__):
        facts += code.co_code.hex(), repr((code.co_argcount, code.co_names, code.co_varnames))
        constants = (each for each in code.co_consts if each != function.__doc__)
        facts += (repr(each) for each in constants if not isinstance(each, CodeType))
        values += [function.__globals__.get(name) for name in code.co_names]
    for value in values:
        plain = getattr(value, "py_func", getattr(value, "function", value))
        if isinstance(plain, FunctionType):
            called.append(plain)
        elif isinstance(plain, ModuleType) and plain.__name__.partition(".")[0] == "hmd":
            raise TypeError(f"{function.__qualname__}: import names from {plain.__name__}, not it")
        else:
            facts.append(_constant_text(plain))
    return "\0".join(facts).encode(), tuple(called)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions within."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _constant_text(value: Any) -> str:
    """Return what is compiled of a global value, nothing for what numba does not compile."""
    if isinstance(value, type):
        members = list(value) if issubclass(value, enum.Enum) else []
        return _hint_text(value) + repr(members)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, tuple):
        return ",".join(map(_constant_text, value))
    return repr(value) if isinstance(value, _CONSTANTS) else ""


@cache
def _hint_text(hint: Any) -> str:
    """Return the definition of a type: the names and types of the fields of a bundle."""
    if not (isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")):
        return str(hint)
    fields = get_type_hints(hint, include_extras=True)
    return f"{hint}({','.join(f'{name}:{_hint_text(each)}' for name, each in fields.items())})"


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
        element = numba.from_dtype(_dtype(array))
        return types.Array(element, layout.dimensions, layout.order, readonly=layout.readonly)
    if get_origin(hint) is tuple:
        return tuple_type([_numba_type(each) for each in get_args(hint)])
    fields = get_type_hints(hint, include_extras=True)
    return tuple_type([_numba_type(each) for each in fields.values()], hint)
