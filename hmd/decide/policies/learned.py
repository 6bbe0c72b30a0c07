"""The learned policy: a trained network corrects each page's rate, and the rule decides.

Takes the page view, gives a plan. A small network, shared by all pages, predicts from scale-free
features (:mod:`hmd.decide.learned.page_features`) how many accesses each page will have in the next
ticks: its answer is the base-2 logarithm of a factor on the rate that the policy ``benefit`` starts
from. It is taken as far as answers have proved right on this very program
(:mod:`hmd.decide.learned.network_trust`), and rates keep their sum per process. They are mixed with
what pages had over many ticks, as far as that proves right, too
(:mod:`hmd.decide.learned.long_memory`): phases that return are more than the network's few ticks
ahead. The decision is that of ``benefit`` (:mod:`hmd.decide.cost_benefit.paying_moves`), with the
same prices, persistence of heat and balance of bandwidth. So a network whose answer is 0, without
the long memory, is ``benefit``, and a wrong prediction costs at most the moves that it pays for.
The weights come from a file (:mod:`hmd.decide.learned.weights`). About 160 ns per page.

Where samples count no accesses, it plans as :mod:`hmd.decide.policies.histogram` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.cost_benefit.paying_moves import PayingMoves, Prediction
from hmd.decide.cost_benefit.savings_ledger import MoveTerms
from hmd.decide.learned.long_memory import LongMemory
from hmd.decide.learned.network_trust import NetworkTrust
from hmd.decide.learned.page_features import VERSION, LearnedFeatures
from hmd.decide.learned.weights import SHIPPED, LearnedWeights
from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import MachineView, Plan
from hmd.decide.policies.histogram import Histogram, HistogramSettings
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob

if TYPE_CHECKING:
    from hmd.heat.view.page_view import PageView

# Their features stay in the core's second cache until the network has read them. No power of two:
# the columns would share the lines of the first.
_ROWS_AT_ONCE: Final = 4000


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """How the learned policy decides."""

    headroom_fraction: float | None = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    weights: str | None = knob(
        None,
        "File with the trained network, as hmd train writes it. Default (auto): the one that hmd"
        " is installed with.",
        Unit.FILE,
    )
    move_ns: float = knob(
        3000.0,
        "Cost of moving 4 KiB to its program, in nanoseconds: a higher cost means fewer moves.",
        least=1,
        search=Search(200, 50_000, log=True),
    )
    confidence: float = knob(
        0.6,
        "How certain a gain must be, in standard deviations of each page's heat.",
        most=10,
        search=Search(0, 4),
    )
    samples_min: float = knob(
        1.0,
        "Samples that a page needs before it is promoted.",
        most=1000,
        search=Search(1, 32, log=True),
    )


class Learned:
    """Makes the moves that pay by a network's predictions."""

    name = "learned"

    def __init__(self, settings: LearnedSettings | None = None) -> None:
        """Read the weights; raises ConfigError for a file that is not usable."""
        from hmd.decide.learned.feature_kernel import FEATURES

        self.settings = settings or LearnedSettings()
        path = Path(self.settings.weights) if self.settings.weights else SHIPPED
        self.weights = LearnedWeights.read(path, FEATURES, VERSION)
        self._shape, self._weight = self.weights.packed()
        self._features, self._trust = LearnedFeatures(), NetworkTrust()
        self._long, self._moves = LongMemory(), PayingMoves()
        kept = HistogramSettings(self.settings.headroom_fraction, self.settings.headroom_bytes)
        self._ranking = Histogram(kept)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        if not machine.counted:
            return self._ranking.plan(pages, machine)
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        # Also without a budget: features learn from every tick.
        rate = self.predicted(pages)
        long = self._long.rates(pages, rate)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        terms = MoveTerms(settings.move_ns, settings.confidence, settings.samples_min)
        prediction = Prediction(
            long.mixed(pages, rate),
            self.weights.header.horizon_ticks,
            long.mixed(pages, pages.rate),
            long.mixed_support(pages),
        )
        return self._moves.plan(pages, machine, nodes, terms, prediction)

    def predicted(self, pages: PageView) -> npt.NDArray[np.float32]:
        """Return each row's accesses per second and page in the next ticks, shape ``(n,)``."""
        from hmd.decide.learned.feature_kernel import FEATURES
        from hmd.decide.learned.network import run_layers

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

        ``trust`` is the factor at which the network's answers are taken, ``long_run_rate`` the mean
        over many ticks, and ``long_run_weight`` the part of it in what decides.
        """
        from hmd.decide.learned.feature_kernel import FEATURES

        del machine
        rate = self.predicted(pages)
        long = self._long.rates(pages, rate)
        columns = self._features.rows(pages).columns()
        return [
            {
                "predicted_rate": float(rate[row]),
                "trust": self._trust.factor(pages.processes[pages.process[row]]),
                "long_run_rate": float(long.rate[row]),
                "long_run_weight": float(long.weight[pages.process[row]]),
                **{name: float(columns[at, row]) for at, name in enumerate(FEATURES)},
            }
            for row in rows.tolist()
        ]


ABOUT = About(
    name=Learned.name,
    does="Makes the moves that pay by what a trained network predicts of each page.",
    use="Programs with phases that return; see the model card for what it was trained on.",
    settings=LearnedSettings,
    make=Learned,
    kernels=(
        "hmd.decide.cost_benefit.move_values",
        "hmd.decide.planning.hottest_fit",
        "hmd.decide.learned.feature_kernel",
        "hmd.decide.learned.network",
        "hmd.decide.learned.long_kernel",
        "hmd.decide.learned.trust_kernel",
    ),
    guard=True,
)
