# SPDX-License-Identifier: MIT
"""Cost of a decision of the learned policy: prints a table, writes build/learned_cost.json.

    python -m bench.learned_policy.decision_cost [--publish]

A program of 100,000 pages, two in five on the fast node, has 90 % of its accesses on a quarter of
them. A decision is the policy's part of a tick, from the heat table to the plan: the median CPU
time over ticks, each with new samples, next to that of the default policy. Features and network
are also timed apart. ``--publish`` writes the decision to docs/results/learned.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.heat.view import PageView
from hmd.linux.own_process import keep_freed_memory
from hmd.policy import registry
from hmd.policy.builtin.learned import Learned
from hmd.policy.learned.network import feature_columns
from hmd.policy.plan import MachineView, Plan, Policy

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "learned_cost.json"
PUBLISHED = ROOT / "docs" / "results" / "learned.json"
PAGES, FAST, SAMPLES = 100_000, 40_000, 20_000
WARM_TICKS, RUNS = 8, 21


class TimedPolicy:
    """A policy, and the CPU time of each of its plans in milliseconds."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self.spent_ms: list[float] = []

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the policy's plan."""
        begun_s = time.thread_time()
        plan = self._policy.plan(pages, machine)
        self.spent_ms.append((time.thread_time() - begun_s) * 1e3)
        return plan


def timed_ms(work: Callable[[], object], runs: int = RUNS) -> float:
    """Return the median CPU time of some runs, in milliseconds."""
    spent = []
    for _ in range(runs):
        begun_s = time.thread_time()
        work()
        spent.append(time.thread_time() - begun_s)
    return median(spent) * 1e3


def program_under(policy: Policy) -> SyntheticRun:
    """Return a program that nothing has sampled yet."""
    tiers = (Tier(FAST + 2048), Tier(2 * PAGES))
    node = np.ones(PAGES, np.int8)
    node[:FAST] = 0
    weights = hot_blocks(PAGES, PAGES // 4, 16, 1, 0.9)
    return SyntheticRun(policy, tiers, weights, node, samples_per_tick=SAMPLES)


def decision_ms(policy: Policy) -> tuple[float, SyntheticRun]:
    """Return the cost of a decision, and the program after it."""
    timed = TimedPolicy(policy)
    program = program_under(timed)
    for _ in range(WARM_TICKS + RUNS):
        program.tick()
    return median(timed.spent_ms[WARM_TICKS:]), program


def measure() -> dict[str, float]:
    """Return milliseconds by stage, and the number of rows."""
    policy = registry.create(Learned.name)
    assert isinstance(policy, Learned)
    learned_ms, program = decision_ms(policy)
    pages = program.heat.view(program.machine.topology)
    columns = feature_columns(pages, pages.rate)
    return {
        "rows": float(len(pages)),
        "features_ms": timed_ms(lambda: feature_columns(pages, pages.rate)),
        "network_ms": timed_ms(lambda: policy.weights.octaves(columns)),
        "decision_ms": learned_ms,
        "rule_decision_ms": decision_ms(registry.create(registry.DEFAULT))[0],
    }


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", action="store_true", help=f"also write {PUBLISHED.name}")
    args = parser.parse_args()
    keep_freed_memory()  # as the daemon does
    results = measure()
    for name, value in results.items():
        print(f"{name:24}{value:10.2f}")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(results, indent=1) + "\n")
    if args.publish:
        published = json.loads(PUBLISHED.read_text())
        published["decision_ms_100k"] = round(results["decision_ms"], 1)
        PUBLISHED.write_text(json.dumps(published, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
