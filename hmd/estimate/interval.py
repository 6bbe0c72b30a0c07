"""The interval of an estimate, of about 90 %.

Two errors add up. The sampling error is found by resampling (the Poisson bootstrap, Chamandy et
al., 2012), at the cost of ``DRAWS`` layouts. The model error is that on the benchmark programs:
nine of ten of their layouts lie within. It is largest half-way between the recorded runs, which
the model reproduces exactly: half-way in gain, and in slow accesses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hmd.estimate.layout import Layout
from hmd.estimate.runtime_model import RuntimeModel

DRAWS = 16
GAIN_ERROR = 0.03
"""Standard error of the model half-way between the runs, as a share of the fast run's gain."""
RUNTIME_ERROR = 0.004
"""The same as a share of the runtime, which remains if there is little to gain."""
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A runtime and the bounds that hold the true one in about nine of ten cases, ns."""

    runtime_ns: float
    low_ns: float
    high_ns: float


def interval(model: RuntimeModel, layout: Layout, seed: int = 1) -> Interval:
    """Return the estimate of a layout with its interval."""
    mass = model.slow_mass((~layout).astype(np.float32))
    runtime = model.price(mass).runtime_ns
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
    slow_share = np.clip(mass.cells.sum() / max(float(model.total.sum()), 1e-12), 0.0, 1.0)
    of_gain = GAIN_ERROR * gain * 2 * np.sqrt(part * (1 - part))
    of_runtime = RUNTIME_ERROR * runtime * 2 * np.sqrt(slow_share * (1 - slow_share))
    half = _WIDTH * float(np.linalg.norm([sampling, of_gain, of_runtime]))
    # Rounding errors of a layout that was recorded.
    half = half if half > 1e-6 * runtime else 0.0
    return Interval(runtime, runtime - half, runtime + half)
