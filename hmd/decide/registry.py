"""Policies by name, with settings from the configuration.

A policy is a module in ``hmd/decide/policies/`` with an ``ABOUT``; this module finds it there, and
names none. Such a module imports kernels inside its functions, so that reading a configuration
does not load numba, and names modules with kernels of its own in ``ABOUT``, so that no tick does.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from hmd.collector_pause import collector_paused
from hmd.decide import policies
from hmd.decide.plan import Policy
from hmd.decide.tunables import About
from hmd.errors import ConfigError, MissingError


def _found() -> dict[str, About]:
    """Return the policies of the folder by name."""
    modules = (entry.name for entry in pkgutil.iter_modules(policies.__path__))
    loaded = (importlib.import_module(f"{policies.__name__}.{name}") for name in modules)
    abouts: list[About] = [module.ABOUT for module in loaded]
    return {about.name: about for about in sorted(abouts, key=lambda about: about.name)}


_POLICIES: Final = _found()
DEFAULT: Final = next(about.name for about in _POLICIES.values() if about.default)

# Kernels that every policy needs.
_KERNELS: Final = (
    "hmd.decide.guard_kernel",
    "hmd.decide.planning.move_order",
    "hmd.decide.planning.move_phases",
    "hmd.decide.process_sums",
)


def names() -> tuple[str, ...]:
    """Return the names of all policies, sorted."""
    return tuple(_POLICIES)


def about(name: str) -> About:
    """Return the description of a policy; ConfigError for an unknown name."""
    if name not in _POLICIES:
        raise ConfigError(f"there is no policy {name!r}: choose one of {', '.join(names())}")
    return _POLICIES[name]


def settings_type(name: str) -> type[Any]:
    """Return the dataclass of a policy's settings; ConfigError for an unknown name."""
    return about(name).settings


def guarded(name: str, settings: Mapping[str, object], guard: bool | None) -> Policy:
    """Return a policy, within :class:`hmd.decide.move_guard.MoveGuard` if ``guard``.

    None: as the policy's ``ABOUT`` says. The rule to fall back to is the default policy, with the
    same headroom: another one would begin with moves of its own.
    """
    policy = make(name, settings)
    if not (about(name).guard if guard is None else guard):
        return policy
    from hmd.decide.move_guard import MoveGuard

    if name == DEFAULT:
        return MoveGuard(policy)
    headroom = {key: value for key, value in settings.items() if key.startswith("headroom")}
    return MoveGuard(policy, make(DEFAULT, headroom))


def make(name: str, settings: Mapping[str, object] | None = None) -> Policy:
    """Return a policy; ``settings`` by field of its dataclass.

    ConfigError for an unknown name or setting, or a value of a wrong type or beyond its limits.
    """
    chosen = about(name)
    known = {knob.name: knob for knob in chosen.knobs}
    values: dict[str, Any] = {}
    for key, value in (settings or {}).items():
        if key not in known:
            choices = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"policy {name} has no setting {key!r}: it has {choices}")
        problem = known[key].wrong(value)
        if problem:
            raise ConfigError(f"policy {name}: {key} must be {problem}, not {value!r}")
        values[key] = known[key].taken(value)  # type: ignore[arg-type]
    return chosen.make(chosen.settings(**values))


def kernel_modules(policies: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the modules with kernels of the decide room that these policies call, default all."""
    chosen = [about for name, about in _POLICIES.items() if policies is None or name in policies]
    modules = (*_KERNELS, *(name for about in chosen for name in about.kernels))
    return tuple(dict.fromkeys(modules))


def warm(
    between: Callable[[], None] = lambda: None, policies: Collection[str] | None = None
) -> None:
    """Compile or load all kernels of heat and of these policies, default all.

    ``between`` is called after some each. The default policy is what a guard falls back to.
    """
    from hmd.heat import kernels
    from hmd.heat.compiler_memory import release_compiler

    chosen = None if policies is None else {*policies, DEFAULT}
    modules = kernels.unloaded(kernels.KERNEL_MODULES + kernel_modules(chosen))
    if modules:
        with collector_paused():
            kernels.warm(modules, between)
        release_compiler()


def warm_apart(environment: Mapping[str, str]) -> None:
    """Compile what a cache of kernels lacks, in another process with these variables added.

    A minute the first time, and 270 MiB, which a process that loads the kernels does not need.
    Raises MissingError where compilation fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import warm; warm()"],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise MissingError(f"cannot compile hmd's kernels: {last}")
