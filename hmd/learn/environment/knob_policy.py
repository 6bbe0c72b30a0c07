"""A rule with knobs that are set in each tick.

Takes pages and machine, gives the plan of :class:`hmd.decide.policies.benefit.Benefit` with the
knobs as its settings. In that rule a longer horizon is the same as cheaper moves: both scale what
moves save compared with what they cost. The knobs of a tick follow from the figures of the tick
before, in training as in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.policies.benefit import Benefit, BenefitSettings
from hmd.learn.environment.knob_signals import SIGNALS, Figures, KnobSignals
from hmd.learn.environment.knobs import NEUTRAL, Knobs
from hmd.learn.training_rows import HEADROOM_BYTES

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

Chooser: TypeAlias = Callable[[Figures], Sequence[float]]
"""Takes the figures of a tick, gives the places of the knobs in the next."""


class KnobPolicy:
    """Plans as the benefit policy does, with knobs; ``choose`` sets them, None: the caller does.

    ``place`` is where the knobs are in the next tick, ``signals`` are the figures of the last.
    """

    name = "knobs"

    def __init__(self, choose: Chooser | None = None) -> None:
        self._choose = choose
        self._settings = BenefitSettings(headroom_fraction=0.0, headroom_bytes=HEADROOM_BYTES)
        self._rule = Benefit(self._settings)
        self._figures = KnobSignals()
        self.place: Sequence[float] = NEUTRAL
        self.signals: Figures = np.zeros(len(SIGNALS), np.float32)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the rule's moves with the knobs of this tick."""
        settings, knobs = self._settings, Knobs.at(self.place)
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        self._rule.settings = replace(
            settings, confidence=knobs.confidence, move_ns=settings.move_ns / knobs.horizon
        )
        budget = min(machine.budget_bytes, int(knobs.volume * nodes.fast_bytes))
        plan = self._rule.plan(pages, replace(machine, budget_bytes=budget))
        self.signals = self._figures.of(pages, machine, nodes, plan, self.place)
        if self._choose is not None:
            self.place = self._choose(self.signals)
        return plan
