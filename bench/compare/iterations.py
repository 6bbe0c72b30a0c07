# SPDX-License-Identifier: MIT
"""What a policy could gain that knew the period of a program's accesses: a bound without moves.

    python -m bench.compare.iterations RECORDING.npz...

Takes recorded misses, replayed from slow memory; gives, by ticks of the comparison, the lag at
which the misses of chunks of 64 pages are most alike after they have been less alike, and the share
of all misses that fall on a ninth of the pages, chosen in each tick for the next four by the ticks
one lag ago, by the last four, by the mean of all so far, or by the next four themselves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.compare.bounds import SETTINGS
from bench.compare.testbed import PRESET
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissOutcomes, MissStream
from hmd.emulate.recordings.replay import replayed

CHUNK_PAGES: Final = 64
HORIZON_TICKS: Final = 4
MAX_LAG_TICKS: Final = 64
RATIO: Final = 9
_PS_PER_S: Final = 1e12

Counts = npt.NDArray[np.float32]


def misses_by_tick(stream: MissStream) -> Counts:
    """Return the misses of each tick and page of the program, shape ``(ticks, pages)``."""
    outcomes = MissOutcomes.empty(len(stream))
    replayed(stream, load(PRESET), np.zeros(stream.user_pages, np.bool_), outcomes)
    tick = (outcomes.clock_ps / (SETTINGS.tick_s * _PS_PER_S)).astype(np.int64)
    own = stream.page < stream.user_pages
    ticks, pages = int(tick.max()) + 1, stream.user_pages
    cell = tick[own] * pages + stream.page[own].astype(np.int64)
    found = np.bincount(cell, minlength=ticks * pages).reshape(ticks, pages)
    return found.astype(np.float32)


def alike(counts: Counts) -> list[float]:
    """Return the mean correlation of ticks by lag, from 1 on, by chunks less their mean."""
    pages = counts.shape[1] // CHUNK_PAGES * CHUNK_PAGES
    chunks = counts[:, :pages].reshape(len(counts), -1, CHUNK_PAGES).sum(axis=2)
    shares = chunks / np.maximum(chunks.sum(axis=1, keepdims=True), 1)
    apart = shares - shares.mean(axis=0)
    size = np.maximum(np.sqrt((apart**2).sum(axis=1)), 1e-9)
    apart /= size[:, None]
    lags = range(1, min(MAX_LAG_TICKS, len(counts) // 2))
    return [float((apart[lag:] * apart[:-lag]).sum(axis=1).mean()) for lag in lags]


def period_of(likeness: list[float]) -> int:
    """Return the lag of the highest likeness after the first rise, 0 if there is none."""
    rises = [lag for lag in range(1, len(likeness)) if likeness[lag] > likeness[lag - 1] + 0.02]
    return int(np.argmax(likeness[rises[0] :])) + rises[0] + 1 if rises else 0


def shares(counts: Counts, period: int) -> dict[str, float]:
    """Return the share of misses on the chosen pages, by what they are chosen by."""
    fast, span = counts.shape[1] // RATIO, HORIZON_TICKS
    lag = max(period, span)
    found = {"period": 0.0, "last": 0.0, "mean": 0.0, "next": 0.0}
    total = 0.0
    for tick in range(lag, len(counts) - span):
        coming = counts[tick : tick + span].sum(axis=0)
        chosen = {
            "period": counts[tick - lag : tick - lag + span].sum(axis=0),
            "last": counts[tick - span : tick].sum(axis=0),
            "mean": counts[:tick].sum(axis=0),
            "next": coming,
        }
        total += float(coming.sum())
        for name, heat in chosen.items():
            found[name] += float(coming[np.argpartition(-heat, fast)[:fast]].sum())
    return {name: round(each / max(total, 1.0), 3) for name, each in found.items()}


def case(path: Path) -> dict[str, Any]:
    """Return what is found of a recording."""
    counts = misses_by_tick(MissStream.read(path))
    likeness = alike(counts)
    period = period_of(likeness)
    at_period = round(likeness[period - 1], 3) if period else None
    row = {"program": path.stem.rpartition("-")[0], "ticks": len(counts), "period_ticks": period}
    return row | {"likeness": at_period, "share": shares(counts, period)}


def main() -> int:
    """Print a row of JSON per recording."""
    for name in sys.argv[1:]:
        print(json.dumps(case(Path(name))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
