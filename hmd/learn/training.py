# SPDX-License-Identifier: MIT
"""Training of the learned policy: simulations that give rows, and a network fitted to them.

Takes recorded programs, gives a weights file's content. The policies ``benefit`` and ``none`` move
the pages meanwhile, in turns of the cases of a program: ``learned`` corrects the former within
bounds, so that its own moves leave rows much like these. Rows are kept in a folder, so that an
interrupted training continues. Equal settings and recordings give equal weights, with any number of
workers, here or on a cluster.

The network is a perceptron; its output is the base-2 logarithm of a page's rate over its base rate.
The loss is that of Poisson counts, so that the prediction is an expected number of misses, as a
price needs it. Steps follow Kingma and Ba, "Adam", ICLR 2015. About 2 µs per row and epoch.

``policy_speeds`` compares policies on recorded programs by the exact timing model, with samples at
their cost; first touch runs without a daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise, product
from pathlib import Path
from statistics import geometric_mean
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.base.untrusted_files import DAMAGED
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.learn.rows import HEADROOM_BYTES, MissValues, RowRequest, TrainingRows, collect_rows
from hmd.learn.settings import TrainingPlan, TrainSettings
from hmd.policy import registry
from hmd.policy.learned.network import (
    FEATURES,
    FORMAT,
    MAX_OCTAVES,
    VERSION,
    Floats,
    LearnedWeights,
    WeightsHeader,
)
from hmd.policy.plan import Policy
from hmd.simulate.cases import read_program
from hmd.simulate.executors import Executor, code_digest, digest, threads_of
from hmd.simulate.simulation import simulate

_RULES: Final = ("benefit", "none")
# Settings that rows do not depend on.
_NOT_OF_ROWS: Final = {"hidden", "epochs", "rounds", "recordings", "knob_ticks", "episodes"}
# Time left is in minutes from here on.
_MINUTES_FROM_S: Final = 120.0
# Of the rows, where no recording is held out.
_TESTED: Final = 0.1

_BATCH: Final = 1024
_STEP: Final = 4e-3
_DECAY: Final = 1e-4
# The share of all steps in which their size grows to its full value.
_WARM: Final = 0.1
# What a step adds to the means of gradients and of their squares.
_GAINS: Final = (0.1, 0.01)
_LN2: Final = float(np.log(2))
# Of one row, in multiples of a mean page's: a few pages must not outweigh all others.
_MAX_FUTURE: Final = 300.0
_MAX_SLOPE: Final = 20.0

FIRST_TOUCH = "first touch"

Layers = tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """The mean loss per row after an epoch, on the rows trained on and on those held out."""

    trained: float
    held_out: float


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """The best epoch's layers, how features are normalised, and the loss of all epochs."""

    mean: Floats
    scale: Floats
    layers: Layers
    epochs: tuple[Epoch, ...]


def fit_network(
    rows: TrainingRows,
    held_out: TrainingRows,
    hidden: Sequence[int],
    epochs: int,
    seed: int,
    say: Callable[[Epoch], None] | None = None,
) -> FittedNetwork:
    """Train a network; ``held_out`` rows decide when to stop."""
    mean = rows.features.mean(axis=0)
    scale = np.maximum(rows.features.std(axis=0), np.float32(1e-3))
    train, test = (_Scaled(each, mean, scale) for each in (rows, held_out))
    network = _Network((rows.features.shape[1], *hidden, 1), seed)
    random = np.random.default_rng(seed)
    steps = epochs * -(-len(rows) // _BATCH)
    best, layers, found = np.inf, network.layers(), []
    for _ in range(epochs):
        order = random.permutation(len(rows))
        for begin in range(0, len(rows), _BATCH):
            network.step(train, order[begin : begin + _BATCH], steps)
        found.append(Epoch(network.loss(train), network.loss(test)))
        if found[-1].held_out < best:
            best, layers = found[-1].held_out, network.layers()
        if say is not None:
            say(found[-1])
    return FittedNetwork(mean, scale, layers, tuple(found))


class _Scaled:
    """Rows as the network takes them; each program weighs the same."""

    def __init__(self, rows: TrainingRows, mean: Floats, scale: Floats) -> None:
        self.inputs = ((rows.features - mean) / scale).astype(np.float32)
        self.base = rows.base
        self.future = np.minimum(rows.future, np.float32(_MAX_FUTURE))
        count = np.bincount(rows.program, minlength=1)
        share = len(rows) / max(int(np.count_nonzero(count)), 1)
        self.weight = (share / count[rows.program]).astype(np.float32)


class _Network:
    """Weights under training, with the moments of Adam."""

    def __init__(self, shape: Sequence[int], seed: int) -> None:
        random = np.random.default_rng(seed)
        self._matrices = [
            random.normal(0, np.sqrt(2 / into), (into, out)).astype(np.float32)
            for into, out in pairwise(shape)
        ]
        self._matrices[-1][...] = 0  # begins with the base rate
        self._biases = [np.zeros(out, np.float32) for out in shape[1:]]
        self._moments = [(np.zeros_like(p), np.zeros_like(p)) for p in self._parameters]
        self._steps = 0

    @property
    def _parameters(self) -> list[Floats]:
        return [*self._matrices, *self._biases]

    def layers(self) -> Layers:
        """Return a copy, matrices by output and input."""
        pairs = zip(self._matrices, self._biases, strict=True)
        return tuple((matrix.T.copy(), bias.copy()) for matrix, bias in pairs)

    def loss(self, rows: _Scaled) -> float:
        """Return the mean loss per row."""
        octaves = np.clip(self._forward(rows.inputs)[-1][:, 0], -MAX_OCTAVES, MAX_OCTAVES)
        rate = rows.base * np.exp2(octaves)
        loss = (rate - rows.future * np.log(np.maximum(rate, 1e-9))) * rows.weight
        return float(loss.mean()) if len(loss) else 0.0

    def step(self, rows: _Scaled, chosen: npt.NDArray[np.int64], steps: int) -> None:
        """Take one of ``steps`` steps down the gradient of the chosen rows."""
        activations = self._forward(rows.inputs[chosen])
        octaves = np.clip(activations[-1][:, 0], -MAX_OCTAVES, MAX_OCTAVES)
        excess = (rows.base[chosen] * np.exp2(octaves) - rows.future[chosen]) * _LN2
        slope = np.clip(excess * rows.weight[chosen], -_MAX_SLOPE, _MAX_SLOPE) / len(chosen)
        back: Floats = slope[:, None].astype(np.float32)
        matrices: list[Floats] = []
        biases: list[Floats] = []
        for layer in reversed(range(len(self._matrices))):
            matrices.insert(0, activations[layer].T @ back)
            biases.insert(0, back.sum(axis=0))
            if layer:
                back = (back @ self._matrices[layer].T) * (activations[layer] > 0)
        self._descend([*matrices, *biases], steps)

    def _forward(self, inputs: Floats) -> list[Floats]:
        found = [inputs]
        for number, (matrix, bias) in enumerate(zip(self._matrices, self._biases, strict=True)):
            output = found[-1] @ matrix + bias
            found.append(np.maximum(output, 0) if number < len(self._matrices) - 1 else output)
        return found

    def _descend(self, gradients: Sequence[Floats], steps: int) -> None:
        self._steps += 1
        warm = min(1.0, self._steps / (_WARM * steps))
        fade = 0.5 * (1 + np.cos(np.pi * min(1.0, self._steps / steps)))
        rate = _STEP * warm * fade
        trained = zip(self._parameters, gradients, self._moments, strict=True)
        for value, gradient, moments in trained:
            for kept, new, gain in zip(moments, (gradient, gradient**2), _GAINS, strict=True):
                kept[...] += np.float32(gain) * (new - kept)
            slope, square = (
                kept / (1 - (1 - gain) ** self._steps)
                for kept, gain in zip(moments, _GAINS, strict=True)
            )
            change = slope / (np.sqrt(square) + 1e-8) + _DECAY * value
            value[...] -= (rate * change).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights, and the loss by epoch."""

    weights: LearnedWeights
    epochs: tuple[Epoch, ...]


def make_policy(name: str, **given: float | str | None) -> Policy:
    """Return a policy with these settings and the headroom of the simulated machine."""
    known = set(registry.info(name).settings_type.model_fields)
    headroom = {"headroom": 0.0, "headroom_min": HEADROOM_BYTES}
    kept = {key: value for key, value in headroom.items() if key in known}
    return registry.create(name, {**kept, **given})


def program_rows(stream: MissStream, settings: TrainSettings, program: int) -> TrainingRows:
    """Simulate a program, by its number, in all cases; return its rows."""
    preset = load(settings.preset)
    values, parts = MissValues(stream, preset), []
    for case, (fast, period) in enumerate(product(settings.fast, settings.periods)):
        seed = settings.seed + 100 * program + case
        parts.append(
            collect_rows(
                stream,
                preset,
                max(round(fast * stream.user_pages), 1),
                make_policy(_RULES[case % len(_RULES)]),
                settings.simulation(period, seed),
                RowRequest(program, settings.horizon_ticks, seed),
                values,
            )
        )
    return TrainingRows.joined(parts)


def _whole_rows(file: Path) -> TrainingRows | None:
    """Return the rows of an interrupted training, None where they are missing or damaged."""
    try:
        return TrainingRows.read(file)
    except DAMAGED:
        return None


class Training:
    """One training; ``folder`` is for rows."""

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
        self._executor, self._resume = executor or Executor(workers), resume
        self._say = say or (lambda _: None)
        self._begun_s, self._done, self._simulated = time.monotonic(), 0, 0

    def run(self) -> Trained:
        """Train; returns the weights."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._plan.recordings.values():
            read_program(path)  # now, not after hours of simulations
        self._begun_s = time.monotonic()
        names = list(self._plan.recordings)
        with threads_of(self._executor) as pool:
            rows = dict(zip(names, pool.map(self._rows, names), strict=True))
        return self._fit(rows)

    def _rows(self, name: str) -> TrainingRows:
        """Return a recording's rows: from the folder, or by simulation."""
        settings, path = self._plan.settings, self._plan.recordings[name]
        seen = path.stat()
        recording = (name, seen.st_size, seen.st_mtime_ns)
        given = settings.model_dump_json(exclude=_NOT_OF_ROWS)
        file = self._folder / f"rows-{name}-{digest(code_digest(), recording, given)[:16]}.npz"
        rows = _whole_rows(file) if self._resume else None
        if rows is None:
            number = list(self._plan.recordings).index(name)
            rows = self._executor.run(program_rows, read_program(path), settings, number)
            rows.write(file)
            self._simulated += 1
        self._progress(name)
        return rows

    def _fit(self, rows: dict[str, TrainingRows]) -> Trained:
        settings = self._plan.settings
        train, test = split_rows(rows, settings.held_out, settings.seed)
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
            lambda epoch: self._say(f"loss {epoch.trained:.4f}, held out {epoch.held_out:.4f}"),
        )
        about = f"{len(train):,} rows of {len(self._plan.trained)} programs, seed {settings.seed}"
        return Trained(weights_of(fitted, settings.horizon_ticks, train, about), fitted.epochs)

    def _progress(self, name: str) -> None:
        """Say what is done and how long the rest takes at this pace."""
        self._done += 1
        count = len(self._plan.recordings)
        # Rows that an interrupted training left take no time.
        left_s = (time.monotonic() - self._begun_s) / max(self._simulated, 1) * (count - self._done)
        about = f"{left_s / 60:.0f} min" if left_s >= _MINUTES_FROM_S else f"{left_s:.0f} s"
        known = f", about {about} left" if self._simulated else ""
        self._say(f"{name}; {self._done} of {count}{known}")


def split_rows(
    rows: dict[str, TrainingRows], held_out: Sequence[str], seed: int
) -> tuple[TrainingRows, TrainingRows]:
    """Return the rows to train on, and those (``held_out``, else a tenth) that say when to stop."""
    joined = TrainingRows.joined([each for name, each in rows.items() if name not in held_out])
    test = [each for name, each in rows.items() if name in held_out]
    if test:
        return joined, TrainingRows.joined(test)
    tested = np.random.default_rng(seed).random(len(joined)) < _TESTED
    return joined.take(np.flatnonzero(~tested)), joined.take(np.flatnonzero(tested))


def weights_of(
    fitted: FittedNetwork, horizon_ticks: int, rows: TrainingRows, about: str
) -> LearnedWeights:
    """Return a fitted network as the daemon reads it, with hashes of rows and code."""
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
