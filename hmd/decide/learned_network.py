"""The network of the learned policy: a small perceptron, run in one kernel.

Takes normalised features of all rows and a network's layers, gives one number per row. Rows are
computed in blocks that stay in the core's first cache, without threads. 100,000 rows of a network
of 19-16-8-1 take about 3 ms where their features are in the second
(``python -m bench.learned_cost``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.heat.kernels import Float32Plane, Float32s, Int64s, inline, kernel

WIDTH_MOST: Final = 64
"""Most neurons of a layer, and most features."""

_BLOCK: Final = 128


@inline
def _layer(
    weight: Float32s, begin: int, inputs: Float32Plane, width: int, outputs: Float32Plane, out: int
) -> int:
    """Fill ``outputs`` with a layer of a block; returns where the weights of the next begin.

    Two neurons and three inputs at a time: a sum is loaded and stored for every third input, and
    an input is loaded for every second neuron. More of them would not vectorise: LLVM compares at
    most eight pairs of arrays to know that they do not overlap.
    """
    whole, even = width // 3 * 3, out // 2 * 2
    for neuron in range(0, even, 2):
        a = begin + neuron * width
        b = a + width
        bias_a, bias_b = (
            weight[begin + out * width + neuron],
            weight[begin + out * width + neuron + 1],
        )
        for i in range(_BLOCK):
            outputs[neuron, i] = bias_a
        for i in range(_BLOCK):
            outputs[neuron + 1, i] = bias_b
        for first in range(0, whole, 3):
            a0, a1, a2 = weight[a + first], weight[a + first + 1], weight[a + first + 2]
            b0, b1, b2 = weight[b + first], weight[b + first + 1], weight[b + first + 2]
            for i in range(_BLOCK):
                x0, x1, x2 = inputs[first, i], inputs[first + 1, i], inputs[first + 2, i]
                outputs[neuron, i] += a0 * x0 + a1 * x1 + a2 * x2
                outputs[neuron + 1, i] += b0 * x0 + b1 * x1 + b2 * x2
        for rest in range(whole, width):
            a0, b0 = weight[a + rest], weight[b + rest]
            for i in range(_BLOCK):
                outputs[neuron, i] += a0 * inputs[rest, i]
            for i in range(_BLOCK):
                outputs[neuron + 1, i] += b0 * inputs[rest, i]
    for neuron in range(even, out):
        a = begin + neuron * width
        for i in range(_BLOCK):
            outputs[neuron, i] = weight[begin + out * width + neuron]
        for one in range(width):
            a0 = weight[a + one]
            for i in range(_BLOCK):
                outputs[neuron, i] += a0 * inputs[one, i]
    return begin + out * width + out


@kernel
def run_layers(features: Float32Plane, shape: Int64s, weight: Float32s, result: Float32s) -> None:
    """Fill ``result``, shape ``(n,)``.

    ``features`` has shape ``(shape[0], n)``. ``weight`` has the layers one after the other: a
    matrix by output and input, then the biases. Between layers max(x, 0).
    """
    rows, layers = features.shape[1], len(shape) - 1
    first = np.zeros((WIDTH_MOST, _BLOCK), np.float32)
    second = np.zeros((WIDTH_MOST, _BLOCK), np.float32)
    for begin in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - begin)
        for feature in range(shape[0]):
            for i in range(count):
                first[feature, i] = features[feature, begin + i]
        at = 0
        for layer in range(layers):
            width, out = shape[layer], shape[layer + 1]
            if layer % 2 == 0:
                at = _layer(weight, at, first, width, second, out)
                if layer < layers - 1:
                    for neuron in range(out):
                        for i in range(_BLOCK):
                            second[neuron, i] = max(second[neuron, i], np.float32(0))
            else:
                at = _layer(weight, at, second, width, first, out)
                if layer < layers - 1:
                    for neuron in range(out):
                        for i in range(_BLOCK):
                            first[neuron, i] = max(first[neuron, i], np.float32(0))
        for i in range(count):
            result[begin + i] = second[0, i] if layers % 2 else first[0, i]


def run_network(
    features: npt.NDArray[np.float32],
    shape: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Return the output of each row, shape ``(n,)``; arguments as of :func:`run_layers`."""
    result = np.empty(features.shape[1], np.float32)
    run_layers(features, shape, weight, result)
    return result
