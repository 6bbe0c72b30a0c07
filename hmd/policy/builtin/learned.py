# SPDX-License-Identifier: MIT
"""The learned policy: a small network corrects each page's rate, and the rule ``benefit`` decides.

The network (:mod:`hmd.policy.learned.network`), shared by all pages, predicts from two scale-free
features how many accesses each page will have in the next ticks, as a factor on the rate that
``benefit`` decides with. A quarter of its logarithm counts, half an octave at most, and rates keep
their sum per process: the network says which pages are accessed, not how much. So a network whose
answer is 0 is ``benefit``, and one that is wrong stays near it. About 100 ns per page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.learned.network import (
    FEATURES,
    SHIPPED,
    LearnedWeights,
    feature_columns,
    process_sums,
)
from hmd.policy.settings import FILE, PolicyInfo

if TYPE_CHECKING:
    from hmd.heat.view import PageView
    from hmd.policy.plan import MachineView

ANSWER_SHARE: Final = np.float32(0.25)
"""The part of the network's answer that counts: more is slower on programs it has not seen."""

_MIN_TICKS: Final = 1e-9

Rates = npt.NDArray[np.float32]


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


class Learned(Benefit):
    """Makes the moves that pay by a network's predictions."""

    name = "learned"

    def __init__(self, settings: LearnedSettings | None = None) -> None:
        """Read the weights; raises ConfigError for a file that is not usable."""
        settings = settings or LearnedSettings()
        super().__init__(settings)
        self.weights = LearnedWeights.read(Path(settings.weights) if settings.weights else SHIPPED)

    def predict(self, pages: PageView, rate: Rates) -> Rates:
        """Return each row's accesses per second and base page in the next ticks, shape ``(n,)``.

        ``rate`` is what ``benefit`` would decide with. The next ticks are ``horizon_ticks`` of the
        weights.
        """
        octaves = self.weights.octaves(feature_columns(pages, rate))
        near = rate * np.exp2(ANSWER_SHARE * octaves)
        before, after = process_sums(pages, rate), process_sums(pages, near)
        scale = np.divide(before, after, out=np.ones(len(after)), where=after > 0)
        found: Rates = near * scale.astype(np.float32)[pages.process]
        return found

    def expected_rates(
        self, pages: PageView, rate: Rates, horizon_ticks: npt.NDArray[np.float64]
    ) -> Rates:
        """Return each row's mean rate over a horizon: beyond the next ticks, it has ``rate``."""
        near_ticks = self.weights.header.horizon_ticks
        part = np.minimum(near_ticks / np.maximum(horizon_ticks, _MIN_TICKS), 1.0)
        near = self.predict(pages, rate)
        found: Rates = rate + part.astype(np.float32)[pages.process] * (near - rate)
        return found

    def explain(
        self, pages: PageView, machine: MachineView, rows: npt.NDArray[np.int64]
    ) -> list[dict[str, float]]:
        """Return each row's prediction, in accesses per second and page, and its features.

        ``long_run_weight`` is that of the mean over many ticks.
        """
        del machine
        rate = self.long_run.mix_rates(pages)
        near, columns = self.predict(pages, rate), feature_columns(pages, rate)
        return [
            {
                "predicted_rate": float(near[row]),
                "long_run_weight": self.long_run.weight(pages.processes[pages.process[row]]),
                **{name: float(columns[at, row]) for at, name in enumerate(FEATURES)},
            }
            for row in rows.tolist()
        ]


POLICY = PolicyInfo(
    name=Learned.name,
    summary="Makes the moves that pay by what a trained network predicts of each page.",
    suits="Comparison and research: in the mean it is as fast as benefit.",
    settings_type=LearnedSettings,
    create=Learned,
    kernels=("hmd.policy.saving", "hmd.policy.long_run", "hmd.policy.builtin.histogram"),
)
