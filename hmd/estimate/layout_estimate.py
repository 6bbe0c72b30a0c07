"""An estimator's result for one layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted run: ``runtime_ns``, and by window ``window_ns``, shape ``(windows,)``."""

    runtime_ns: float
    window_ns: npt.NDArray[np.float64]
