"""Bins of heat on a logarithmic scale, for histograms: 8 bins per octave, in order of the heat.

A bin is the exponent of a float of single precision (IEEE 754) and the first 3 bits of its
mantissa.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hmd.heat.kernels import inline

BINS: Final = 2048
"""Number of bins of heat that is not negative."""
# The other bits of a float's mantissa, which has 23.
_BIN_SHIFT: Final = np.int32(20)


@inline
def heat_bin(heat: np.float32) -> int:
    """Return the bin of some heat; below 0 for negative heat."""
    return int(np.float32(heat).view(np.int32) >> _BIN_SHIFT)
