"""Runs: neighbouring rows of one process, which kernels sum up or estimate together."""

from __future__ import annotations

from hmd.heat.kernels import Int32s, inline


@inline
def run_end(process: Int32s, begin: int, limit: int) -> int:
    """Return the end of the rows of one process from ``begin`` on, at most ``limit``.

    ``process`` has the process of each row, ``limit`` at most its length.
    """
    end = begin + 1
    while end < limit and process[end] == process[begin]:
        end += 1
    return end
