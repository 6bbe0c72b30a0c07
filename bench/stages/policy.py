# SPDX-License-Identifier: MIT
"""Policies on changing hot sets: how soon the fast tier has the new one.

    python -m bench.stages.policy [--publish]

A program of 32,768 pages has 90 % of its accesses on 12,288 of them, in blocks of a given size; its
hot set changes once to other blocks. The fast tier holds 1.1 hot sets or half of one, or the
program has no hot set. Moves take no time: the figures show sampling and the policy alone. Prints a
table and writes build/convergence.json; ``--publish`` also writes docs/results/convergence.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.documents.markdown import measured_with
from bench.documents.markdown import table as markdown
from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.policy import registry

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "convergence.json"
PUBLISHED = ROOT / "docs" / "results" / "convergence.json"
PAGES, HOT = 32768, 12288
SETTLE_TICKS, STILL_TICKS, FOLLOW_TICKS = 20, 10, 10
POLICIES: Final = (registry.DEFAULT, "histogram")
LATENCY_NS: Final = (90, 300)
SHOWN: Final = (1, 2, 5, 10)
"""Ticks after the change that the table has."""


@dataclass(frozen=True, slots=True)
class HotBlockCase:
    """Samples per tick, pages per hot block, fast tier over hot set, share of hot accesses."""

    samples: int
    block_pages: int
    fast: float = 1.1
    hot_share: float = 0.9


@dataclass(frozen=True, slots=True)
class HotBlockResult:
    """The result of a policy in a case.

    ``still`` are moves per tick when settled. ``before`` and ``after`` are the fast tier's share of
    accesses over the best possible share, after the change of the hot set and after each tick.
    """

    policy: str
    case: HotBlockCase
    still: float
    before: float
    after: list[float]
    moves: list[int]


CASES = [
    *(HotBlockCase(samples, block) for block in (16, 64, 1) for samples in (65_000, 20_000, 5_000)),
    *(HotBlockCase(samples, block, fast=0.5) for block in (16, 1) for samples in (65_000, 5_000)),
    *(HotBlockCase(samples, 16, hot_share=0.0) for samples in (65_000, 5_000)),
]


def run(policy: str, case: HotBlockCase) -> HotBlockResult:
    """Settle, change the hot set, and measure the following ticks."""
    fast = int(HOT * case.fast)
    # Headroom by default: 4 MiB, which is more than 2 % of this machine.
    tiers = tuple(map(Tier, (fast + 1024, 2 * PAGES), (0, 0), LATENCY_NS))
    node = np.ones(PAGES, np.int8)
    node[:fast] = 0
    program = SyntheticRun(
        registry.create(policy),
        tiers,
        hot_blocks(PAGES, HOT, case.block_pages, 1, case.hot_share),
        node,
        samples_per_tick=case.samples,
        latency_ns=lambda share: LATENCY_NS,
    )
    for _ in range(SETTLE_TICKS):
        program.tick()
    still = float(np.mean([program.tick().moved_pages for _ in range(STILL_TICKS)]))
    program.weights = hot_blocks(PAGES, HOT, case.block_pages, 2, case.hot_share)
    best = float(np.sort(program.weights)[-fast:].sum() / program.weights.sum())
    before = program.fast_share / best
    ticks = [program.tick() for _ in range(FOLLOW_TICKS)]
    return HotBlockResult(
        policy,
        case,
        still,
        round(before, 3),
        [round(tick.fast_share / best, 3) for tick in ticks],
        [tick.moved_pages for tick in ticks],
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a Markdown table: shares of the best placement by tick, and moves."""
    ticks = [f"+{tick}" for tick in SHOWN]
    return markdown(
        ["policy", "fast tier", "block", "samples per tick", "at the change", *ticks, "moves"],
        [
            [
                row["policy"],
                _fast_tier(row["case"]),
                f"{4 * row['case']['block_pages']} KiB",
                f"{row['case']['samples']:,}",
                f"{row['before']:.2f}",
                *(f"{row['after'][tick - 1]:.2f}" for tick in SHOWN),
                f"{sum(row['moves']):,}",
            ]
            for row in rows
        ],
        text=3,
    )


def _fast_tier(case: Mapping[str, Any]) -> str:
    """Return how large the fast tier is, relative to the hot set."""
    return f"{case['fast']:g} hot sets" if case["hot_share"] else "no hot set"


def main() -> int:
    """Run all cases; print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", action="store_true", help=f"also write {PUBLISHED.name}")
    args = parser.parse_args()
    rows = [asdict(run(policy, case)) for policy in POLICIES for case in CASES]
    document = {**measured_with(), "rows": rows}
    print(table(rows))
    OUTPUT.parent.mkdir(exist_ok=True)
    for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
        path.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
