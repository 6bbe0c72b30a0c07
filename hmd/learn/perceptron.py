# SPDX-License-Identifier: MIT
"""Training of the learned policy's network: a perceptron under Poisson loss, by Adam.

Takes training rows, gives layers. The network's output is the base-2 logarithm of a page's rate
over its base rate. The loss is that of counts with this mean (Poisson), so that the prediction is
the expected number of misses, which is what a price needs; a squared error of logarithms would
predict a typical number, below the mean of bursty pages. Steps follow Kingma and Ba, "Adam", ICLR
2015. About 4 µs per row and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.learn.rows import TrainingRows
from hmd.policy.learned.trust import MAX_OCTAVES

Floats = npt.NDArray[np.float32]
Layers = tuple[tuple[Floats, Floats], ...]

_BATCH: Final = 1024
_RATE: Final = 4e-3
_DECAY: Final = 1e-4
# The share of all steps in which their size grows to its full value.
_WARM: Final = 0.1
# What a step adds to the means of gradients and of their squares.
_GAINS: Final = (0.1, 0.01)
_LN2: Final = float(np.log(2))
# Of one row, in multiples of a mean page's: a few pages must not outweigh all others.
_FUTURE_MOST: Final = 300.0
_STEP_MOST: Final = 20.0
_SIGMAS_MOST: Final = 5.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """The mean loss per row after an epoch, on the rows trained on and on those held out."""

    trained: float
    held_out: float


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """The layers of the best epoch, as the weights file has them, and the loss of all epochs.

    ``mean`` and ``scale`` normalise features. The best epoch is that with the least loss on the
    rows held out.
    """

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
        scaled = (rows.features - mean) / scale
        self.inputs = np.clip(scaled, -_SIGMAS_MOST, _SIGMAS_MOST).astype(np.float32)
        self.base = rows.base
        self.future = np.minimum(rows.future, np.float32(_FUTURE_MOST))
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
        slope = np.clip(excess * rows.weight[chosen], -_STEP_MOST, _STEP_MOST) / len(chosen)
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
        """Return inputs and outputs of all layers."""
        found = [inputs]
        for number, (matrix, bias) in enumerate(zip(self._matrices, self._biases, strict=True)):
            output = found[-1] @ matrix + bias
            found.append(np.maximum(output, 0) if number < len(self._matrices) - 1 else output)
        return found

    def _descend(self, gradients: Sequence[Floats], steps: int) -> None:
        self._steps += 1
        warm = min(1.0, self._steps / (_WARM * steps))
        fade = 0.5 * (1 + np.cos(np.pi * min(1.0, self._steps / steps)))
        rate = _RATE * warm * fade
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
