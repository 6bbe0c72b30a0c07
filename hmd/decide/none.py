"""The policy that moves nothing: what a program does by itself, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hmd.decide.knobs import About
from hmd.decide.plan import MachineView, Plan

if TYPE_CHECKING:
    from hmd.heat.table import HeatTable


@dataclass(frozen=True, slots=True)
class Settings:
    """There is nothing to set."""


class NonePolicy:
    """Never moves a page."""

    name = "none"

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def plan(self, heat: HeatTable, machine: MachineView) -> Plan:
        """Return an empty plan."""
        del machine
        return Plan.empty(heat.processes)


ABOUT = About(
    name=NonePolicy.name,
    does="Moves nothing; hmd samples and reports.",
    use="To watch first, and to compare with.",
    settings=Settings,
    make=NonePolicy,
)
