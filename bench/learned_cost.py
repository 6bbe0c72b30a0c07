"""Cost of a decision of the learned policy: prints a table, writes build/learned_cost.json.

A program of 100,000 pages, two in five on the fast node, has 90 % of its accesses on a quarter of
them. Each stage is the median CPU time of many runs: features, network, and the whole plan,
next to that of the histogram policy on the same view.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from bench.rehearsal import Rehearsal, hot_blocks
from bench.rehearsed_memory import Tier
from hmd.decide import registry
from hmd.decide.learned_features import LearnedFeatures
from hmd.decide.learned_network import run_network
from hmd.decide.node_arrays import nodes_of
from hmd.decide.plan import Policy
from hmd.decide.policies.histogram import Histogram
from hmd.decide.policies.learned import Learned

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "learned_cost.json"
PAGES, FAST, SAMPLES = 100_000, 40_000, 20_000
WARM_TICKS, RUNS = 8, 21


def timed_ms(work: Callable[[], object], runs: int = RUNS) -> float:
    """Return the median CPU time of some runs, in milliseconds."""
    spent = []
    for _ in range(runs):
        begun_s = time.thread_time()
        work()
        spent.append(time.thread_time() - begun_s)
    return median(spent) * 1e3


def warm_program(policy: Policy) -> Rehearsal:
    """Return a program whose heat the daemon has seen for some ticks."""
    tiers = (Tier(FAST + 2048), Tier(2 * PAGES))
    node = np.ones(PAGES, np.int8)
    node[:FAST] = 0
    weights = hot_blocks(PAGES, PAGES // 4, 16, 1, 0.9)
    program = Rehearsal(policy, tiers, weights, node, samples_per_tick=SAMPLES)
    for _ in range(WARM_TICKS):
        program.tick()
    return program


def measure() -> dict[str, float]:
    """Return milliseconds per stage."""
    policy = registry.make(Learned.name)
    assert isinstance(policy, Learned)
    program = warm_program(policy)
    machine = program.machine
    nodes = nodes_of(machine, policy.settings.headroom_fraction, policy.settings.headroom_bytes)
    shape, weight = policy.weights.packed()
    features = LearnedFeatures()
    pages = program.heat.view(machine.topology)
    columns = features.of(pages, machine, nodes).columns
    histogram = Histogram()

    def planned(chosen: Policy) -> int:
        """Plan on a view of which no column but the rates was computed before."""
        return len(chosen.plan(program.heat.view(machine.topology), machine))

    return {
        "rows": float(len(pages)),
        "features_ms": timed_ms(lambda: features.of(pages, machine, nodes)),
        "network_ms": timed_ms(lambda: run_network(columns, shape, weight)),
        "plan_ms": timed_ms(lambda: planned(policy)),
        "histogram_plan_ms": timed_ms(lambda: planned(histogram)),
    }


def main() -> int:
    """Measure, print and write the results."""
    results = measure()
    for name, value in results.items():
        print(f"{name:20}{value:10.2f}")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
