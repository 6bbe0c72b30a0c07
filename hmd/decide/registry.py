"""Policies by name, with settings from the configuration.

To add a policy: write it in a file of its own, and name it in ``_POLICIES``. That file imports
kernels where it calls them, so that reading a configuration does not wait for numba; files of
kernels are named in ``_KERNELS``, so that a tick never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hmd.decide import age, benefit, heat_classes, histogram, interleave, none
from hmd.decide.plan import Policy
from hmd.decide.tunables import About
from hmd.errors import ConfigError

_POLICIES: Final = (
    age.ABOUT,
    benefit.ABOUT,
    heat_classes.ABOUT,
    histogram.ABOUT,
    interleave.ABOUT,
    none.ABOUT,
)
DEFAULT: Final = histogram.ABOUT.name

_KERNELS: Final = (
    "hmd.decide.hottest_fit",
    "hmd.decide.move_order",
    "hmd.decide.move_phases",
)


def names() -> tuple[str, ...]:
    """Return the names of all policies."""
    return tuple(sorted(about.name for about in _POLICIES))


def about(name: str) -> About:
    """Return what a policy is; ConfigError for an unknown name."""
    for found in _POLICIES:
        if found.name == name:
            return found
    raise ConfigError(f"there is no policy {name!r}: choose one of {', '.join(names())}")


def settings_type(name: str) -> type[Any]:
    """Return the dataclass of a policy's settings; ConfigError for an unknown name."""
    return about(name).settings


def make(name: str, settings: Mapping[str, object] | None = None) -> Policy:
    """Return a policy, its kernels ready; ``settings`` by field of its dataclass.

    ConfigError for an unknown name or setting, or a value of a wrong kind or beyond its limits.
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
    warm()
    return chosen.make(chosen.settings(**values))


def warm() -> None:
    """Compile or load all kernels of heat and policies."""
    from hmd.heat import kernels

    kernels.warm(kernels.KERNEL_MODULES + _KERNELS)
