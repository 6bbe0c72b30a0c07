"""Kernels: how many of the sampled accesses go to slow memory, by cell, under a layout.

A cell is a window and what is told apart in it (``hmd.estimate.runtime_model``). Rows are in order
of cell, ``begin`` is where each cell's begin, shape ``(cells + 1,)``. One pass over the rows,
about 2 ns a row; for a sweep over capacities one pass serves all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import kernel

_FEW = np.uint64(1024)


@kernel(
    "int32[::1]",
    "float32[::1]",
    "uint64[::1]",
    "float32[::1]",
    "uint64",
    "uint64",
    "float64[::1]",
)
def add_slow(
    page: npt.NDArray[np.int32],
    accesses: npt.NDArray[np.float32],
    begin: npt.NDArray[np.uint64],
    slow: npt.NDArray[np.float32],
    first: int,
    last: int,
    total: npt.NDArray[np.float64],
) -> None:
    """Add up rows of the cells from ``first`` on, before ``last``, by the slow share of pages."""
    # Unsigned, since an index that could be negative costs four times as much; sums of few in
    # single precision, since those are half as fast in double.
    for cell in range(first, last):
        start, end = begin[cell], begin[cell + np.uint64(1)]
        while start < end:
            stop = min(end, start + _FEW)
            here = np.float32(0.0)
            for i in range(start, stop):
                here += accesses[i] * slow[page[i]]
            total[cell] += here
            start = stop


@kernel("int32[::1]", "float32[::1]", "float32[::1]")
def take(
    page: npt.NDArray[np.int32], slow: npt.NDArray[np.float32], into: npt.NDArray[np.float32]
) -> None:
    """Set each row's slow share, that of its page."""
    for i in range(np.uint64(len(page))):
        into[i] = slow[page[i]]


@kernel("int32[::1]", "float32[::1]", "uint64[::1]", "int32[::1]", "float64[:, ::1]")
def add_by_step(
    page: npt.NDArray[np.int32],
    accesses: npt.NDArray[np.float32],
    begin: npt.NDArray[np.uint64],
    step: npt.NDArray[np.int32],
    total: npt.NDArray[np.float64],
) -> None:
    """Add rows' accesses to ``total[step of their page, their cell]``."""
    for cell in range(np.uint64(len(begin) - 1)):
        for i in range(begin[cell], begin[cell + np.uint64(1)]):
            total[step[page[i]], cell] += accesses[i]
