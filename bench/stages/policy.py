"""The default policy on changing hot sets: prints a table, writes build/policy.json.

A program of 32768 pages has 90 % of its accesses on 12288 of them, in blocks of a given size; its
hot set changes once to other blocks. The fast tier holds 1.1 hot sets or half of one, or the
program has no hot set. Moves cost nothing: the figures show sampling and the policy alone.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.synthetic.synthetic_memory import Tier
from bench.synthetic.synthetic_run import SyntheticRun, hot_blocks
from hmd.decide.policies.histogram import Histogram

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "policy.json"
PAGES, HOT = 32768, 12288
SETTLE_TICKS, STILL_TICKS, FOLLOW_TICKS = 20, 10, 5


@dataclass(frozen=True, slots=True)
class HotBlockCase:
    """Samples per tick, pages per hot block, fast tier over hot set, share of hot accesses."""

    samples: int
    block_pages: int
    fast: float = 1.1
    hot_share: float = 0.9


@dataclass(frozen=True, slots=True)
class HotBlockResult:
    """The result of a case.

    ``still`` are moves per tick when settled. ``before`` and ``after`` are the fast tier's share of
    accesses over the best possible share, after the change of the hot set and after each tick.
    """

    case: HotBlockCase
    still: float
    before: float
    after: list[float]
    moves: list[int]


CASES = [
    *(HotBlockCase(samples, block) for samples in (65_000, 20_000, 5_000) for block in (16, 64, 1)),
    *(HotBlockCase(samples, block, fast=0.5) for samples in (65_000, 5_000) for block in (16, 1)),
    *(HotBlockCase(samples, 16, hot_share=0.0) for samples in (65_000, 5_000)),
]


def run(case: HotBlockCase) -> HotBlockResult:
    """Settle, change the hot set, and measure the following ticks."""
    fast = int(HOT * case.fast)
    # Headroom by default: 4 MiB, which is more than 2 % of this machine.
    tiers = (Tier(fast + 1024), Tier(2 * PAGES))
    node = np.ones(PAGES, np.int8)
    node[:fast] = 0
    weights = hot_blocks(PAGES, HOT, case.block_pages, 1, case.hot_share)
    program = SyntheticRun(Histogram(), tiers, weights, node, samples_per_tick=case.samples)
    for _ in range(SETTLE_TICKS):
        program.tick()
    still = float(np.mean([program.tick().moved_pages for _ in range(STILL_TICKS)]))
    program.weights = hot_blocks(PAGES, HOT, case.block_pages, 2, case.hot_share)
    best = float(np.sort(program.weights)[-fast:].sum() / program.weights.sum())
    before = program.fast_share / best
    ticks = [program.tick() for _ in range(FOLLOW_TICKS)]
    return HotBlockResult(
        case,
        still,
        round(before, 3),
        [round(tick.fast_share / best, 3) for tick in ticks],
        [tick.moved_pages for tick in ticks],
    )


def main() -> int:
    """Run all cases; print and write the results."""
    ticks = "".join(f"  +{n + 1} tick" for n in range(FOLLOW_TICKS))
    print("share of the best placement, after the hot set changes")
    print(f"samples/tick  block   fast  hot   still/tick  change{ticks}  moves")
    results = []
    for case in CASES:
        result = run(case)
        results.append(result)
        after = "".join(f"{share:8.3f}" for share in result.after)
        print(
            f"{case.samples:12}{case.block_pages:7}{case.fast:7.2f}{case.hot_share:5.1f}"
            f"{result.still:13.1f}{result.before:8.3f}{after}  {sum(result.moves)}"
        )
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
