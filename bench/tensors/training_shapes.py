# SPDX-License-Identifier: MIT
"""Made training steps of several shapes and of any size, which no planner was tuned to.

A forward graph of layers gets its backward kernels in reverse order: each reads what its layer read
and wrote, and writes gradients of what it read; weights are updated with their gradients. Sizes,
times and connections follow from a seed.

The recorded steps of bench/tensors/training_steps, as a socket with many cores computes them.

They were recorded with one thread, whose kernels take so long that slow memory hardly matters. Here
``CORES`` cores share each kernel, which takes no less than its operands take at the bandwidths of
the fastest tier. This is a model: how a step scales on a real socket was not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from hmd.base.units import MIB, PAGE_BYTES
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import MemorySystem, TensorTier, TierLink
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace, read_trace

Graph = list[list[int]]
"""The layers that each layer reads, by number."""

SHARED_WEIGHTS: Final = {"recurrent": 3}
"""Layers that have weights of their own; the others use these again in turn."""

IDLE_WEIGHTS: Final = {"experts": 3}
"""Weights per layer that the step does not use, as those of the experts that were not chosen."""

CORES: Final = 24
"""Cores of a socket with six channels of memory."""

RECORDED: Final = ("residual_network", "transformer_decoder", "mlp_mixer", "recurrent_network")


def chain(layers: int, draw: np.random.Generator) -> Graph:
    """Return layers that each read the one before."""
    return [[layer - 1] if layer else [] for layer in range(layers)]


def wide(layers: int, draw: np.random.Generator) -> Graph:
    """Return blocks of eight parallel layers, each block joined by one."""
    graph: Graph = []
    joined = -1
    while len(graph) < layers:
        first = len(graph)
        graph += [[joined] if joined >= 0 else [] for _ in range(8)]
        joined = len(graph)
        graph.append(list(range(first, joined)))
    return graph[:layers]


def nested(layers: int, draw: np.random.Generator) -> Graph:
    """Return a U-shaped network: the layers of its second half also read one of the first."""
    graph = chain(layers, draw)
    for layer in range(layers // 2 + 1, layers):
        graph[layer].append(layers - 1 - layer)
    return graph


def scattered(layers: int, draw: np.random.Generator) -> Graph:
    """Return layers that read up to three earlier ones, mostly recent ones."""
    graph: Graph = [[]]
    for layer in range(1, layers):
        back = np.minimum(draw.geometric(0.1, draw.integers(0, 3)), layer)
        graph.append(sorted({layer - 1, *(layer - back).tolist()}))
    return graph


def residual(layers: int, draw: np.random.Generator) -> Graph:
    """Return a chain in which every third layer also reads the one three before."""
    graph = chain(layers, draw)
    for layer in range(3, layers, 3):
        graph[layer].append(layer - 3)
    return graph


def experts(layers: int, draw: np.random.Generator) -> Graph:
    """Return blocks of a router, the two experts that it chose, and a layer that joins them."""
    graph: Graph = []
    while len(graph) < layers:
        router = len(graph)
        graph += [[router - 1] if router else [], [router], [router], [router + 1, router + 2]]
    return graph[:layers]


SHAPES: Final[dict[str, Callable[[int, np.random.Generator], Graph]]] = {
    "chain": chain,
    "wide": wide,
    "nested": nested,
    "scattered": scattered,
    "residual": residual,
    "recurrent": chain,
    "experts": experts,
}


@dataclass
class _Step:
    """The kernels and tensors of a step in the making."""

    ms: list[float] = field(default_factory=list)
    uses: list[dict[int, int]] = field(default_factory=list)
    kind: list[TensorKind] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def tensor(self, kind: TensorKind, mib: float) -> int:
        self.kind.append(kind)
        self.mib.append(mib)
        return len(self.kind) - 1

    def kernel(self, ms: float, reads: list[int], writes: list[int]) -> None:
        uses = dict.fromkeys(reads, READ)
        for each in writes:
            uses[each] = uses.get(each, 0) | WRITE
        self.ms.append(ms)
        self.uses.append(uses)


def training_trace(shape: str, layers: int, seed: int = 0) -> TensorTrace:
    """Return a step of a network of a shape: three kernels and about three tensors per layer."""
    draw = np.random.default_rng(seed)
    graph = SHAPES[shape](layers, draw)
    size, time = draw.lognormal(3.0, 0.8, layers), draw.lognormal(1.0, 0.6, layers)
    step = _Step()
    output = [step.tensor(TensorKind.ACTIVATION, each) for each in size]
    own = [step.tensor(TensorKind.WEIGHT, each / 8) for each in size[: _own_weights(shape, layers)]]
    weight = [own[layer % len(own)] for layer in range(layers)]
    for each in range(IDLE_WEIGHTS.get(shape, 0) * layers):
        step.tensor(TensorKind.WEIGHT, size[each % layers] / 8)
    for layer, read in enumerate(graph):
        step.kernel(time[layer], [weight[layer], *(output[e] for e in read)], [output[layer]])
    gradient: dict[int, int] = {}
    for layer in reversed(range(layers)):
        read = graph[layer]
        for each in read:
            if each not in gradient:
                gradient[each] = step.tensor(TensorKind.GRADIENT, size[each])
        # An output that no layer reads has no gradient: its backward kernel reads the output alone.
        come = [gradient[layer]] if layer in gradient else []
        reads = [weight[layer], output[layer], *come, *(output[each] for each in read)]
        step.kernel(2 * time[layer], reads, [gradient[each] for each in read])
        step.kernel(0.1 * time[layer], [weight[layer], *come], [weight[layer]])
    return _trace(f"{shape}-{layers}-{seed}", step)


def _own_weights(shape: str, layers: int) -> int:
    return min(SHARED_WEIGHTS.get(shape, layers), layers)


def _trace(name: str, step: _Step) -> TensorTrace:
    pages = np.maximum(np.array(step.mib) * MIB // PAGE_BYTES, 1).astype(np.int64)
    kind = np.array(step.kind, np.int64)
    return TensorTrace(
        name=name,
        ticks_per_second=1_000_000_000,
        kernel_names=("layer",),
        kernel_name=np.zeros(len(step.ms), np.int64),
        kernel_ticks=np.rint(np.array(step.ms) * 1e6).astype(np.int64),
        fault_ticks=np.zeros((0, 0), np.int64),
        tensor_bytes=pages * PAGE_BYTES,
        tensor_kind=kind,
        tensor_storage=np.arange(len(kind)),
        tensor_persistent=kind == TensorKind.WEIGHT,
        use_start=np.cumsum([0, *(len(uses) for uses in step.uses)]),
        use_tensor=np.array([each for uses in step.uses for each in uses], np.int64),
        use_mode=np.array([mode for uses in step.uses for mode in uses.values()], np.int64),
        source="made",
    )


def scaled_system(
    trace: TensorTrace, *, fast: float, host: float, links: float, flash: float = 0.2
) -> MemorySystem:
    """Return a GPU, a host and flash in proportion to a step.

    ``fast`` and ``host`` are capacities as shares of the peak, ``fast`` of what exceeds the largest
    kernel. A link of ``links`` 1 carries out, in half of the step's ideal time, all that exceeds
    the fast tier; ``flash`` is the share of that bandwidth that flash has.
    """
    life = vitality(trace)
    peak, least = life.peak_bytes, int(life.working_bytes.max() * 1.1)
    capacity = int(least + fast * max(peak - least, 0)) // PAGE_BYTES * PAGE_BYTES
    rate = links * max(peak - capacity, peak / 20) / (trace.ideal_seconds / 2) / 1e9
    return MemorySystem(
        name="scaled",
        tiers=(
            TensorTier(name="gpu", capacity=capacity),
            TensorTier(name="host", capacity=int(host * peak) // PAGE_BYTES * PAGE_BYTES),
            TensorTier(name="ssd"),
        ),
        links=tuple(
            TierLink.model_validate({"name": name, "between": ends, "in": gbps, "out": gbps})
            for name, ends, gbps in (
                ("pcie", ("gpu", "switch"), rate),
                ("dram", ("switch", "host"), rate),
                ("flash", ("switch", "ssd"), rate * flash),
            )
        ),
    )


FOLDER: Final = Path(__file__).parent / "training_steps"


def recorded_step(name: str, system: MemorySystem) -> TensorTrace:
    """Return a recorded step on a socket with the first tier of ``system``."""
    return on_socket(read_trace(FOLDER / f"{name}.npz"), system)


def on_socket(trace: TensorTrace, system: MemorySystem) -> TensorTrace:
    """Return a step of one core on ``CORES`` cores; ``system`` has bandwidths of its tiers."""
    fast = system.tiers[0]
    used = trace.tensor_bytes[trace.use_tensor]
    least = np.zeros(len(used))
    for bit, rate in ((READ, fast.read), (WRITE, fast.write)):
        least += np.where(trace.use_mode & bit, used / ((rate or 1.0) * 1e9), 0.0)
    operands = np.bincount(trace.use_kernel, least, trace.kernels)
    seconds = np.maximum(trace.kernel_seconds / CORES, operands)
    ticks = np.maximum(np.rint(seconds * trace.ticks_per_second), 1).astype(int)
    return replace(trace, kernel_ticks=ticks)
