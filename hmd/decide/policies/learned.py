"""The learned policy: a trained network predicts each page's accesses, and prices decide.

Takes the page view, gives a plan. A small network, shared by all pages, predicts from scale-free
features (:mod:`hmd.decide.learned_features`) how many accesses per second each page will have in
the next ticks. A promotion saves them, times the difference in latency, divided by the memory-level
parallelism of the process; it costs its own move and, where the tier is full, the loss and the move
of the page that leaves. So the network never decides: a wrong prediction costs at most the moves
that it pays for. The weights come from a file (:mod:`hmd.decide.learned_weights`). About 150 ns per
page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.learned_features import VERSION, LearnedFeatures
from hmd.decide.learned_weights import SHIPPED, LearnedWeights
from hmd.decide.loaded_latency import loaded_latency_ns
from hmd.decide.node_arrays import nodes_of
from hmd.decide.parallelism import parallelism
from hmd.decide.paying_pairs import Side, paying_pairs
from hmd.decide.plan import MachineView, Plan
from hmd.decide.tunables import About, Search, Unit, headroom_bytes, headroom_fraction, knob
from hmd.decide.wanted import Wanted
from hmd.heat.geometry import MOVE_WEAR

if TYPE_CHECKING:
    from hmd.decide.node_arrays import Nodes
    from hmd.heat.page_view import PageView

# The network's answer is taken as far as this, in octaves above or below the base rate.
_OCTAVES_MOST: Final = 8.0
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
        5000.0,
        "Cost of moving 4 KiB to its program, in nanoseconds: a higher cost means fewer moves.",
        least=1,
        search=Search(200, 50_000, log=True),
    )
    margin: float = knob(
        2.0,
        "How many times the cost of its moves a promotion must be predicted to save.",
        least=0.1,
        most=100,
        search=Search(0.5, 8, log=True),
    )


class Learned:
    """Makes the moves that pay by a network's predictions."""

    name = "learned"

    def __init__(self, settings: LearnedSettings | None = None) -> None:
        """Read the weights; raises ConfigError for a file that is not usable."""
        from hmd.decide.feature_kernel import FEATURES

        self.settings = settings or LearnedSettings()
        path = Path(self.settings.weights) if self.settings.weights else SHIPPED
        self.weights = LearnedWeights.read(path, FEATURES, VERSION)
        self._shape, self._weight = self.weights.packed()
        self._features = LearnedFeatures()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        from hmd.decide.plan_builder import build_plan

        settings = self.settings
        nodes = nodes_of(machine, settings.headroom_fraction, settings.headroom_bytes)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        # Also without a budget: features learn from every tick.
        rate = self.predicted(pages, machine, nodes)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        wanted = self._wanted(pages, machine, nodes, rate)
        return build_plan(pages, nodes, wanted, machine.budget_bytes)

    def predicted(
        self, pages: PageView, machine: MachineView, nodes: Nodes
    ) -> npt.NDArray[np.float32]:
        """Return each row's accesses per second and page in the next ticks, shape ``(n,)``."""
        from hmd.decide.feature_kernel import FEATURES
        from hmd.decide.learned_network import run_layers

        features = self._features.rows(pages, machine, nodes)
        octaves = np.empty(len(pages), np.float32)
        block = np.empty((len(FEATURES), min(_ROWS_AT_ONCE, len(pages))), np.float32)
        for begin in range(0, len(pages), _ROWS_AT_ONCE):
            part = octaves[begin : begin + _ROWS_AT_ONCE]
            if len(part) < block.shape[1]:
                block = np.empty((len(FEATURES), len(part)), np.float32)
            features.fill(begin, block)
            run_layers(block, self._shape, self._weight, part)
        np.clip(octaves, -_OCTAVES_MOST, _OCTAVES_MOST, out=octaves)
        rate: npt.NDArray[np.float32] = features.base * np.exp2(octaves)
        return rate

    def explain(
        self, pages: PageView, machine: MachineView, rows: npt.NDArray[np.int64]
    ) -> list[dict[str, float]]:
        """Return each row's prediction, in accesses per second and page, and its features."""
        from hmd.decide.feature_kernel import FEATURES

        nodes = nodes_of(machine, self.settings.headroom_fraction, self.settings.headroom_bytes)
        rate = self.predicted(pages, machine, nodes)
        columns = self._features.of(pages, machine, nodes).columns
        return [
            {
                "predicted_rate": float(rate[row]),
                **{name: float(columns[at, row]) for at, name in enumerate(FEATURES)},
            }
            for row in rows.tolist()
        ]

    def _wanted(
        self, pages: PageView, machine: MachineView, nodes: Nodes, rate: npt.NDArray[np.float32]
    ) -> Wanted:
        """Return the tiers on which pages pay."""
        from hmd.decide.price_kernel import MovePrices, PricedMovers, PricedRows, price_moves

        horizon_s = self.weights.header.horizon_ticks * machine.tick_s
        weight_s = (horizon_s / parallelism(pages, machine)).astype(np.float32)
        latency = loaded_latency_ns(pages, machine.topology, nodes)
        served = rate * weight_s[pages.process]
        # Wear of one move doubles the cost of the next.
        worn = np.exp2(np.arange(256) / MOVE_WEAR)
        prices = MovePrices(latency, self.settings.move_ns * self.settings.margin * worn)
        tier, size, rows = pages.tier.copy(), pages.size, len(pages)
        priced = PricedRows(tier, pages.tier, pages.wear, pages.rate, served)
        movers = PricedMovers(
            np.empty(rows, np.int64), np.empty(rows), np.empty(rows, np.int64), np.empty(rows)
        )
        for fast in range(nodes.tiers - 1):
            come, leave = price_moves(priced, prices, fast, movers)
            coming, leaving = movers.coming[:come], movers.leaving[:leave]
            came, gone = paying_pairs(
                Side(movers.gain[:come], size[coming].astype(np.int64)),
                Side(movers.loss[:leave], size[leaving].astype(np.int64)),
                int(nodes.by_tier(nodes.room)[fast]),
            )
            tier[coming[came]] = fast
            tier[leaving[gone]] = fast + 1
        return Wanted(tier, served)


ABOUT = About(
    name=Learned.name,
    does="Makes the moves that pay by what a trained network predicts of each page.",
    use="Programs with phases that return; see the model card for what it was trained on.",
    settings=LearnedSettings,
    make=Learned,
    kernels=(
        "hmd.decide.feature_kernel",
        "hmd.decide.learned_network",
        "hmd.decide.price_kernel",
    ),
    guard=True,
)
