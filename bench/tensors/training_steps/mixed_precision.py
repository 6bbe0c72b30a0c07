# SPDX-License-Identifier: MIT
"""The step that Myelin streams: 20 bytes per parameter, computed from sizes instead of recorded.

Mixed precision with Adam (AxoNN: Singh and Bhatele, IPDPS 2022): weights and gradients in two bytes
per parameter, and in four again for the update, with two more numbers of four bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace


@dataclass(frozen=True, slots=True)
class MixedPrecisionStep:
    """One GPU's part of a step: ``layers`` of as many parameters, in microbatches of tokens.

    ``flops`` are those that the GPU reaches, ``bandwidth`` is its memory's, in bytes per second.
    An activation between two layers has ``activation_bytes``; layers compute theirs again.
    """

    parameters: int = 500_000_000
    layers: int = 8
    bucket: int = 16_000_000
    microbatches: int = 16
    tokens: int = 8192
    activation_bytes: int = 50_000_000
    flops: float = 50e12
    bandwidth: float = 900e9

    @property
    def resident_bytes(self) -> int:
        """Bytes of parameters, gradients and state without streaming: 20 per parameter."""
        return 20 * self.parameters

    @property
    def streamed_bytes(self) -> int:
        """AxoNN's bytes with streaming: 4 per parameter and 16 per parameter of a bucket."""
        return 4 * self.parameters + 16 * self.bucket

    def trace(self) -> TensorTrace:
        """Return the step: forward and backward of each microbatch, then updates by bucket."""
        builder = _StepColumns()
        share = self.parameters // self.layers
        weights = [builder.tensor(2 * share, TensorKind.WEIGHT, True) for _ in range(self.layers)]
        gradients = [builder.tensor(2 * share, TensorKind.GRADIENT) for _ in range(self.layers)]
        forward = 2 * share * self.tokens / self.flops
        for _ in range(self.microbatches):
            values = [
                builder.tensor(self.activation_bytes, TensorKind.ACTIVATION)
                for _ in range(self.layers + 1)
            ]
            builder.kernel("load", 0.0, [(values[0], WRITE)])
            for layer in range(self.layers):
                uses = [(weights[layer], READ), (values[layer], READ), (values[layer + 1], WRITE)]
                builder.kernel("forward", forward, uses)
            for layer in reversed(range(self.layers)):
                uses = [(weights[layer], READ), (values[layer], READ | WRITE)]
                uses += [(values[layer + 1], READ), (gradients[layer], READ | WRITE)]
                builder.kernel("backward", 3 * forward, uses)
        for layer in range(self.layers):
            for begin in range(0, share, self.bucket):
                size = 4 * min(self.bucket, share - begin)
                state = [builder.tensor(size, TensorKind.OPTIMIZER, True) for _ in range(3)]
                wide = builder.tensor(size, TensorKind.WORKSPACE)
                builder.kernel(
                    "widen", 1.5 * size / self.bandwidth, [(gradients[layer], READ), (wide, WRITE)]
                )
                uses = [(wide, READ), (weights[layer], READ | WRITE)]
                uses += [(each, READ | WRITE) for each in state]
                builder.kernel("adam", 7.5 * size / self.bandwidth, uses)
        return builder.trace(f"mixed-precision-{self.parameters // 1_000_000}M")


class _StepColumns:
    """Collects kernels and tensors as columns."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, TensorKind, bool]] = []
        self._kernels: list[tuple[str, float, list[tuple[int, int]]]] = []

    def tensor(self, size: int, kind: TensorKind, persistent: bool = False) -> int:
        """Add a tensor and return its number."""
        self._tensors.append((size, kind, persistent))
        return len(self._tensors) - 1

    def kernel(self, name: str, seconds: float, uses: list[tuple[int, int]]) -> None:
        """Add a kernel."""
        self._kernels.append((name, seconds, uses))

    def trace(self, name: str) -> TensorTrace:
        """Return what was added, in nanoseconds."""
        names = tuple(dict.fromkeys(name for name, _, _ in self._kernels))
        uses = [use for _, _, each in self._kernels for use in each]
        size, kind, persistent = (np.array(column) for column in zip(*self._tensors, strict=True))
        return TensorTrace(
            name=name,
            ticks_per_second=1_000_000_000,
            kernel_names=names,
            kernel_name=np.array([names.index(name) for name, _, _ in self._kernels]),
            kernel_ticks=np.array([round(seconds * 1e9) for _, seconds, _ in self._kernels]),
            fault_ticks=np.zeros((0, 0), np.int64),
            tensor_bytes=size,
            tensor_kind=kind,
            tensor_storage=np.arange(len(size)),
            tensor_persistent=persistent,
            use_start=np.cumsum([0, *(len(each) for _, _, each in self._kernels)]),
            use_tensor=np.array([tensor for tensor, _ in uses]),
            use_mode=np.array([mode for _, mode in uses]),
            source="computed from sizes (AxoNN, IPDPS 2022)",
        )
