"""The network of the learned policy: a small perceptron, run in one kernel.

Takes normalised features of all rows and a network's layers, gives one number per row. Rows are
computed in blocks that stay in the core's first cache, without threads. 100,000 rows of a network
of 19-16-8-1 take about 3 ms where their features are in the second
(``python -m bench.learned_policy.decision_cost``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Float32Plane, Float32s, Int64s, inline, kernel

WIDTH_MOST: Final = 64
"""Most neurons of a layer, and most features."""

INPUTS: Final = 4
NEURONS: Final = 2
"""Inputs and neurons at a time: the weights of both are in registers."""

_BLOCK: Final = 256


@inline
def _layer(
    weight: Float32s, begin: int, inputs: Float32s, width: int, outputs: Float32s, out: int
) -> int:
    """Fill ``outputs`` with a layer of a block; returns where the weights of the next begin.

    Inputs and outputs are one after the other, of ``_BLOCK`` rows each. As their distances are
    constants, LLVM compares one pair of arrays before it takes the loop that vectorises.
    """
    for neuron in range(0, out, NEURONS):
        a = begin + neuron * width
        b = a + width
        y = outputs[neuron * _BLOCK : (neuron + NEURONS) * _BLOCK]
        for one in range(NEURONS):
            for i in range(_BLOCK):
                y[one * _BLOCK + i] = weight[begin + out * width + neuron + one]
        for first in range(0, width, INPUTS):
            a0, a1, a2, a3 = (
                weight[a + first], weight[a + first + 1], weight[a + first + 2],
                weight[a + first + 3],
            )  # fmt: skip
            b0, b1, b2, b3 = (
                weight[b + first], weight[b + first + 1], weight[b + first + 2],
                weight[b + first + 3],
            )  # fmt: skip
            x = inputs[first * _BLOCK : (first + INPUTS) * _BLOCK]
            for i in range(_BLOCK):
                x0, x1, x2, x3 = x[i], x[_BLOCK + i], x[2 * _BLOCK + i], x[3 * _BLOCK + i]
                y[i] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                y[_BLOCK + i] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
    return begin + out * width + out


@kernel
def run_layers(features: Float32Plane, shape: Int64s, weight: Float32s, result: Float32s) -> None:
    """Fill ``result``, shape ``(n,)``, of ``features``, shape ``(features, n)``.

    ``shape`` are the widths of a network of whole ``INPUTS`` and ``NEURONS``: inputs that there are
    no features for are 0. ``weight`` has the layers one after the other: a matrix by output and
    input, then the biases. Between layers max(x, 0).
    """
    rows, layers = features.shape[1], len(shape) - 1
    inputs = np.zeros(WIDTH_MOST * _BLOCK, np.float32)
    outputs = np.zeros(WIDTH_MOST * _BLOCK, np.float32)
    for begin in range(0, rows, _BLOCK):
        count, at = min(_BLOCK, rows - begin), 0
        for feature in range(shape[0]):
            x = inputs[feature * _BLOCK : (feature + 1) * _BLOCK]
            if feature < features.shape[0]:
                for i in range(count):
                    x[i] = features[feature, begin + i]
            else:
                for i in range(count):
                    x[i] = 0
        for layer in range(layers):
            at = _layer(weight, at, inputs, shape[layer], outputs, shape[layer + 1])
            if layer < layers - 1:
                for i in range(shape[layer + 1] * _BLOCK):
                    outputs[i] = max(outputs[i], np.float32(0))
            inputs, outputs = outputs, inputs
        for i in range(count):
            result[begin + i] = inputs[i]


def run_network(
    features: npt.NDArray[np.float32],
    shape: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Return the output of each row, shape ``(n,)``; arguments as of :func:`run_layers`."""
    result = np.empty(features.shape[1], np.float32)
    run_layers(features, shape, weight, result)
    return result
