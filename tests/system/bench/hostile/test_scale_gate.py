"""The scale gate: neighbours of every size cost the daemon a bounded part of a CPU and of memory.

The real service with the sampler ``faults``. Costs are CPU time of the daemon, so that a busy host
does not change them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.hostile.scale_cases import CASES, NeighbourCase, NeighbourCost, compiled, measure

SEGMENT = "200 on one 1 GiB memfd"
SECONDS = {"10,000 idle forks": 60.0, SEGMENT: 12.0}
"""Longest where the first scan is a large part of the cost."""
OTHERS_SECONDS = 20.0
WORST_TICK_S = 2.0
STOP_S = 2.0
CPU_OVER_QUOTA = 2.0
LEAST_RSS_MIB, RSS_SHARE = 250.0, 0.02


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("neighbours"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_daemon_next_to_neighbours_stays_within_bounds(
    case: NeighbourCase, program: Path, tmp_path: Path
) -> None:
    seconds = SECONDS.get(case.name, OTHERS_SECONDS)
    cost: NeighbourCost = measure(case, tmp_path, program, seconds)
    log = (tmp_path / "log").read_text()
    assert cost.ticks > 1, log
    assert cost.failed == 0, log
    assert cost.processes >= case.processes
    assert cost.worst_tick_s < WORST_TICK_S
    assert cost.stop_s < STOP_S
    assert cost.cpu_over_quota <= CPU_OVER_QUOTA
    assert cost.peak_rss_mib <= LEAST_RSS_MIB + RSS_SHARE * case.resident_mib
    if case.name == SEGMENT:
        # Once, not 200 times; each process has some 200 KiB of its own.
        for mib in (cost.tracked_mib, cost.reported_mib):
            assert case.resident_mib <= mib <= case.resident_mib + 0.5 * case.processes
