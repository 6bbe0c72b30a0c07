"""Runs: neighbouring rows of one process or block, which kernels sum up together."""

from __future__ import annotations

from hmd.heat.kernels import Int32s, inline


@inline
def run_end(number: Int32s, begin: int, limit: int) -> int:
    """Return the end of the rows of one number from ``begin`` on, at most ``limit``.

    ``number`` has that of each row's process or block, ``limit`` at most its length.
    """
    end = begin + 1
    while end < limit and number[end] == number[begin]:
        end += 1
    return end
