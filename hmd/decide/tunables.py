"""Tunables: the settings of policies, each documented once with unit, default, limits and effect.

The checks of :mod:`hmd.decide.registry`, the configuration's ``decide:`` section
(:mod:`hmd.config.policy_sections`), the annotated example and ``hmd policy show`` follow from this.
Imports neither numba nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from hmd.decide.plan import Policy

_KNOB: Final = "knob"

Value: TypeAlias = float | str | None
"""A value of a setting: text is the path of a file."""


class Unit(StrEnum):
    """The unit of a setting."""

    SHARE = "share"
    """A part of 1; users write per cent."""
    BYTES = "bytes"
    SECONDS = "seconds"
    COUNT = "count"
    """A whole number."""
    NUMBER = "number"
    FILE = "file"
    """The absolute path of a file."""


@dataclass(frozen=True, slots=True)
class Search:
    """The range in which ``hmd tune`` searches the best value: ``low`` to ``high``, inclusive.

    In the unit of the setting, except that seconds are given in ticks, which is how policies use
    durations. ``log`` is for settings whose ratio matters; ``low`` is then above 0.
    """

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting of a policy.

    ``name`` is the field of the settings' dataclass, ``key`` its name in the configuration.
    Values lie within ``least`` and ``most``. A ``default`` of None means that the policy derives
    the value from machine and heat at each tick. ``search`` is None for settings that depend on the
    machine, not on programs.
    """

    name: str
    key: str
    unit: Unit
    default: Value
    least: float
    most: float
    effect: str
    search: Search | None = None

    def wrong(self, value: object) -> str | None:
        """Return what a value should be, None if it is valid."""
        if value is None and self.default is None:
            return None
        if self.unit is Unit.FILE:
            absolute = isinstance(value, str) and value.startswith("/") and "\0" not in value
            return None if absolute else "an absolute path"
        whole = self.unit in (Unit.COUNT, Unit.BYTES)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self.least <= value <= self.most
        ):
            upper = "" if math.isinf(self.most) else f" and at most {self.most:g}"
            return f"a number of at least {self.least:g}{upper}"
        return "a whole number" if whole and value != int(value) else None

    def taken(self, value: Value) -> Value:
        """Return a valid value with the type that the settings have."""
        if value is None or isinstance(value, str):
            return value
        return int(value) if self.unit in (Unit.COUNT, Unit.BYTES) else float(value)


def knob(
    default: Value,
    effect: str,
    unit: Unit = Unit.NUMBER,
    *,
    key: str = "",
    least: float = 0.0,
    most: float = math.inf,
    search: Search | None = None,
) -> Any:
    """Return the dataclass field of a setting; ``key`` is by default the name of the field."""
    return field(default=default, metadata={_KNOB: (key, unit, least, most, effect, search)})


def knobs_of(settings: type[Any]) -> tuple[Knob, ...]:
    """Return the settings of a policy, in their order.

    Raises ``TypeError`` for a field that was not made by :func:`knob`.
    """
    found = []
    for entry in fields(settings):
        if _KNOB not in entry.metadata:
            raise TypeError(f"{settings.__qualname__}.{entry.name} is not documented: use knob()")
        key, *rest = entry.metadata[_KNOB]
        unit, *limits = rest
        default: Any = entry.default
        found.append(Knob(entry.name, key or entry.name, unit, default, *limits))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class About:
    """A policy: its name, what it ``does``, when to ``use`` it, and how to make it.

    ``kernels`` names the modules with kernels that only this policy calls: they are loaded before
    the first tick. One policy is the ``default``. Moves of a policy with ``guard`` are guarded
    (:mod:`hmd.decide.move_guard`) unless the configuration says otherwise.
    """

    name: str
    does: str
    use: str
    settings: type[Any]
    make: Callable[[Any], Policy]
    kernels: tuple[str, ...] = ()
    default: bool = False
    guard: bool = False

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The settings of the policy."""
        return knobs_of(self.settings)


def headroom_fraction() -> Any:
    """Return the field for the share of memory that a policy keeps free."""
    effect = (
        "Share of each node's memory that is kept free for allocations, on all tiers but the"
        " slowest. auto keeps free on the fastest tier what targets have given back lately and not"
        " allocated again, up to an eighth of it, and 2 % of the tiers between."
    )
    return knob(None, effect, Unit.SHARE, key="headroom", most=0.99)


def headroom_bytes() -> Any:
    """Return the field for the bytes that a policy keeps free on every node."""
    effect = "Bytes that are kept free on every node at least."
    return knob(4 << 20, effect, Unit.BYTES, key="headroom_min")
