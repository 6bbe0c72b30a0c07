"""The network of the learned policy: a small perceptron, run in one kernel.

Takes normalised features of all rows and a network's layers, gives one number per row. Rows are
computed in blocks that stay in the core's first cache, without threads. 100,000 rows of a network
of 24-32-16-1 take about 10 ms (``python -m bench.learned_cost``).
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

    Four inputs at a time: a sum is loaded and stored a quarter as often.
    """
    for neuron in range(out):
        at = begin + neuron * width
        bias = weight[begin + out * width + neuron]
        for i in range(_BLOCK):
            outputs[neuron, i] = bias
        whole = width // 4 * 4
        for first in range(0, whole, 4):
            w0, w1 = weight[at + first], weight[at + first + 1]
            w2, w3 = weight[at + first + 2], weight[at + first + 3]
            for i in range(_BLOCK):
                outputs[neuron, i] += (
                    w0 * inputs[first, i]
                    + w1 * inputs[first + 1, i]
                    + w2 * inputs[first + 2, i]
                    + w3 * inputs[first + 3, i]
                )
        for rest in range(whole, width):
            w = weight[at + rest]
            for i in range(_BLOCK):
                outputs[neuron, i] += w * inputs[rest, i]
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
