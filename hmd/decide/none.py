"""The policy that moves nothing: what a program does by itself, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About

if TYPE_CHECKING:
    from hmd.heat.heat_table import HeatTable


@dataclass(frozen=True, slots=True)
class NoneSettings:
    """There is nothing to set."""


class NonePolicy:
    """Never moves a page."""

    name = "none"

    def __init__(self, settings: NoneSettings | None = None) -> None:
        self.settings = settings or NoneSettings()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return an empty plan."""
        del machine
        return Plan.empty(heat.processes)


ABOUT = About(
    name=NonePolicy.name,
    does="Moves nothing; hmd samples and reports.",
    use="To watch first, and to compare with.",
    settings=NoneSettings,
    make=NonePolicy,
)
