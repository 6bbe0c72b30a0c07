# SPDX-License-Identifier: MIT
"""Small models, and training of them with and without plans on counted devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hmd.torch
from hmd.tensors.memory_system import Roofline
from hmd.torch.counted_device import CountedDevice, Link
from hmd.torch.device import HostPool
from hmd.torch.saved_tensors import SavedTensors
from hmd.torch.schedule import StepSchedule

SLOW = Roofline(0.2, 15.0)
LINK = Link(1.2e9, 1.2e9, 0.3e9)


class Block(nn.Module):
    """A layer of a transformer; queries, keys and values are parts of one storage."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        heads = (rows, length, 4, width // 4)
        q, k, v = (
            each.view(heads).transpose(1, 2) for each in self.mixed(self.before(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    """A decoder; its embedding and its output share their weights."""

    def __init__(self, width: int = 32, layers: int = 5, words: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.output = nn.Linear(width, words, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: Any) -> Any:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


@dataclass
class Run:
    """What a training gave: losses as bytes, weights, and peak and seconds of each step."""

    losses: list[bytes] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    plans: list[StepSchedule] = field(default_factory=list)
    device: CountedDevice | None = None
    host_bytes: int = 0

    def same(self, other: Run) -> bool:
        return self.losses == other.losses and all(
            torch.equal(mine, others)
            for mine, others in zip(self.weights, other.weights, strict=True)
        )


Step = Callable[[nn.Module, int], Any]
"""Takes the model and the number of the step; returns the loss."""


def words(rows: int, length: int = 32) -> Any:
    return torch.randint(0, 64, (rows, length))


def language_step(model: nn.Module, number: int, rows: int = 16) -> Any:
    batch = words(rows)
    return functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def train(
    make: Callable[[], nn.Module],
    step: Step,
    *,
    gpu: int | None = None,
    host: int = 64 << 20,
    steps: int = 5,
    device: CountedDevice | None = None,
    wrap: Callable[[Any, CountedDevice], Any] = lambda optimizer, device: optimizer,
    **options: Any,
) -> Run:
    """Train with SGD, without a plan or within ``gpu`` bytes."""
    torch.manual_seed(0)
    model = make()
    device = device or CountedDevice(gpu or 1 << 40, SLOW, LINK)
    run = Run(device=device)
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), device)
    options = {"report": run.plans.append, **options}
    with ExitStack() as contexts:
        contexts.enter_context(device)
        fitted = gpu and contexts.enter_context(
            hmd.torch.fit(model, optimizer, gpu, host, device=device, **options)
        )
        for number in range(steps):
            device.reset_peak()
            begin = device.seconds()
            optimizer.zero_grad()
            loss = step(model, number)
            loss.backward()
            optimizer.step()
            run.losses.append(loss.detach().numpy().tobytes())
            run.peaks.append(device.peak_bytes())
            run.seconds.append(device.seconds() - begin)
            del loss
        run.weights = [each.detach().clone() for each in model.parameters()]
        run.host_bytes = fitted.host_bytes if fitted else 0
    return run


def hooks(device: CountedDevice, host: int = 1 << 20) -> SavedTensors:
    """Return the hooks without a schedule."""
    saved = SavedTensors(device, HostPool(host, 1 << 12, device.host_empty))
    saved.begin(lambda key: None, (), record=False)
    return saved


def tensors(optimizer: Any) -> Iterator[Any]:
    for state in optimizer.state.values():
        yield from (each for each in state.values() if isinstance(each, torch.Tensor))
