# SPDX-License-Identifier: MIT
"""Policies by name: those of hmd, and those of other packages, found by entry points.

A policy is a module with a ``POLICY`` (:class:`hmd.policy.settings.PolicyInfo`). Those in
``hmd/policy/builtin/`` are found there; a package of its own names one in its metadata::

    [project.entry-points."hmd.policies"]
    coldest = "my_package.coldest:POLICY"

The command line adds single files for simulations (:func:`add_file`). Such a module imports kernels
inside its functions, so that reading a configuration does not load numba, and names modules with
kernels of its own in ``POLICY``, so that no tick does. A package that cannot be used is logged in
one line, and hmd runs without its policy.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from hmd.base.errors import ConfigError, MissingError
from hmd.policy import builtin
from hmd.policy.plan import Policy
from hmd.policy.settings import PolicyInfo, PolicySettings, read_settings, settings_of

ENTRY_POINTS: Final = "hmd.policies"
"""The group of entry points of policies."""


def _find_installed(known: Collection[str]) -> Iterator[PolicyInfo]:
    """Yield the policies of other packages; log those that cannot be used."""
    names = set(known)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            found = _checked(entry.load(), entry.value)
            if found.name in names:
                raise ValueError(f"there is already a policy {found.name!r}")
        except Exception as error:  # whatever a package does: the daemon runs without it
            package = entry.dist.name if entry.dist else entry.value
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            logging.getLogger("hmd").warning(
                "policy %s of package %s is left out: %s", entry.name, package, reason
            )
            continue
        names.add(found.name)
        yield found


def _checked(found: object, name: str) -> PolicyInfo:
    if not isinstance(found, PolicyInfo):
        raise TypeError(f"{name} is no PolicyInfo")
    settings_of(found.settings_type)
    found.settings_type()
    return found


def _find() -> dict[str, PolicyInfo]:
    """Return all policies by name, sorted."""
    modules = [
        f"{builtin.__name__}.{entry.name}" for entry in pkgutil.iter_modules(builtin.__path__)
    ]
    found = {policy.name: policy for policy in (importlib.import_module(m).POLICY for m in modules)}
    found |= {policy.name: policy for policy in _find_installed(found)}
    return dict(sorted(found.items()))


_POLICIES: Final = _find()
FILES: Final[dict[str, Path]] = {}
"""The files of policies that were added."""
DEFAULT: Final = "benefit"

# Kernels that every policy needs.
_KERNELS: Final = (
    "hmd.policy.planning",
    "hmd.policy.nodes",
)


def add_file(path: Path) -> PolicyInfo:
    """Run a Python file with a ``POLICY`` and return it, which then has its name as others do.

    ConfigError where the file cannot be used, or a policy of another file has the name.
    """
    file = path.resolve()
    if (known := next((name for name in FILES if FILES[name] == file), None)) is not None:
        return _POLICIES[known]
    name = f"{__name__}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    try:
        if spec is None or spec.loader is None:
            raise ImportError("no Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = _checked(getattr(module, "POLICY", None), "POLICY")
        if found.name in _POLICIES:
            raise ValueError(f"there is already a policy {found.name!r}")
    except Exception as error:  # whatever the file does
        sys.modules.pop(name, None)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, FileNotFoundError) and error.filename == str(file):
            reason = "No such file"
        raise ConfigError(f"policy {path}: {reason}") from None
    _POLICIES[found.name], FILES[found.name] = found, file
    return found


def names() -> tuple[str, ...]:
    """Return the names of all policies, sorted."""
    return tuple(_POLICIES)


def info(name: str) -> PolicyInfo:
    """Return the description of a policy; ConfigError for an unknown name."""
    if name not in _POLICIES:
        raise ConfigError(f"there is no policy {name!r}: choose one of {', '.join(names())}")
    return _POLICIES[name]


def create(name: str, settings: PolicySettings | Mapping[str, object] | None = None) -> Policy:
    """Return a policy; ``settings`` may be values in base units by name.

    ConfigError for an unknown name or setting, or an invalid value.
    """
    policy = info(name)
    if not isinstance(settings, PolicySettings):
        try:
            settings = read_settings(policy.settings_type, settings or {})
        except ConfigError as error:
            raise ConfigError(f"policy {name}: {error}") from None
    return policy.create(settings)


def kernel_modules(policies: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the modules with kernels that these policies call, default all."""
    chosen = [each for name, each in _POLICIES.items() if policies is None or name in policies]
    modules = (*_KERNELS, *(module for each in chosen for module in each.kernels))
    return tuple(dict.fromkeys(modules))


def warm(
    between: Callable[[], None] = lambda: None, policies: Collection[str] | None = None
) -> None:
    """Compile or load all kernels of heat and of these policies, default all.

    ``between`` is called after each module with kernels.
    """
    from hmd.base import numba_kernels
    from hmd.linux.own_process import release_compiler

    others = _import_kernels(policies)
    if not others.issuperset(numba_kernels.pending()):
        with collector_paused():
            numba_kernels.warm(between=between, skip=others)
        release_compiler()


def _import_kernels(policies: Collection[str] | None) -> set[str]:
    """Import the kernels of heat and of some policies; return the modules of other policies'."""
    chosen = ("hmd.heat.table", *kernel_modules(policies))
    for name in chosen:
        importlib.import_module(name)
    return set(kernel_modules()) - set(chosen)


def needs_compiler(policies: Collection[str] | None = None) -> bool:
    """Return whether the cache lacks kernels of heat or of these policies, and can keep them."""
    from hmd.base import numba_kernels

    others = _import_kernels(policies)
    if others.issuperset(numba_kernels.pending()):
        return False
    return numba_kernels.keeps_code() and bool(numba_kernels.uncompiled(others))


def compile_kernels(report: Callable[[int, int], None]) -> None:
    """Compile what the cache lacks of all kernels; MissingError where that fails.

    A minute the first time, in forks of this process. ``report`` takes the kernels compiled so far,
    and of how many.
    """
    from hmd.base import numba_kernels

    _import_kernels(None)
    if numba_kernels.uncompiled() and not numba_kernels.keeps_code():
        raise MissingError("no folder for machine code can be written to: set NUMBA_CACHE_DIR")
    numba_kernels.compile_pending(report)


COMPILER: Final = (
    sys.executable,
    *(["-I"] if sys.flags.isolated else []),  # as packages start hmd: not the current folder's
    "-c",
    f"from {__name__} import compile_kernels; compile_kernels(lambda *_: None)",
)
"""Runs :func:`compile_kernels` in a process of its own."""


def warm_apart(environment: Mapping[str, str]) -> None:
    """Compile what a cache lacks in another process with these variables, or raise MissingError."""
    done = subprocess.run(
        COMPILER,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise MissingError(f"cannot compile hmd's kernels: {last}")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable gc inside the block and ``gc.freeze()`` at its end.

    Imports and compiled kernels make hundreds of thousands of objects, nearly all of which live as
    long as the process. Their repeated collection takes a tenth of the start, and a full collection
    some 50 ms of a later tick.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
