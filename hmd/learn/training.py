"""Training of the learned policy: rounds of simulations that give rows, and of fits to them.

Takes recorded programs, gives a weights file's content. In the first round rules move the pages; in
each later one the network so far does, with prices at random, so that the rows show what its own
moves leave behind. A network is fitted to the rows of all rounds. Rows are kept in a folder, so
that an interrupted training continues. Equal settings and recordings give equal weights, with any
number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from hmd.decide import registry
from hmd.decide.learned_features import VERSION
from hmd.decide.learned_weights import FORMAT, LearnedWeights, WeightsHeader
from hmd.decide.plan import Policy
from hmd.emulate.miss_stream import MissStream
from hmd.emulate.preset import load
from hmd.learn.perceptron import Epoch, FittedNetwork, fit_network
from hmd.learn.train_settings import TrainingPlan
from hmd.learn.training_rows import (
    HEADROOM_BYTES,
    RowRequest,
    TrainingRows,
    collect_rows,
)
from hmd.simulate.journal import code_digest, digest
from hmd.simulate.known_misses import MissValues

_RULES: Final = ("benefit", "none")
_MOVES_NS: Final = (1500.0, 3000.0, 6000.0)
# Settings that rows do not depend on.
_NOT_OF_ROWS: Final = {"hidden", "epochs", "rounds", "recordings", "knob_ticks", "episodes"}
# Of the rows, where no recording is held out.
_TESTED: Final = 0.1


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights, and the loss by round and epoch."""

    weights: LearnedWeights
    rounds: tuple[tuple[Epoch, ...], ...]


def make_policy(name: str, **given: float | str | None) -> Policy:
    """Return a policy with these settings and the headroom of the simulated machine."""
    known = {knob.name for knob in registry.about(name).knobs}
    headroom = {"headroom_fraction": 0.0, "headroom_bytes": HEADROOM_BYTES}
    kept = {key: value for key, value in headroom.items() if key in known}
    return registry.make(name, {**kept, **given})


class Training:
    """One training; ``folder`` is for rows and the weights of each round."""

    def __init__(
        self,
        plan: TrainingPlan,
        folder: Path,
        *,
        workers: int = 1,
        resume: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._plan, self._folder = plan, folder
        self._workers, self._resume = workers, resume
        self._say = say or (lambda _: None)
        self._preset = load(plan.settings.preset)
        self._begun_s, self._done = time.monotonic(), 0

    def run(self) -> Trained:
        """Train; returns the weights of the last round."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rounds: list[tuple[Epoch, ...]] = []
        rows: list[dict[str, TrainingRows]] = []
        weights: LearnedWeights | None = None
        for number in range(self._plan.settings.rounds):
            rows.append(self._collect(number, weights))
            weights, epochs = self._fit(number, rows)
            rounds.append(epochs)
        assert weights is not None
        return Trained(weights, tuple(rounds))

    def weights_file(self, number: int) -> Path:
        """Return where the weights of a round are."""
        return self._folder / f"round-{number}.npz"

    def _collect(self, number: int, weights: LearnedWeights | None) -> dict[str, TrainingRows]:
        """Return the rows of a round by recording."""
        names = list(self._plan.recordings)
        with ThreadPoolExecutor(self._workers) as pool:
            found = pool.map(lambda name: self._rows(number, name, weights), names)
            return dict(zip(names, found, strict=True))

    def _rows(self, number: int, name: str, weights: LearnedWeights | None) -> TrainingRows:
        """Return a recording's rows of a round: from the folder, or by simulation."""
        settings, path = self._plan.settings, self._plan.recordings[name]
        made_by = self.weights_file(number - 1).read_bytes() if weights else b""
        seen = path.stat()
        recording = (name, seen.st_size, seen.st_mtime_ns)
        given = settings.model_dump_json(exclude=_NOT_OF_ROWS)
        key = digest(code_digest(), number, recording, sha256(made_by).hexdigest(), given)
        file = self._folder / f"rows-{number}-{name}-{key[:16]}.npz"
        if not (self._resume and file.exists()):
            stream = MissStream.read(path)
            values = MissValues(stream, self._preset)
            program = list(self._plan.recordings).index(name)
            parts = []
            cases = product(settings.fast, settings.periods)
            for case, (fast, period) in enumerate(cases):
                seed = settings.seed + 1000 * number + 100 * program + case
                parts.append(
                    collect_rows(
                        stream,
                        self._preset,
                        max(round(fast * stream.user_pages), 1),
                        self._policy(number, case, seed),
                        settings.simulation(period, seed),
                        RowRequest(program, settings.horizon_ticks, seed),
                        values,
                    )
                )
            TrainingRows.joined(parts).write(file)
        self._progress(number, name)
        return TrainingRows.read(file)

    def _policy(self, number: int, case: int, seed: int) -> Policy:
        """Return the policy that moves pages while rows are collected."""
        if number == 0:
            return make_policy(_RULES[case % len(_RULES)])
        move_ns = _MOVES_NS[int(np.random.default_rng(seed).integers(len(_MOVES_NS)))]
        weights = str(self.weights_file(number - 1).resolve())
        return make_policy("learned", weights=weights, move_ns=move_ns)

    def _fit(
        self, number: int, rounds: Sequence[dict[str, TrainingRows]]
    ) -> tuple[LearnedWeights, tuple[Epoch, ...]]:
        """Fit a network to the rows of all rounds; write and return its weights."""
        settings = self._plan.settings
        train, test = split_rows(rounds, settings.held_out, settings.seed)
        fitted = fit_network(
            train,
            test,
            settings.hidden,
            settings.epochs,
            settings.seed,
            lambda epoch: self._say(
                f"round {number + 1} of {settings.rounds}: loss {epoch.trained:.4f},"
                f" held out {epoch.held_out:.4f}"
            ),
        )
        about = (
            f"{len(train):,} rows of {len(self._plan.trained)} programs,"
            f" {number + 1} rounds, seed {settings.seed}"
        )
        weights = weights_of(fitted, settings.horizon_ticks, train, about)
        weights.write(self.weights_file(number))
        return weights, fitted.epochs

    def _progress(self, number: int, name: str) -> None:
        """Say what is done and how long the rest takes at this pace."""
        self._done += 1
        settings = self._plan.settings
        each = len(self._plan.recordings)
        left = each * settings.rounds - self._done
        left_s = (time.monotonic() - self._begun_s) / self._done * left
        self._say(
            f"round {number + 1} of {settings.rounds}: {name};"
            f" {self._done} of {each * settings.rounds}, about {left_s / 60:.0f} min left"
        )


def split_rows(
    rounds: Sequence[dict[str, TrainingRows]], held_out: Sequence[str], seed: int
) -> tuple[TrainingRows, TrainingRows]:
    """Return the rows to train on and those that decide when to stop.

    Those are of the recordings ``held_out``, or a random tenth where there is none.
    """
    train = [rows for each in rounds for name, rows in each.items() if name not in held_out]
    test = [rows for each in rounds for name, rows in each.items() if name in held_out]
    joined = TrainingRows.joined(train)
    if test:
        return joined, TrainingRows.joined(test)
    tested = np.random.default_rng(seed).random(len(joined)) < _TESTED
    return joined.take(np.flatnonzero(~tested)), joined.take(np.flatnonzero(tested))


def weights_of(
    fitted: FittedNetwork, horizon_ticks: int, rows: TrainingRows, about: str
) -> LearnedWeights:
    """Return a fitted network as the daemon reads it, with hashes of rows and code."""
    from hmd.decide.feature_kernel import FEATURES

    data = sha256()
    for column in (rows.features, rows.base, rows.future, rows.program):
        data.update(np.ascontiguousarray(column).data)
    shape = (len(FEATURES), *(len(bias) for _, bias in fitted.layers))
    header = WeightsHeader(
        format=FORMAT,
        features_version=VERSION,
        features=FEATURES,
        shape=shape,
        horizon_ticks=horizon_ticks,
        data=data.hexdigest(),
        code=sha256(code_digest().encode()).hexdigest(),
        about=about,
    )
    return LearnedWeights(header, fitted.mean, fitted.scale, fitted.layers)
