"""Sums over the rows of a view, by process: pages, accesses per second, and the wait for them.

Takes columns of a view, in which rows of one process follow each other: the sums of those stay in
registers. About 1 ns per row.
"""

from __future__ import annotations

import numpy as np

from hmd.heat.kernels import Float32s, Float64s, Int8s, Int32s, Uint16s, kernel
from hmd.heat.process_runs import run_end


@kernel
def add_sizes(process: Int32s, size: Uint16s, sums: Float64s) -> None:
    """Add the 4 KiB pages of all rows, shape ``(n,)``, to ``sums`` by process."""
    begin = 0
    while begin < len(process):
        end, total = run_end(process, begin, len(process)), 0.0
        pages = size[begin:end]
        for at in range(len(pages)):
            total += np.float64(pages[at])
        sums[process[begin]] += total
        begin = end


@kernel
def add_accesses(process: Int32s, size: Uint16s, rate: Float32s, sums: Float64s) -> None:
    """Add the accesses per second of all rows, shape ``(n,)``, to ``sums`` by process."""
    begin = 0
    while begin < len(process):
        end, total = run_end(process, begin, len(process)), 0.0
        each, pages = rate[begin:end], size[begin:end]
        for at in range(len(each)):
            total += np.float64(each[at]) * pages[at]
        sums[process[begin]] += total
        begin = end


@kernel
def add_waits(
    process: Int32s, size: Uint16s, rate: Float32s, wait_ns: Float64s, node: Int8s, sums: Float64s
) -> None:
    """Add accesses per second times the latency of their node to ``sums`` by process.

    ``wait_ns`` is the latency by node id. Rows on other nodes, below 0 or above, wait for nothing.
    """
    begin = 0
    while begin < len(process):
        end, total = run_end(process, begin, len(process)), 0.0
        for row in range(begin, end):
            on = node[row]
            if 0 <= on < len(wait_ns):
                total += np.float64(rate[row]) * wait_ns[on] * size[row]
        sums[process[begin]] += total
        begin = end
