"""A mapping of settings in the file: what all sections have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class ConfigSection(BaseModel):
    """A mapping of settings; an empty one in the file means its defaults.

    Frozen, refuses unknown keys and converts nothing silently.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data
