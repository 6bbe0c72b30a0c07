"""How sure an estimate is: its interval of about 90 %.

Two errors add up. Samples are a draw: their share is found by drawing them anew (the Poisson
bootstrap, Chamandy et al., 2012), which costs as much as ``DRAWS`` layouts. The model is a model:
its share is set by what it was on the programs that it was judged by (of their layouts, 92 in 100
lay within), most half-way between the recorded runs, which are met exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hmd.estimate.layout import Layout
from hmd.estimate.model import Model

DRAWS = 16
GAIN_ERROR = 0.06
"""Standard error of the model half-way between the runs, as a share of what the fast one gains."""
RUNTIME_ERROR = 0.004
"""And as a share of the runtime, which remains where there is little to gain."""
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A runtime and the bounds that hold the true one in about nine of ten cases, ns."""

    runtime_ns: float
    low_ns: float
    high_ns: float


def interval(model: Model, layout: Layout, seed: int = 1) -> Interval:
    """Return the estimate of a layout with its interval."""
    runtime = model.estimate(layout).runtime_ns
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(DRAWS):
        times = (rng.poisson(model.samples) / model.samples).astype(np.float32)
        again = replace(model, accesses=model.accesses * times)
        drawn.append(replace(again, total=again.sums()).estimate(layout).runtime_ns)
    sampling = float(np.std(drawn)) if len(model.accesses) else 0.0
    slow, fast = float(model.slow_ns.sum()), float(model.fast_ns.sum())
    gain = abs(slow - fast)
    part = np.clip((runtime - min(slow, fast)) / gain, 0.0, 1.0) if gain > 0 else 0.0
    modelling = float(np.hypot(GAIN_ERROR * gain, RUNTIME_ERROR * runtime))
    half = _WIDTH * float(np.hypot(sampling, modelling * 2 * np.sqrt(part * (1 - part))))
    return Interval(runtime, runtime - half, runtime + half)
