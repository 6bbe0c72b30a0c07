"""Base class of all sections of the configuration."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class ConfigSection(BaseModel):
    """A section of settings; an empty one in the file means its defaults.

    Frozen; unknown keys are errors, and no value is converted silently.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data
