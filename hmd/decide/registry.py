"""Policies by name, with settings from the configuration.

To add a policy: write it in a file of its own, and name it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from hmd.decide import histogram, none
from hmd.decide.plan import Policy
from hmd.errors import ConfigError
from hmd.heat import kernels


@dataclass(frozen=True, slots=True)
class _Entry:
    """A policy's class and the dataclass of its settings."""

    policy: Callable[[Any], Policy]
    settings: type[Any]


_POLICIES: Final[Mapping[str, _Entry]] = {
    histogram.Histogram.name: _Entry(histogram.Histogram, histogram.Settings),
    none.NonePolicy.name: _Entry(none.NonePolicy, none.Settings),
}
DEFAULT: Final = histogram.Histogram.name


def names() -> tuple[str, ...]:
    """Return the names of all policies."""
    return tuple(sorted(_POLICIES))


def settings_type(name: str) -> type[Any]:
    """Return the dataclass of a policy's settings; ConfigError for an unknown name."""
    return _entry(name).settings


def make(name: str, settings: Mapping[str, object] | None = None) -> Policy:
    """Return a policy; ConfigError for an unknown name or setting, or a value of a wrong kind.

    A setting must be a number of at least 0; one that counts must be whole.
    """
    entry = _entry(name)
    known = {field.name: field for field in fields(entry.settings)}
    values: dict[str, float] = {}
    for key, value in (settings or {}).items():
        if key not in known:
            choices = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"policy {name} has no setting {key!r}: it has {choices}")
        values[key] = _number(name, key, value, whole=known[key].type in (int, "int"))
    return entry.policy(entry.settings(**values))


def warm() -> None:
    """Compile or load all kernels of heat and policies; importing this module did the latter."""
    kernels.warm()


def _entry(name: str) -> _Entry:
    if name not in _POLICIES:
        raise ConfigError(f"there is no policy {name!r}: choose one of {', '.join(names())}")
    return _POLICIES[name]


def _number(policy: str, key: str, value: object, *, whole: bool) -> float:
    """Return a setting's value, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"policy {policy}: {key} must be a number of at least 0, not {value!r}")
    if not whole:
        return float(value)
    if value != int(value):
        raise ConfigError(f"policy {policy}: {key} must be a whole number, not {value!r}")
    return int(value)
