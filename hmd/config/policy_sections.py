"""The ``decide:`` section: one section per policy, generated from its documented tunables.

Takes :class:`hmd.decide.tunables.About` of every policy; gives pydantic models with units and
limits, and the annotated example. A new setting of a policy appears here without further code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, create_model

from hmd.config.section import ConfigSection
from hmd.config.setting_effects import effects
from hmd.decide import registry
from hmd.decide.tunables import About, Knob, Unit, Value
from hmd.errors import ConfigError
from hmd.quantities import (
    Duration,
    Share,
    Size,
    format_duration,
    format_number,
    format_share,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
)

AUTO: Final = "auto"
"""Value of a tunable that hmd derives from the machine and the heat."""

NEVER: Final = "never"
"""Value of ``pageout`` that pages no memory out."""

_KINDS: Final[dict[Unit, Any]] = {
    Unit.SHARE: Share,
    Unit.BYTES: Size,
    Unit.SECONDS: Duration,
    Unit.COUNT: int,
    Unit.NUMBER: float,
    Unit.FILE: str,
}
_AUTO_TYPES: Final[dict[Unit, list[str]]] = {
    Unit.SHARE: ["string", "null"],
    Unit.BYTES: ["string", "integer", "null"],
    Unit.SECONDS: ["string", "integer", "null"],
    Unit.COUNT: ["string", "integer", "null"],
    Unit.NUMBER: ["string", "number", "null"],
    Unit.FILE: ["string", "null"],
}
"""JSON types of a tunable that may be ``auto``."""
_PARSE: Final[dict[Unit, Callable[[object], object]]] = {
    Unit.SHARE: parse_share,
    Unit.BYTES: parse_size,
    Unit.SECONDS: parse_duration,
    Unit.COUNT: lambda value: value,
    Unit.NUMBER: lambda value: value,
    Unit.FILE: lambda value: value,
}
_FORMAT: Final[dict[Unit, Callable[[Any], str]]] = {
    Unit.SHARE: format_share,
    Unit.BYTES: format_size,
    Unit.SECONDS: format_duration,
    Unit.COUNT: str,
    Unit.NUMBER: format_number,
    Unit.FILE: str,
}


def written(knob: Knob, value: Value) -> str:
    """Return a tunable's value as the configuration states it: with its unit, or ``auto``."""
    return AUTO if value is None else _FORMAT[knob.unit](value)


def parsed(knob: Knob, text: str) -> Value:
    """Return the value of a tunable from text; raises ConfigError for an invalid one."""
    if knob.default is None and text == AUTO:
        return None
    value: Value = text
    try:
        if knob.unit is not Unit.FILE:
            value = float(str(_PARSE[knob.unit](text)))
    except ValueError:
        raise ConfigError(f"{knob.key}: {text!r} is not a valid value: {limits(knob)}") from None
    if problem := knob.wrong(value):
        raise ConfigError(f"{knob.key} must be {problem}, not {text}")
    return knob.taken(value)


def limits(knob: Knob) -> str:
    """Return the valid values of a tunable as text; empty if any value is valid."""
    if knob.unit is Unit.FILE:
        return f"an absolute path or {AUTO}"
    least, span = written(knob, knob.taken(knob.least)), ""
    if not math.isinf(knob.most):
        span = f"{least} to {written(knob, knob.taken(knob.most))}"
    elif knob.least > 0:
        span = f"at least {least}"
    automatic = AUTO if knob.default is None else ""
    return " or ".join(filter(None, (span, automatic)))


def searched(knob: Knob) -> str:
    """Return the range that ``hmd tune`` searches as text; ``-`` if it does not search it."""
    if knob.search is None:
        return "-"
    low, high = knob.search.low, knob.search.high
    if knob.unit is Unit.SECONDS:
        return f"{low:g} to {high:g} ticks"
    return f"{written(knob, knob.taken(low))} to {written(knob, knob.taken(high))}"


def _file(given: object) -> object:
    if given not in (None, AUTO) and not (isinstance(given, str) and given.startswith("/")):
        raise ValueError("write an absolute path, or auto")
    return None if given == AUTO else given


def _annotation(knob: Knob) -> Any:
    if knob.unit is Unit.FILE:
        return Annotated[
            str | None,
            Field(description=knob.effect),
            BeforeValidator(_file),
            PlainSerializer(lambda value: written(knob, value), return_type=str),
            WithJsonSchema({"type": _AUTO_TYPES[knob.unit], "examples": [AUTO]}),
        ]
    bounds: dict[str, Any] = {"ge": knob.least, "description": knob.effect}
    if not math.isinf(knob.most):
        bounds["le"] = knob.most
    if knob.default is not None:
        return Annotated[_KINDS[knob.unit], Field(**bounds)]
    parse = _PARSE[knob.unit]
    return Annotated[
        float | None,
        Field(**bounds),
        BeforeValidator(lambda given: None if given in (None, AUTO) else parse(given)),
        PlainSerializer(lambda value: written(knob, value), return_type=str),
        WithJsonSchema({"type": _AUTO_TYPES[knob.unit], "examples": [AUTO]}),
    ]


def _section(about: About) -> Any:
    fields: dict[str, Any] = {k.key: (_annotation(k), k.default) for k in about.knobs}
    name = "".join(part.title() for part in about.name.split("-"))
    return create_model(f"{name}Section", __base__=ConfigSection, __doc__=about.does, **fields)


def _pageout(given: object) -> object:
    return None if given in (None, NEVER) else parse_duration(given)


class _Decide(ConfigSection):
    """The policy, and the settings of each policy under its name."""

    policy: str = registry.DEFAULT
    """Name of the policy, see "hmd policy list"."""
    guard: Annotated[
        bool | None,
        BeforeValidator(lambda given: None if given == AUTO else given),
        PlainSerializer(lambda on: AUTO if on is None else on),
        WithJsonSchema({"type": ["string", "boolean", "null"], "examples": [AUTO, "true"]}),
    ] = None
    """Whether moves are made only on credit that earlier moves have earned, by samples taken after
    them: true, false, or auto, which is true for the policies histogram and learned. Where moves do
    not pay, hmd continues with the policy benefit, then with no moves, and tries again later. No
    effect where a target has fast_min or fast_max."""
    pageout: Annotated[
        float | None,
        Field(ge=1.0),
        BeforeValidator(_pageout),
        PlainSerializer(
            lambda idle_s: NEVER if idle_s is None else format_duration(idle_s), return_type=str
        ),
        WithJsonSchema({"type": ["string", "null"], "examples": [NEVER, "10min"]}),
    ] = None
    """Time after which pages of the slowest tier that were not sampled are paged out to swap, zram
    or their files; or never. Page-out begins when samples suffice to distinguish idle pages from
    rarely used ones, which takes minutes."""

    def policy_settings(self) -> dict[str, object]:
        """Return the settings of the chosen policy, by field of its dataclass."""
        section = getattr(self, self.policy, None)
        knobs = registry.about(self.policy).knobs
        return {knob.name: getattr(section, knob.key) for knob in knobs}


def _decide_section() -> Any:
    sections: dict[str, Any] = {
        "policy": (
            Literal[registry.names()],
            Field(registry.DEFAULT, description="Policy that plans the moves."),
        )
    }
    for name in registry.names():
        if registry.about(name).knobs:
            section = _section(registry.about(name))
            sections[name] = (section, section())
    return create_model("DecideSection", __base__=_Decide, **sections)


if TYPE_CHECKING:
    DecideSection = _Decide
else:
    DecideSection = _decide_section()


def example(name: str) -> str:
    """Return a policy's section with each tunable at its default and its effect above it.

    Indented as under ``decide:``; empty for a policy without tunables.
    """
    return "".join(f"{line}\n" for line in _example_lines(registry.about(name)))


def fragment(name: str, values: Mapping[str, Value]) -> str:
    """Return YAML that selects a policy with these settings, given by field name."""
    knobs = [knob for knob in registry.about(name).knobs if knob.name in values]
    section = [f"  {name}:\n"] if knobs else []
    lines = [f"    {knob.key}: {written(knob, values[knob.name])}\n" for knob in knobs]
    return "".join([f"decide:\n  policy: {name}\n", *section, *lines])


def decide_example() -> str:
    """Return the whole ``decide:`` section of the annotated example."""
    choices = [
        f"  # {line}\n"
        for name in registry.names()
        for line in wrap(f"{name}: {registry.about(name).does}", 94, subsequent_indent="  ")
    ]
    sections = [example(name) for name in registry.names()]
    policy = f"  policy: {registry.DEFAULT}\n"
    does = effects(_Decide)
    effect, guards = (" ".join(does[key].split()) for key in ("pageout", "guard"))
    guard = [*(f"  # {line}\n" for line in wrap(guards, 94)), f"  guard: {AUTO}\n"]
    pageout = [*(f"  # {line}\n" for line in wrap(effect, 94)), f"  pageout: {NEVER}\n"]
    return "".join(["decide:\n", *choices, policy, *guard, *pageout, *sections])


def _example_lines(about: About) -> Iterator[str]:
    knobs = about.knobs
    if knobs:
        yield f"  {about.name}:"
    for knob in knobs:
        span = limits(knob)
        for line in wrap(f"{knob.effect} ({span})" if span else knob.effect, 92):
            yield f"    # {line}"
        yield f"    {knob.key}: {written(knob, knob.default)}"
