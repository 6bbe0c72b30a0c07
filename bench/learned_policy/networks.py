# SPDX-License-Identifier: MIT
"""Networks of the learned policy that have not seen a program, and the rows they are fitted to.

The network that runs a program is fitted to rows of all other programs (leave one out). Rows are
collected once for each program, under the moves of the default policy and under none. The learned
policy corrects the rates of the former within bounds, so that its own moves leave rows much like
these.

Rows and networks are kept in build/learned/ until that folder is removed. Rows take some 20 s of
CPU per program, a fit some 5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from bench.compare.bounds import PROGRAMS, SAMPLING, SETTINGS, fast_pages
from bench.compare.policies import ROOT, SUITE
from bench.compare.testbed import PRESET
from bench.suite.ground_truth import recorded
from hmd.emulate.preset import load
from hmd.learn.rows import MissValues, RowRequest, TrainingRows, collect_rows
from hmd.learn.training import fit_network, make_policy, weights_of
from hmd.simulate.simulation import SimulationSettings

FOLDER = ROOT / "build" / "learned"

HORIZON_TICKS: Final = 8
_MAX_ROWS: Final = 24_000  # of a program
EPOCHS: Final = 4
HIDDEN: Final = (4,)
_TESTED: Final = 0.1


@dataclass(frozen=True, slots=True)
class RowRun:
    """A run that rows are collected from: the policy that moves pages, and the ratio."""

    policy: str
    ratio: str


RUNS: Final = (RowRun("benefit", "1:2"), RowRun("none", "1:8"), RowRun("benefit", "1:8"))


class HeldOutNetworks:
    """Rows of all programs on the machine ``PRESET``, and networks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._preset, self._say = load(PRESET), say
        FOLDER.mkdir(parents=True, exist_ok=True)

    def network(self, held_out: str | None) -> Path:
        """Return the file of the network that has not seen a program; None: it saw all."""
        path = self.path(held_out)
        if not path.exists():
            self._say(f"fitting a network without {held_out}")
            seen = [name for name in PROGRAMS if name != held_out]
            rows = TrainingRows.joined([self.rows(name) for name in seen])
            train, test = split_rows(rows)
            fitted = fit_network(train, test, HIDDEN, EPOCHS, seed=1)
            about = f"{len(rows):,} rows of {len(seen)} programs of the suite"
            weights_of(fitted, HORIZON_TICKS, rows, about).write(path)
        return path

    def path(self, held_out: str | None) -> Path:
        """Return the file of a network, which need not exist yet."""
        return FOLDER / f"network-{held_out or 'all'}.npz"

    def rows(self, name: str) -> TrainingRows:
        """Return a program's rows."""
        path = FOLDER / f"rows-{name}.npz"
        if not path.exists():
            stream = recorded(name, SUITE, self._say).stream
            values = MissValues(stream, self._preset)
            parts = []
            for seed, run in enumerate(RUNS):
                self._say(f"rows of {name}, {run.policy} {run.ratio}")
                parts.append(
                    collect_rows(
                        stream,
                        self._preset,
                        fast_pages(stream, run.ratio),
                        make_policy(run.policy),
                        charged(seed + 50),
                        RowRequest(PROGRAMS.index(name), HORIZON_TICKS, seed),
                        values,
                    )
                )
            TrainingRows.joined(parts).write(path)
        rows = TrainingRows.read(path)
        return rows.take(np.random.default_rng(0).permutation(len(rows))[:_MAX_ROWS])


def split_rows(rows: TrainingRows) -> tuple[TrainingRows, TrainingRows]:
    """Return the rows that are trained on, and a tenth that says when to stop."""
    tested = np.random.default_rng(1).random(len(rows)) < _TESTED
    return rows.take(np.flatnonzero(~tested)), rows.take(np.flatnonzero(tested))


def charged(seed: int, *, free: bool = False) -> SimulationSettings:
    """Return the daemon and its machine with samples at their cost, or ``free``."""
    return replace(SETTINGS, sampling=replace(SAMPLING, seed=seed, free=free))
