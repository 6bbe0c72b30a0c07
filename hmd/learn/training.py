# SPDX-License-Identifier: MIT
"""Training of the learned policy: rounds of simulations that give rows, and of fits to them.

Takes recorded programs, gives a weights file's content. In the first round rules move the pages; in
each later one the network so far does, with prices at random, so that the rows show what its own
moves leave behind. A network is fitted to the rows of all rounds. Rows are kept in a folder, so
that an interrupted training continues. Equal settings and recordings give equal weights, with any
number of workers, here or on a cluster.

``policy_speeds`` compares policies on recorded programs by the exact timing model, with samples at
their cost; first touch runs without a daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from hmd.base.errors import HmdError
from hmd.base.untrusted_files import DAMAGED
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.perceptron import Epoch, FittedNetwork, fit_network
from hmd.learn.rows import HEADROOM_BYTES, MissValues, RowRequest, TrainingRows, collect_rows
from hmd.learn.settings import TrainingPlan, TrainSettings
from hmd.policy import registry
from hmd.policy.learned.features import VERSION
from hmd.policy.learned.network import FORMAT, LearnedWeights, WeightsHeader
from hmd.policy.plan import Policy
from hmd.simulate.cases import read_program
from hmd.simulate.executors import Executor, LocalExecutor, threads_of
from hmd.simulate.journal import code_digest, digest
from hmd.simulate.simulation import simulate

_RULES: Final = ("benefit", "none")
_MOVES_NS: Final = (1500.0, 3000.0, 6000.0)
# Settings that rows do not depend on.
_NOT_OF_ROWS: Final = {"hidden", "epochs", "rounds", "recordings", "knob_ticks", "episodes"}
# Time left is in minutes from here on.
_MINUTES_FROM_S: Final = 120.0
# Of the rows, where no recording is held out.
_TESTED: Final = 0.1

FIRST_TOUCH = "first touch"


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights, and the loss by round and epoch."""

    weights: LearnedWeights
    rounds: tuple[tuple[Epoch, ...], ...]


def make_policy(name: str, **given: float | str | None) -> Policy:
    """Return a policy with these settings and the headroom of the simulated machine."""
    known = set(registry.info(name).settings_type.model_fields)
    headroom = {"headroom": 0.0, "headroom_min": HEADROOM_BYTES}
    kept = {key: value for key, value in headroom.items() if key in known}
    return registry.create(name, {**kept, **given})


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """The rows of a ``program``, by its number, in a round; the ``weights`` file, if it has any."""

    settings: TrainSettings
    number: int
    program: int
    weights: bytes


def round_rows(stream: MissStream, request: RoundRequest) -> TrainingRows:
    """Simulate a program in all cases of a round; return its rows."""
    settings, preset = request.settings, load(request.settings.preset)
    values, parts = MissValues(stream, preset), []
    with TemporaryDirectory() as folder:
        weights = Path(folder, "weights.npz")
        weights.write_bytes(request.weights)
        for case, (fast, period) in enumerate(product(settings.fast, settings.periods)):
            seed = settings.seed + 1000 * request.number + 100 * request.program + case
            parts.append(
                collect_rows(
                    stream,
                    preset,
                    max(round(fast * stream.user_pages), 1),
                    _moving(request.number, case, seed, weights),
                    settings.simulation(period, seed),
                    RowRequest(request.program, settings.horizon_ticks, seed),
                    values,
                )
            )
    return TrainingRows.joined(parts)


def _moving(number: int, case: int, seed: int, weights: Path) -> Policy:
    """Return the policy that moves pages while rows of a round are collected."""
    if number == 0:
        return make_policy(_RULES[case % len(_RULES)])
    move_ns = _MOVES_NS[int(np.random.default_rng(seed).integers(len(_MOVES_NS)))]
    return make_policy("learned", weights=str(weights), move_ns=move_ns)


def _whole_rows(file: Path) -> TrainingRows | None:
    """Return the rows of an interrupted training, None where they are missing or damaged."""
    try:
        return TrainingRows.read(file)
    except DAMAGED:
        return None


class Training:
    """One training; ``folder`` is for rows and the weights of each round."""

    def __init__(
        self,
        plan: TrainingPlan,
        folder: Path,
        *,
        workers: int = 1,
        executor: Executor | None = None,
        resume: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Run simulations by an ``executor`` or, without one, by ``workers`` of this process."""
        self._plan, self._folder = plan, folder
        self._executor, self._resume = executor or LocalExecutor(workers), resume
        self._say = say or (lambda _: None)
        self._begun_s, self._done, self._simulated = time.monotonic(), 0, 0

    def run(self) -> Trained:
        """Train; returns the weights of the last round."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._plan.recordings.values():
            read_program(path)  # now, not after hours of simulations
        self._begun_s = time.monotonic()
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
        with threads_of(self._executor) as pool:
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
        rows = _whole_rows(file) if self._resume else None
        if rows is None:
            program = list(self._plan.recordings).index(name)
            request = RoundRequest(settings, number, program, made_by)
            rows = self._executor.run(round_rows, read_program(path), request)
            rows.write(file)
            self._simulated += 1
        self._progress(number, name)
        return rows

    def _fit(
        self, number: int, rounds: Sequence[dict[str, TrainingRows]]
    ) -> tuple[LearnedWeights, tuple[Epoch, ...]]:
        """Fit a network to the rows of all rounds; write and return its weights."""
        settings = self._plan.settings
        train, test = split_rows(rounds, settings.held_out, settings.seed)
        if not len(train) or not len(test):
            raise HmdError(
                "the recordings give no rows to train on: record a larger program, or give less"
                " fast memory"
            )
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
        # Rows that an interrupted training left take no time.
        left_s = (time.monotonic() - self._begun_s) / max(self._simulated, 1) * left
        about = f"{left_s / 60:.0f} min" if left_s >= _MINUTES_FROM_S else f"{left_s:.0f} s"
        known = f", about {about} left" if self._simulated else ""
        self._say(
            f"round {number + 1} of {settings.rounds}: {name};"
            f" {self._done} of {each * settings.rounds}{known}"
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
    from hmd.policy.learned.features import FEATURES

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


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """A program with a share of fast memory: seconds by policy, and whether it was held out."""

    program: str
    fast: float
    held_out: bool
    seconds: dict[str, float]

    def times(self, name: str) -> float:
        """Return a policy's speed relative to first touch."""
        return self.seconds[FIRST_TOUCH] / self.seconds[name]


def policy_speeds(
    plan: TrainingPlan,
    policies: Mapping[str, Callable[[], Policy]],
    say: Callable[[str], None] | None = None,
) -> list[SpeedRow]:
    """Return a row for each recording and share of fast memory."""
    say, settings = say or (lambda _: None), plan.settings
    preset, found = load(settings.preset), []
    made = settings.simulation(settings.periods[0], settings.seed)
    free = replace(made, sampling=replace(made.sampling, free=True))
    for name, path in plan.recordings.items():
        stream = read_program(path)
        for fast in settings.fast:
            pages = max(round(fast * stream.user_pages), 1)
            seconds = {}
            for label, make in policies.items():
                say(f"{name}, {fast:.0%} fast: {label}")
                charged = free if label == FIRST_TOUCH else made
                seconds[label] = simulate(stream, preset, pages, make(), charged).runtime_s
            found.append(SpeedRow(name, fast, name in settings.held_out, seconds))
    return found


def mean_speed(rows: Sequence[SpeedRow], name: str) -> float:
    """Return the geometric mean of a policy's speeds relative to first touch."""
    return geometric_mean(row.times(name) for row in rows)
