# SPDX-License-Identifier: MIT
"""The configuration as a table: every setting, what it takes, its default, its effect.

Takes the schema (:mod:`hmd.config.schema`) and the settings of the policies; the manual page, the
reference and the example's section ``decide:`` are generated from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from hmd.base.config_section import ConfigSection
from hmd.base.quantities import format_like
from hmd.config.decide import NEVER, DecideSection, example
from hmd.config.schema import Config, TargetSection
from hmd.policy import registry
from hmd.policy.settings import PolicyInfo

_TYPES = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}
_PLURALS = {
    "whole number": "whole numbers",
    "text": "texts",
    "list of whole numbers": "lists of whole numbers",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
_BOUND_OF = {
    Ge: ("ge", "minimum"),
    Gt: ("gt", "exclusiveMinimum"),
    Le: ("le", "maximum"),
    Lt: ("lt", "exclusiveMaximum"),
}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting: its key within its section, and each fact about it as text.

    ``default`` and ``limits`` are empty if there are none.
    """

    key: str
    kind: str
    default: str
    limits: str
    effect: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A section of the file: its path (``decide.age``; empty for the top), and its settings."""

    path: str
    effect: str
    settings: tuple[SettingRow, ...]


def topics() -> tuple[Topic, ...]:
    """Return every section, in the order of the file; those of policies come after ``decide``."""
    return tuple(_topics())


def _topics() -> Iterator[Topic]:
    yield _topic("", Config, Config())
    for key, field in Config.model_fields.items():
        if key == "targets":
            # A target needs a name and a selector; the table shows no default.
            yield _topic("targets", TargetSection, TargetSection(name="any", pid=(1,)))
        elif isinstance(field.default, ConfigSection):
            yield _topic(key, type(field.default), field.default)
    for name in registry.names():
        if registry.info(name).settings:
            yield _policy(registry.info(name))


def _topic(path: str, section: type[ConfigSection], defaults: ConfigSection) -> Topic:
    properties = section.model_json_schema()["properties"]
    given = defaults.model_dump(mode="json")
    settings = (
        _setting(key, field, properties[key], given.get(key))
        for key, field in section.model_fields.items()
        if not (isinstance(field.default, ConfigSection) or field.exclude)
    )
    return Topic(path, _line(_documented(section)), tuple(settings))


def _documented(section: type[ConfigSection]) -> str:
    """Return the docstring of a section; a generated section has that of its base class."""
    return next(kind.__doc__ for kind in section.__mro__ if kind.__doc__)


def _setting(key: str, field: FieldInfo, schema: dict[str, Any], default: object) -> SettingRow:
    kind = _kind(schema)
    shown = "" if field.is_required() or key == "pid" else _written(default)
    return SettingRow(key, kind, shown, _limits(field, schema), _line(field.description or ""))


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if examples := schema.get("examples"):
        return "as in " + " or ".join(examples)
    if "anyOf" in schema:  # null: what may be left out
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if schema["type"] == "array":
        items = schema["items"]
        known = "$ref" not in items and _PLURALS.get(_kind(items))
        return f"list of {known}" if known else "list"
    return _TYPES[schema["type"]]


def _limits(field: FieldInfo, schema: dict[str, Any]) -> str:
    example = (schema.get("examples") or [""])[-1]
    bounds = {**schema, **schema.get("anyOf", [{}])[0]}
    for bound in field.metadata:  # of quantities, which are text in the JSON Schema
        for kind, (attribute, name) in _BOUND_OF.items():
            if isinstance(bound, kind):
                bounds[name] = getattr(bound, attribute)
    return ", ".join(
        f"{words} {_bound(bounds[name], example)}"
        for name, words in _BOUNDS.items()
        if name in bounds
    )


def _bound(value: float, example: str) -> str:
    return format_like(value, example) if example and value else str(value)


def _written(default: object) -> str:
    """Return a default as the file states it; empty if it is unset."""
    if default is None or default == []:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _policy(policy: PolicyInfo) -> Topic:
    rows = (
        SettingRow(s.name, s.unit.takes, s.format(s.default), s.limits, s.description)
        for s in policy.settings
    )
    return Topic(f"decide.{policy.name}", policy.summary, tuple(rows))


def decide_example() -> str:
    """Return the section ``decide:`` of the annotated example, config/hmd.yaml."""
    choices = [
        f"  # {line}\n"
        for name in registry.names()
        for line in wrap(f"{name}: {registry.info(name).summary}", 94, subsequent_indent="  ")
    ]
    others: list[str] = []
    for name, value in (("pageout", NEVER), ("locality", "true")):
        effect = DecideSection.model_fields[name].description or ""
        others += [*(f"  # {line}\n" for line in wrap(effect, 94)), f"  {name}: {value}\n"]
    return "".join(
        [
            "decide:\n",
            *choices,
            f"  policy: {registry.DEFAULT}\n",
            *others,
            *map(example, registry.names()),
        ]
    )


def _line(text: str) -> str:
    return " ".join(text.split())
