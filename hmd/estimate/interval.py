"""How sure an estimate is: its interval of about 95 %.

Two errors add up. Samples are a draw: their share is found by drawing them anew (the Poisson
bootstrap, Chamandy et al., 2012), which costs as much as ``DRAWS`` layouts. The model is a model:
its share is what ``make bench-estimator`` measured, at most half-way between the recorded runs,
which are met exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hmd.estimate.layout import Layout
from hmd.estimate.model import Model

DRAWS = 16
MODEL_ERROR = 0.02
"""Standard error of the model half-way between the runs, as a share of the runtime."""
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A runtime and the bounds that hold it in about 19 of 20 cases, ns."""

    runtime_ns: float
    low_ns: float
    high_ns: float


def interval(model: Model, layout: Layout, seed: int = 1) -> Interval:
    """Return the estimate of a layout with its interval."""
    runtime = model.estimate(layout).runtime_ns
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(DRAWS):
        times = rng.poisson(1.0, len(model.accesses)).astype(np.float32)
        again = replace(model, accesses=model.accesses * times)
        drawn.append(replace(again, total=again.sums()).estimate(layout).runtime_ns)
    sampling = float(np.std(drawn)) if len(model.accesses) else 0.0
    slow, fast = float(model.slow_ns.sum()), float(model.fast_ns.sum())
    part = np.clip((runtime - fast) / (slow - fast), 0.0, 1.0) if slow != fast else 0.0
    modelling = MODEL_ERROR * runtime * 4 * part * (1 - part)
    half = _WIDTH * float(np.hypot(sampling, modelling))
    return Interval(runtime, runtime - half, runtime + half)
