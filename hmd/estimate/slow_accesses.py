"""Kernels: sampled accesses to slow memory, by cell, under a layout.

A cell is a window and a class of accesses in it (``hmd.estimate.runtime_model``). Rows are in order
of cell, ``begin`` is the first row of each cell, shape ``(cells + 1,)``. One pass over the rows,
about 2 ns per row; a sweep over capacities needs one pass.
"""

from __future__ import annotations

import numpy as np

from hmd.heat.kernels import Float32s, Float64Plane, Float64s, Int32s, Uint64, Uint64s, kernel

_FEW = np.uint64(1024)


@kernel
def add_slow(
    page: Int32s,
    accesses: Float32s,
    begin: Uint64s,
    slow: Float32s,
    first: Uint64,
    last: Uint64,
    total: Float64s,
) -> None:
    """Add up rows of the cells from ``first`` on, before ``last``, by the slow share of pages."""
    # Unsigned, since an index that could be negative costs four times as much; short sums in
    # single precision, since double precision takes twice as long.
    for cell in range(first, last):
        start, end = begin[cell], begin[cell + np.uint64(1)]
        while start < end:
            stop = min(end, start + _FEW)
            here = np.float32(0.0)
            for i in range(start, stop):
                here += accesses[i] * slow[page[i]]
            total[cell] += here
            start = stop


@kernel
def take(page: Int32s, slow: Float32s, into: Float32s) -> None:
    """Set each row's slow share to that of its page."""
    for i in range(np.uint64(len(page))):
        into[i] = slow[page[i]]


@kernel
def add_by_step(
    page: Int32s,
    accesses: Float32s,
    begin: Uint64s,
    step: Int32s,
    total: Float64Plane,
) -> None:
    """Add rows' accesses to ``total[step of their page, their cell]``."""
    for cell in range(np.uint64(len(begin) - 1)):
        for i in range(begin[cell], begin[cell + np.uint64(1)]):
            total[step[page[i]], cell] += accesses[i]
