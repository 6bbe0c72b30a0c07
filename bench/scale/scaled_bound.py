# SPDX-License-Identifier: MIT
"""The share of accesses that samples permit on the fast tier, however memory is counted.

For the cases of :mod:`bench.scale.scaled_quality`: after some ticks, the share of accesses to pages
that had a sample so far, and to those that were on the fast node at the start. No more is known of
any page, so that no policy can have a larger share but by chance. ``by_detail`` is the share of as
many pages as there are chunks with pages of their own, the hottest of all: what one hot page in
each of them is worth. Moves cost nothing here. ``--publish`` writes docs/results/scaled_bound.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.documents.markdown import measured_with
from bench.scale.scaled_memory import BASE, ScaledSamples
from bench.scale.scaled_quality import CASES, TICKS
from bench.scale.tick_cost import SAMPLES
from hmd.base.units import GIB, PAGE_BYTES
from hmd.heat.settings import HeatSettings

ROOT = Path(__file__).resolve().parents[2]
OUTPUT, PUBLISHED = ROOT / "build/scaled_bound.json", ROOT / "docs/results/scaled_bound.json"
_DRAWN = 200_000
_FAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class BoundRow:
    """Shares of accesses: of pages that had a sample by each tick, and of one page per chunk."""

    tracked_gib: int
    pattern: str
    by_samples: dict[int, float]
    by_detail: float


def measure(gib: int, pattern: str) -> BoundRow:
    """Draw the samples of a case."""
    pages = gib * GIB // PAGE_BYTES
    samples = ScaledSamples(pattern, 1, pages, SAMPLES)
    drawn = ScaledSamples(pattern, 1, pages, _DRAWN, seed=2)
    accessed = _pages(drawn.read().address)
    known = np.zeros(pages, np.bool_)
    known[: int(_FAST_SHARE * pages)] = True
    shares = {0: round(float(known[accessed].mean()), 3)}
    for tick in range(1, TICKS[-1] + 1):
        known[_pages(samples.read().address)] = True
        if tick in TICKS:
            shares[tick] = round(float(known[accessed].mean()), 3)
    details = HeatSettings().max_page_slots
    return BoundRow(gib, pattern, shares, round(drawn.hottest(details / pages), 3))


def _pages(address: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (address.astype(np.int64) - BASE) // PAGE_BYTES


def main(arguments: list[str]) -> int:
    """Measure, print and write the rows."""
    parser = argparse.ArgumentParser(description="What samples permit on the fast tier.")
    parser.add_argument("cases", nargs="*", default=list(CASES), help="GiB:pattern")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args(arguments)
    rows = []
    print("  GiB    pattern  detail" + "".join(f"  tick {tick:3}" for tick in TICKS))
    for case in args.cases:
        gib, pattern = case.split(":")
        row = measure(int(gib), pattern)
        rows.append(row)
        shares = "".join(f"{share:10.3f}" for share in row.by_samples.values())
        print(f"{gib:>5} {pattern:>10} {row.by_detail:7.3f}{shares}", flush=True)
    text = json.dumps({**measured_with(), "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(text)
    if args.publish:
        PUBLISHED.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
