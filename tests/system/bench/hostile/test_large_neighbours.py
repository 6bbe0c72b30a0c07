"""What the daemon does for a process depends on its memory, not on its threads or mappings.

The real service, as in the scale gate, next to fewer threads and mappings than
``python -m bench.hostile.scale_cases --large`` runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.hostile.scale_cases import NeighbourCase, NeighbourCost, compiled, measure
from hmd.decide.registry import warm_apart

THREADS = NeighbourCase("6,000 threads", ("pool", 4, 1500), 4)
MAPPINGS = NeighbourCase(
    "300,000 mappings", ("mappings", 1, 300_000), 1, limits={"vm/max_map_count": 310_000}
)
SECONDS = 20.0
WORST_TICK_S = 2.0
LEAST_RSS_MIB = 250.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NeighbourCost]:
    warm_apart({})
    program = compiled(tmp_path_factory.mktemp("program"))
    folder: Path = tmp_path_factory.mktemp("neighbours")
    return {cost.case: cost for cost in measure([THREADS, MAPPINGS], folder, program, SECONDS)}


@pytest.mark.parametrize("case", [THREADS, MAPPINGS], ids=lambda case: case.name)
def test_daemon_next_to_threads_and_mappings_stays_within_bounds(
    case: NeighbourCase, costs: dict[str, NeighbourCost]
) -> None:
    cost = costs[case.name]
    assert cost.ticks > 1, cost.log
    assert cost.failed == 0, cost.log
    assert cost.processes >= case.processes
    assert cost.worst_tick_s < WORST_TICK_S
    assert cost.peak_rss_mib <= LEAST_RSS_MIB
