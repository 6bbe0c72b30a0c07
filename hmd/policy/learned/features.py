# SPDX-License-Identifier: MIT
"""The features of the learned policy: scale-free figures per row.

Takes a page view and the rates that ``benefit`` would decide with, gives a column per feature. Both
are base-2 logarithms, that of the rate of its ratio to the mean page of the process, so that
neither the speed of the machine nor the sampling period matters. Nothing is stored between ticks:
the view has it all. About 15 ns per page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hmd.heat.view import PageView

FEATURES: Final = ("rate", "support")
"""Names in the order of the columns; docs/reference/learned-features.md describes them."""

VERSION: Final = 3
"""Weights are valid for one version: a change of a feature is another."""

# What is added to a rate, as a part of the mean: the logarithm of a page without any is finite.
_FLOOR: Final = 0.1
_MIN_MEAN: Final = 1e-20

Floats = npt.NDArray[np.float32]


def feature_columns(pages: PageView, rate: Floats) -> Floats:
    """Return the features of each row, shape ``(len(FEATURES), n)``.

    ``rate`` is in accesses per second and base page; shape ``(n,)``.
    """
    count = np.bincount(pages.process, pages.size, len(pages.processes))
    mean = process_sums(pages, rate) / np.maximum(count, 1) + _MIN_MEAN
    columns = np.empty((len(FEATURES), len(pages)), np.float32)
    columns[0] = rate * (1 / mean)[pages.process] + _FLOOR
    columns[1] = 1 + pages.effective_samples
    return np.log2(columns, out=columns)


def process_sums(pages: PageView, rate: Floats) -> npt.NDArray[np.float64]:
    """Return the sum over the base pages of each process; ``rate`` is per page, by row."""
    sums = np.bincount(pages.process, rate * pages.size, len(pages.processes))
    return sums.astype(np.float64)
