"""Kernels: how many of the sampled accesses go to slow memory, by cell, under a layout.

A cell is a window and what is told apart in it (``hmd.estimate.model``). One pass over the rows,
2 to 10 ns a row; for a sweep over capacities one pass serves all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import kernel


@kernel("int32[::1]", "int32[::1]", "float32[::1]", "float32[::1]", "float64[::1]")
def add_slow(
    page: npt.NDArray[np.int32],
    cell: npt.NDArray[np.int32],
    accesses: npt.NDArray[np.float32],
    slow: npt.NDArray[np.float32],
    total: npt.NDArray[np.float64],
) -> None:
    """Add rows' accesses to their cells, weighed with the share of their page that is slow."""
    for i in range(len(page)):
        total[cell[i]] += accesses[i] * slow[page[i]]


@kernel("int32[::1]", "int32[::1]", "float32[::1]", "int32[::1]", "float64[:, ::1]")
def add_by_step(
    page: npt.NDArray[np.int32],
    cell: npt.NDArray[np.int32],
    accesses: npt.NDArray[np.float32],
    step: npt.NDArray[np.int32],
    total: npt.NDArray[np.float64],
) -> None:
    """Add rows' accesses to ``total[step of their page, their cell]``."""
    for i in range(len(page)):
        total[step[page[i]], cell[i]] += accesses[i]


@kernel(
    "int32[::1]",
    "int32[::1]",
    "int32[::1]",
    "int32[::1]",
    "float32[::1]",
    "float64[::1]",
    "float64[::1]",
)
def add_pairs(
    page_a: npt.NDArray[np.int32],
    page_b: npt.NDArray[np.int32],
    class_a: npt.NDArray[np.int32],
    class_b: npt.NDArray[np.int32],
    slow: npt.NDArray[np.float32],
    members: npt.NDArray[np.float64],
    both: npt.NDArray[np.float64],
) -> None:
    """Add pairs' slow members to their classes, and those whose other member is slow too."""
    for i in range(len(page_a)):
        a, b = slow[page_a[i]], slow[page_b[i]]
        members[class_a[i]] += a
        members[class_b[i]] += b
        both[class_a[i]] += a * b
        both[class_b[i]] += a * b
