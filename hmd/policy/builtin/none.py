# SPDX-License-Identifier: MIT
"""The policy that moves nothing: the baseline of comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmd.policy.plan import MachineView, Plan
from hmd.policy.settings import PolicyInfo, PolicySettings

if TYPE_CHECKING:
    from hmd.heat.view import PageView


class NoneSettings(PolicySettings):
    """The settings of the policy: none."""


class NonePolicy:
    """Never moves a page."""

    name = "none"

    def __init__(self, settings: NoneSettings | None = None) -> None:
        self.settings = settings or NoneSettings()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return an empty plan."""
        del machine
        return Plan.empty(pages.processes)


POLICY = PolicyInfo(
    name=NonePolicy.name,
    summary="Moves nothing; hmd samples and reports.",
    suits="To watch first, and to compare with.",
    settings_type=NoneSettings,
    create=NonePolicy,
)
