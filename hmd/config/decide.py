# SPDX-License-Identifier: MIT
"""The ``decide:`` section: the policy, and a section per policy, which is the policy's settings.

Also writes such sections: the annotated example of a policy, and settings that a search found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    create_model,
)

from hmd.base.config_section import ConfigSection
from hmd.base.quantities import format_duration, parse_duration
from hmd.policy import registry
from hmd.policy.settings import AUTO, PolicySettings, Value

NEVER: Final = "never"
"""Value of ``pageout`` that pages no memory out."""


def _parse_idle(given: object) -> object:
    return math.inf if given == NEVER else None if given is None else parse_duration(given)


IdleTime = Annotated[
    float | None,
    Field(ge=1.0),
    BeforeValidator(_parse_idle),
    PlainSerializer(
        lambda idle_s: NEVER if idle_s == math.inf else idle_s and format_duration(idle_s),
        return_type=str | None,
    ),
    WithJsonSchema({"type": ["string", "null"], "examples": [NEVER, "10min"]}),
]
"""Seconds without a sample; infinite is written never."""


class _Decide(ConfigSection):
    """The policy, and the settings of each policy under its name."""

    policy: str = registry.DEFAULT
    guard: Annotated[
        bool | None,
        Field(description="No effect. Accepted, with a warning, until version 0.2.", exclude=True),
        BeforeValidator(lambda given: None if given == AUTO else given),
        WithJsonSchema({"type": ["string", "boolean", "null"], "deprecated": True}),
    ] = None
    pageout: IdleTime = Field(
        default=math.inf,
        description="Time after which pages of the slowest tier that were not sampled are"
        " paged out to swap, zram or their files; or never. Page-out begins when samples"
        " suffice to distinguish idle pages from rarely used ones, which takes minutes.",
    )

    locality: bool = Field(
        default=True,
        description="Whether, of several nodes of a tier, pages go to the one nearest to the CPUs"
        " that use them, and are spread over equally near ones where requests queue; with any"
        " policy but none.",
    )

    def policy_settings(self) -> PolicySettings:
        """Return the settings of the chosen policy."""
        settings: PolicySettings | None = getattr(self, self.policy, None)
        return settings or registry.info(self.policy).settings_type()


def _decide_section() -> Any:
    sections: dict[str, Any] = {
        "policy": (
            Literal[registry.names()],
            Field(registry.DEFAULT, description="Policy that plans the moves."),
        )
    }
    for name in registry.names():
        settings_type = registry.info(name).settings_type
        if settings_type.model_fields:
            sections[name] = (settings_type, settings_type())
    return create_model("DecideSection", __base__=_Decide, __doc__=_Decide.__doc__, **sections)


if TYPE_CHECKING:
    DecideSection = _Decide
else:
    DecideSection = _decide_section()


def example(name: str) -> str:
    """Return a policy's section with each setting at its default and its effect above it.

    Indented as under ``decide:``; empty for a policy without settings.
    """
    settings = registry.info(name).settings
    lines = [f"  {name}:"] if settings else []
    for each in settings:
        limits = f" ({each.limits})" if each.limits else ""
        lines += [f"    # {line}" for line in wrap(each.description + limits, 92)]
        lines.append(f"    {each.name}: {each.format(each.default)}")
    return "".join(f"{line}\n" for line in lines)


def fragment(name: str, values: Mapping[str, Value]) -> str:
    """Return YAML that selects a policy with these settings, given by name."""
    settings = [each for each in registry.info(name).settings if each.name in values]
    lines = [f"    {each.name}: {each.format(values[each.name])}\n" for each in settings]
    section = [f"  {name}:\n"] if settings else []
    return "".join([f"decide:\n  policy: {name}\n", *section, *lines])
