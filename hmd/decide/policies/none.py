"""The policy that moves nothing: the baseline of comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView


@dataclass(frozen=True, slots=True)
class NoneSettings:
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


ABOUT = About(
    name=NonePolicy.name,
    does="Moves nothing; hmd samples and reports.",
    use="To watch first, and to compare with.",
    settings=NoneSettings,
    make=NonePolicy,
)
