# SPDX-License-Identifier: MIT
"""The JSON Schema of the configuration file, for editors that complete and check YAML.

Takes pydantic's schema of ``Config``, which describes validated values, and corrects it to describe
the file: defaults are written as the file has them (``1s``, not 1.0), and a section may be empty
(null in YAML).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hmd.base.config_section import ConfigSection
from hmd.config.schema import Config, TargetSection


def json_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema draft 2020-12) that every valid configuration satisfies."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "hmd.yaml"
    for section in _sections(Config()):
        name = type(section).__name__
        properties = (schema if name == "Config" else schema["$defs"][name])["properties"]
        written = section.model_dump(mode="json")
        for key, entry in properties.items():
            if "default" in entry:
                entry["default"] = written.get(key)
            if isinstance(getattr(section, key), ConfigSection) or key == "targets":
                properties[key] = _or_null(entry)
    return schema


def _sections(section: ConfigSection) -> Iterator[ConfigSection]:
    """Yield a section and those in it, at their defaults; a target with what it must have."""
    yield section
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, ConfigSection):
            yield from _sections(value)
        elif key == "targets":
            yield TargetSection(name="any", user="0")


def _or_null(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a property that may be null too; what describes it stays outside."""
    described = ("default", "description", "title")
    inside = {key: value for key, value in entry.items() if key not in described}
    outside = {key: value for key, value in entry.items() if key in described}
    return {"anyOf": [inside, {"type": "null"}]} | outside
