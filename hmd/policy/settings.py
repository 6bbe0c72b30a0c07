# SPDX-License-Identifier: MIT
"""Settings of policies as pydantic models, and what describes a policy to the registry.

Each field states its type, unit, limits, effect and the range that ``hmd tune`` searches::

    class AgeSettings(HeadroomSettings):
        idle: Annotated[
            float | None,
            Field(ge=0, description="A page that was not sampled for this time leaves ..."),
            SECONDS.or_auto,
            Search(2, 200, log=True),
        ] = None

The checks, the section of the configuration, its annotated example, JSON Schema and reference, and
the search space follow from that. The name of a field is its key in the configuration. In Python,
sizes are bytes, durations seconds and shares fractions of 1; a file states their units. Imports
neither numba nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from annotated_types import Ge, Le
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import core_schema

from hmd.base.config_section import UNITS_REQUIRED, ConfigSection, describe_error
from hmd.base.errors import ConfigError
from hmd.base.quantities import (
    DURATION_SCHEMA,
    SHARE_SCHEMA,
    SIZE_SCHEMA,
    format_duration,
    format_number,
    format_percent,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
)

if TYPE_CHECKING:
    from hmd.policy.plan import Policy

AUTO: Final = "auto"
"""Written for None: the policy derives the value from machine and heat at each tick."""

Value: TypeAlias = float | str | None
"""A value of a setting: text is the path of a file."""


@dataclass(frozen=True, slots=True)
class Unit:
    """How values of a setting are written: an annotation of its field.

    ``takes`` is the form of a value for people, ``schema`` its JSON Schema. With ``auto`` it may be
    None.
    """

    name: str
    takes: str
    parse: Callable[[object], Any]
    format_value: Callable[[Any], str]
    schema: Mapping[str, Any]
    auto: bool = False

    @property
    def or_auto(self) -> Unit:
        """The same unit for a setting that may be ``auto``."""
        schema = {"anyOf": [self.schema, {"enum": [AUTO, None]}], "examples": [AUTO]}
        return replace(self, auto=True, schema=schema)

    def format(self, value: Value) -> str:
        """Return a value as the configuration states it."""
        return AUTO if value is None else self.format_value(value)

    def read(self, given: object, info: core_schema.ValidationInfo) -> object:
        """Return what pydantic validates; numbers of Python code are in base units."""
        if self.auto and given in (None, AUTO):
            return None
        required = info.context is UNITS_REQUIRED or isinstance(given, str)
        return self.parse(given) if required else given

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Read values with their unit, and write them so."""
        written = core_schema.plain_serializer_function_ser_schema(
            self.format, return_schema=core_schema.str_schema()
        )
        return core_schema.with_info_before_validator_function(
            self.read, handler(source), serialization=written
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe what a file may state."""
        del schema, handler
        return dict(self.schema)


def _parse_path(given: object) -> str:
    if not (isinstance(given, str) and given.startswith("/")) or "\0" in given:
        raise ValueError("write an absolute path, or auto")
    return given


SHARE: Final = Unit("share", "as in 10%", parse_share, format_percent, SHARE_SCHEMA)
"""A part of 1; users write per cent."""
BYTES: Final = Unit("bytes", "as in 512MiB", parse_size, format_size, SIZE_SCHEMA)
SECONDS: Final = Unit("seconds", "as in 500ms", parse_duration, format_duration, DURATION_SCHEMA)
FILE: Final = Unit("file", "file", _parse_path, str, {"type": "string"})
"""The absolute path of a file."""
COUNT: Final = Unit(
    "count", "whole number", lambda given: int(str(given)), str, {"type": "integer"}
)
"""A whole number: the unit of fields of type ``int`` without another."""
NUMBER: Final = Unit(
    "number", "number", lambda given: float(str(given)), format_number, {"type": "number"}
)
"""The unit of fields of type ``float`` without another."""


@dataclass(frozen=True, slots=True)
class Search:
    """The range in which ``hmd tune`` searches the best value: ``low`` to ``high``, inclusive.

    In the unit of the setting, except that seconds are given in ticks. ``log`` is for settings
    whose ratio matters. Settings that depend on the machine, not on programs, have no range.
    """

    low: float
    high: float
    log: bool = False


class PolicySettings(ConfigSection):
    """Base class of the settings of policies."""


class HeadroomSettings(PolicySettings):
    """Settings of policies that keep memory free."""

    headroom: Annotated[
        float | None,
        Field(
            ge=0,
            le=0.99,
            description="Share of each node's memory that is kept free for allocations, on all"
            " tiers but the slowest. auto keeps free on the fastest tier what targets have given"
            " back lately and not allocated again, up to an eighth of it, and 2 % of the tiers"
            " between.",
        ),
        SHARE.or_auto,
    ] = None
    headroom_min: Annotated[
        int,
        Field(ge=0, description="Bytes that are kept free on every node at least."),
        BYTES,
    ] = 4 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a policy's settings, as the command line, references and searches use it.

    ``minimum`` and ``maximum`` may be infinite; ``search`` is None where ``hmd tune`` has no range.
    """

    settings_type: type[PolicySettings]
    name: str
    unit: Unit
    default: Value
    minimum: float
    maximum: float
    description: str
    search: Search | None

    def parse(self, text: str) -> Value:
        """Return the value that a text with its unit states; ConfigError for an invalid one."""
        try:
            value = None if self.unit.auto and text == AUTO else self.unit.parse(text)
        except ValueError:
            limits = f": {self.limits}" if self.limits else ""
            raise ConfigError(f"{self.name}: {text!r} is not a valid value{limits}") from None
        read: Value = getattr(read_settings(self.settings_type, {self.name: value}), self.name)
        return read

    def format(self, value: Value) -> str:
        """Return a value as the configuration states it: with its unit, or ``auto``."""
        return self.unit.format(self._whole(value))

    @property
    def limits(self) -> str:
        """The valid values; empty if any value is valid."""
        if self.unit.name == FILE.name:
            return f"an absolute path or {AUTO}"
        span = ""
        if not math.isinf(self.maximum):
            span = f"{self.format(self.minimum)} to {self.format(self.maximum)}"
        elif self.minimum > 0:
            span = f"at least {self.format(self.minimum)}"
        return " or ".join(filter(None, (span, AUTO if self.unit.auto else "")))

    @property
    def search_range(self) -> str:
        """The range that ``hmd tune`` searches; ``-`` if it does not search the setting."""
        if self.search is None:
            return "-"
        if self.unit.name == SECONDS.name:
            return f"{self.search.low:g} to {self.search.high:g} ticks"
        return f"{self.format(self.search.low)} to {self.format(self.search.high)}"

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.unit.name in (COUNT.name, BYTES.name)

    def _whole(self, value: Value) -> Value:
        return int(value) if self.is_whole and isinstance(value, float) else value


def settings_of(settings_type: type[PolicySettings]) -> tuple[Setting, ...]:
    """Return the fields of settings, in their order; TypeError for one without a description."""
    found = []
    for name, field in settings_type.model_fields.items():
        if not field.description:
            raise TypeError(f"{settings_type.__qualname__}.{name} has no description")
        unit, search = COUNT if field.annotation is int else NUMBER, None
        minimum, maximum = -math.inf, math.inf
        for each in field.metadata:
            if isinstance(each, Unit):
                unit = each
            elif isinstance(each, Search):
                search = each
            elif isinstance(each, Ge):
                minimum = float(each.ge)  # type: ignore[arg-type]
            elif isinstance(each, Le):
                maximum = float(each.le)  # type: ignore[arg-type]
        found.append(
            Setting(
                settings_type,
                name,
                unit,
                field.default,
                minimum,
                maximum,
                field.description,
                search,
            )
        )
    return tuple(found)


def read_settings(
    settings_type: type[PolicySettings], values: Mapping[str, object]
) -> PolicySettings:
    """Return settings with these values in base units; ConfigError, in one line, for others."""
    try:
        return settings_type.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(settings_type.model_fields)) or "none"
            raise ConfigError(f"no setting {name!r}: there are {known}") from None
        raise ConfigError(f"{name}: {describe_error(first)}") from None


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy: its name, what it does, which programs it suits, and how to create it.

    ``create`` takes settings of ``settings_type``. ``kernels`` names the modules with compiled code
    that only this policy calls: they are loaded before the first tick.
    """

    name: str
    summary: str
    suits: str
    settings_type: type[PolicySettings]
    create: Callable[[Any], Policy]
    kernels: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings of the policy."""
        return settings_of(self.settings_type)
