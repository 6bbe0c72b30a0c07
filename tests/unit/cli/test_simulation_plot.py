# SPDX-License-Identifier: MIT
"""The points of the plot of simulated runs."""

from __future__ import annotations

from hmd.cli.plots import fast_shares
from hmd.simulate.simulation import Simulated, TickRow


def tick(end_s: float, fast: int, slow: int) -> TickRow:
    return TickRow(
        end_s=end_s,
        fast_misses=fast,
        slow_misses=slow,
        samples=0,
        promoted_pages=0,
        demoted_pages=0,
    )


def test_fast_shares_ticks_without_misses_left_out() -> None:
    run = Simulated(2.1, (tick(1, 3, 1), tick(2, 0, 4), tick(2.1, 0, 0)))
    assert fast_shares(run) == ([1, 2], [75, 0])
