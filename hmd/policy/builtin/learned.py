# SPDX-License-Identifier: MIT
"""The learned policy: a trained network corrects each page's rate, and the rule decides.

Takes the page view, gives a plan. A small network, shared by all pages, predicts from scale-free
features (:mod:`hmd.policy.learned.features`) how many accesses each page will have in the next
ticks: its answer is the base-2 logarithm of a factor on the rate that the policy ``benefit`` starts
from. It is taken as far as answers have proved right on this very program
(:mod:`hmd.policy.learned.trust`), and rates keep their sum per process. The decision is that
of ``benefit`` (:mod:`hmd.policy.saving`), with the same prices, persistence of heat, long run and
balance of bandwidth. So a network whose answer is 0 is ``benefit``.
The weights come from a file (:mod:`hmd.policy.learned.network`). About 160 ns per page.

Where samples count no accesses, it plans as :mod:`hmd.policy.builtin.histogram` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hmd.policy.builtin.benefit import BenefitSettings
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.learned.features import VERSION, LearnedFeatures
from hmd.policy.learned.network import SHIPPED, LearnedWeights
from hmd.policy.learned.trust import NetworkTrust
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView, Plan
from hmd.policy.saving import Forecast, MoveTerms, PayingMoves
from hmd.policy.settings import FILE, PolicyInfo

if TYPE_CHECKING:
    from hmd.heat.view import PageView

# Their features stay in the core's second cache until the network has read them. No power of two:
# the columns would share the lines of the first.
_ROWS_AT_ONCE: Final = 4000


class LearnedSettings(BenefitSettings):
    """How the learned policy decides."""

    weights: Annotated[
        str | None,
        Field(
            description="File with the trained network, as hmd train writes it. Default (auto):"
            " the one that hmd is installed with."
        ),
        FILE.or_auto,
    ] = None


class Learned:
    """Makes the moves that pay by a network's predictions."""

    name = "learned"

    def __init__(self, settings: LearnedSettings | None = None) -> None:
        """Read the weights; raises ConfigError for a file that is not usable."""
        from hmd.policy.learned.features import FEATURES

        self.settings = settings or LearnedSettings()
        path = Path(self.settings.weights) if self.settings.weights else SHIPPED
        self.weights = LearnedWeights.read(path, FEATURES, VERSION)
        self._shape, self._weight = self.weights.packed()
        self._features, self._trust = LearnedFeatures(), NetworkTrust()
        self._moves = PayingMoves()
        kept = HistogramSettings(
            headroom=self.settings.headroom, headroom_min=self.settings.headroom_min
        )
        self._ranking = Histogram(kept)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        if not machine.counted:
            return self._ranking.plan(pages, machine)
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        # Also without a budget: features learn from every tick.
        rate = self.predicted(pages)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        terms = MoveTerms(settings.move_ns, settings.confidence, settings.samples_min)
        forecast = Forecast(rate, self.weights.header.horizon_ticks)
        return self._moves.plan(pages, machine, nodes, terms, forecast)

    def predicted(self, pages: PageView) -> npt.NDArray[np.float32]:
        """Return each row's accesses per second and page in the next ticks, shape ``(n,)``."""
        from hmd.policy.learned.features import FEATURES
        from hmd.policy.learned.network import run_layers

        features = self._features.rows(pages)
        octaves = np.empty(len(pages), np.float32)
        block = np.empty((len(FEATURES), min(_ROWS_AT_ONCE, len(pages))), np.float32)
        for begin in range(0, len(pages), _ROWS_AT_ONCE):
            part = octaves[begin : begin + _ROWS_AT_ONCE]
            if len(part) < block.shape[1]:
                block = np.empty((len(FEATURES), len(part)), np.float32)
            features.fill(begin, block)
            run_layers(block, self._shape, self._weight, part)
        return self._trust.corrected(pages, octaves)

    def explain(
        self, pages: PageView, machine: MachineView, rows: npt.NDArray[np.int64]
    ) -> list[dict[str, float]]:
        """Return each row's prediction, in accesses per second and page, and its features.

        ``trust`` is the factor at which the network's answers are taken, ``long_run_weight`` that
        of the mean over many ticks.
        """
        from hmd.policy.learned.features import FEATURES

        del machine
        rate = self.predicted(pages)
        columns = self._features.rows(pages).columns()
        return [
            {
                "predicted_rate": float(rate[row]),
                "trust": self._trust.factor(pages.processes[pages.process[row]]),
                "long_run_weight": self._moves.long_run.weight(pages.processes[pages.process[row]]),
                **{name: float(columns[at, row]) for at, name in enumerate(FEATURES)},
            }
            for row in rows.tolist()
        ]


POLICY = PolicyInfo(
    name=Learned.name,
    summary="Makes the moves that pay by what a trained network predicts of each page.",
    suits="Programs with phases that return; see the model card for what it was trained on.",
    settings_type=LearnedSettings,
    create=Learned,
    kernels=(
        "hmd.policy.saving",
        "hmd.policy.builtin.histogram",
        "hmd.policy.learned.features",
        "hmd.policy.learned.network",
        "hmd.policy.long_run",
        "hmd.policy.learned.trust",
    ),
)
