# SPDX-License-Identifier: MIT
"""Networks of the learned policy that have not seen a program, and the rows they are fitted to.

The network that runs a program is fitted to rows of all other programs (leave one out). Rows are
collected once for each program and round: in the first round the default policy moves its pages, in
the second the network that has not seen the program. So another network's rows of the second round
depend on where a network that knows the program moved their pages, and on nothing else of it.

Rows and networks are kept in build/learned/ until that folder is removed. Rows take some 15 s of
CPU per program and round, a fit some 10 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from bench.compare.bounds import PROGRAMS, SAMPLING, SETTINGS, fast_pages
from bench.compare.policies import ROOT, SUITE
from bench.compare.testbed import PRESET
from bench.suite.ground_truth import recorded
from hmd.emulate.preset import load
from hmd.learn.perceptron import fit_network
from hmd.learn.rows import MissValues, RowRequest, TrainingRows, collect_rows
from hmd.learn.training import make_policy, weights_of
from hmd.policy.learned.features import FEATURES
from hmd.simulate.simulation import SimulationSettings

FOLDER = ROOT / "build" / "learned"

HORIZON_TICKS: Final = 8
_ROWS_MOST: Final = 12_000  # of a program and round
EPOCHS: Final = 4
HIDDEN: Final = (16, 8)
_TESTED: Final = 0.1


@dataclass(frozen=True, slots=True)
class RowRun:
    """A run that rows are collected from: policy, its price of a move in ns, and ratio."""

    policy: str
    move_ns: float
    ratio: str


RUNS: Final = (
    (RowRun("benefit", 3000, "1:2"), RowRun("none", 0, "1:8"), RowRun("benefit", 3000, "1:8")),
    (RowRun("learned", 3000, "1:2"), RowRun("learned", 1500, "1:8")),
)
"""The runs of each round."""


class HeldOutNetworks:
    """Rows of all programs on the machine ``PRESET``, and networks.

    Networks take the features ``without`` as 0, for ablations.
    """

    def __init__(self, without: Sequence[str], say: Callable[[str], None]) -> None:
        self._preset, self._without, self._say = load(PRESET), tuple(sorted(without)), say
        self._folder = FOLDER / "-".join(("without", *self._without)) if without else FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)

    def network(self, held_out: str | None, rounds: int = len(RUNS)) -> Path:
        """Return the file of the network that has not seen a program; None: it saw all."""
        path = self.path(held_out, rounds)
        if not path.exists():
            self._say(f"fitting round {rounds}, without {held_out}")
            seen = [name for name in PROGRAMS if name != held_out]
            rows = TrainingRows.joined(
                [self.rows(name, number) for name in seen for number in range(rounds)]
            )
            unused = [FEATURES.index(name) for name in self._without]
            rows.features[:, unused] = 0
            train, test = split_rows(rows)
            fitted = fit_network(train, test, HIDDEN, EPOCHS, seed=1)
            about = f"{len(rows):,} rows of {len(seen)} programs of the suite, {rounds} rounds"
            weights_of(fitted, HORIZON_TICKS, rows, about).write(path)
        return path

    def path(self, held_out: str | None, rounds: int = len(RUNS)) -> Path:
        """Return the file of a network, which need not exist yet."""
        return self._folder / f"round-{rounds - 1}-{held_out or 'all'}.npz"

    def rows(self, name: str, number: int) -> TrainingRows:
        """Return a program's rows of a round."""
        path = self._folder / f"rows-{name}-{number}.npz"
        if number == 0:
            path = FOLDER / path.name
        if not path.exists():
            stream = recorded(name, SUITE, self._say).stream
            values = MissValues(stream, self._preset)
            parts = []
            for position, run in enumerate(RUNS[number]):
                self._say(f"round {number + 1}: {name}, {run.policy} {run.ratio}")
                given: dict[str, float | str] = {}
                if run.policy != "none":
                    given["move_ns"] = run.move_ns
                if run.policy == "learned":
                    given["weights"] = str(self.network(name, number))
                seed = 10 * number + position
                parts.append(
                    collect_rows(
                        stream,
                        self._preset,
                        fast_pages(stream, run.ratio),
                        make_policy(run.policy, **given),
                        charged(seed + 50),
                        RowRequest(PROGRAMS.index(name), HORIZON_TICKS, seed),
                        values,
                    )
                )
            TrainingRows.joined(parts).write(path)
        rows = TrainingRows.read(path)
        return rows.take(np.random.default_rng(0).permutation(len(rows))[:_ROWS_MOST])


def split_rows(rows: TrainingRows) -> tuple[TrainingRows, TrainingRows]:
    """Return the rows that are trained on, and a tenth that says when to stop."""
    tested = np.random.default_rng(1).random(len(rows)) < _TESTED
    return rows.take(np.flatnonzero(~tested)), rows.take(np.flatnonzero(tested))


def charged(seed: int, *, free: bool = False) -> SimulationSettings:
    """Return the daemon and its machine with samples at their cost, or ``free``."""
    return replace(SETTINGS, sampling=replace(SAMPLING, seed=seed, free=free))
