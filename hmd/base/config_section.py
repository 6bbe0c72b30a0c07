# SPDX-License-Identifier: MIT
"""Sections of settings: the pydantic base class, and what is wrong with a value in one phrase."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from hmd.base.quantities import format_like
from hmd.base.yaml_document import shown

UNITS_REQUIRED = {"units": "required"}
"""Context of the validation of a file: numbers other than 0 need their unit."""

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text (quote it)",
    "tuple_type": "a list",
    "model_type": "settings, as in 'key: value'",
    "model_attributes_type": "settings, as in 'key: value'",
    "greater_than": "more than {}",
    "greater_than_equal": "at least {}",
    "less_than": "less than {}",
    "less_than_equal": "at most {}",
    "string_too_short": "some text",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-', 63 at most",
}
"""By type of pydantic's errors; braces stand for the limit."""


class ConfigSection(BaseModel):
    """A section of settings; an empty one in the file means its defaults.

    Frozen; unknown keys are errors, and no value is converted silently.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data


def describe_error(error: Any) -> str:
    """Return what one of pydantic's errors says, as in ``expected at least 10ms, not '1ms'``."""
    kind, given, context = error["type"], shown(error["input"]), error.get("ctx", {})
    if kind == "literal_error":
        return f"expected {context['expected']}, not {given}"
    if kind == "value_error":
        problem = str(context["error"])
        return problem if isinstance(error["input"], dict) else f"{problem}, not {given}"
    if kind not in _EXPECTED:
        return str(error["msg"])
    limits = (context[name] for name in ("gt", "ge", "lt", "le") if name in context)
    limit = next((format_like(limit, error["input"]) for limit in limits), "")
    return f"expected {_EXPECTED[kind].format(limit)}, not {given}"
