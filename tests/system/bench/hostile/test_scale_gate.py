# SPDX-License-Identifier: MIT
"""The scale gate: neighbours of every size cost the daemon a bounded part of a CPU and of memory.

The real service with the sampler ``faults``. Costs are CPU time of the daemon, so that a busy host
does not change them.
"""

from __future__ import annotations

import pytest

from bench.hostile.scale_cases import CASES, NeighbourCase, NeighbourCost, compiled, measure
from hmd.policy.registry import warm_apart

FORKS, SEGMENT = "10,000 idle forks", "200 on one 1 GiB memfd"
GATED = (
    *CASES,
    # Smaller than those of ``python -m bench.hostile.scale_cases --large``.
    NeighbourCase("6,000 threads", ("pool", 4, 1500), 4),
    NeighbourCase(
        "300,000 mappings", ("mappings", 1, 300_000), 1, limits={"vm/max_map_count": 310_000}
    ),
)
"""What the daemon does for a process depends on its memory, not on its threads or mappings."""
SECONDS = 60.0
"""The budget permits a burst at the start: over a minute, it keeps to its bound (budget.py)."""
WORST_TICK_S = 2.0
STOP_S = 2.0
CPU_OVER_QUOTA = 2.0
LEAST_RSS_MIB, RSS_SHARE = 250.0, 0.02

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NeighbourCost]:
    """What each case costs: all at once but the forks, which each of the daemons would look at."""
    warm_apart({})
    program = compiled(tmp_path_factory.mktemp("program"))
    groups = [
        [case for case in GATED if case.name == FORKS],
        [case for case in GATED if case.name != FORKS],
    ]
    found = [
        cost
        for group in groups
        for cost in measure(group, tmp_path_factory.mktemp("neighbours"), program, SECONDS)
    ]
    return {cost.case: cost for cost in found}


@pytest.mark.parametrize("case", GATED, ids=lambda case: case.name)
def test_daemon_next_to_neighbours_stays_within_bounds(
    case: NeighbourCase, costs: dict[str, NeighbourCost]
) -> None:
    cost = costs[case.name]
    assert cost.ticks > 1, cost.log
    assert cost.failed == 0, cost.log
    assert cost.processes >= case.processes
    assert cost.worst_tick_s < WORST_TICK_S
    assert cost.stop_s < STOP_S
    assert cost.cpu_over_quota <= CPU_OVER_QUOTA
    assert cost.peak_rss_mib <= LEAST_RSS_MIB + RSS_SHARE * case.resident_mib
    if case.name == SEGMENT:
        # Once, not 200 times; each process has some 200 KiB of its own.
        for mib in (cost.tracked_mib, cost.reported_mib):
            assert case.resident_mib <= mib <= case.resident_mib + 0.5 * case.processes
