# SPDX-License-Identifier: MIT
"""The network of the learned policy: a small perceptron, run in one kernel.

Takes normalised features of all rows and a network's layers, gives one number per row. Rows are
computed in blocks that stay in the core's first cache, without threads. 100,000 rows of a network
of 19-16-8-1 take about 3 ms where their features are in the second
(``python -m bench.learned_policy.decision_cost``).

The weights of the learned policy: a network with the features that it was trained on, in a file.

Takes an ``.npz`` file, gives a checked network; any other file is refused with one line. The file
has a ``header`` (JSON, as bytes), ``mean`` and ``scale`` of each feature, and ``weight_N`` and
``bias_N`` of each layer. It has no date, so that equal training gives an equal file. Reading takes
about a millisecond.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import numpy.typing as npt

from hmd.base.errors import ConfigError
from hmd.base.numba_kernels import Float32Plane, Float32s, Int64s, inline, kernel
from hmd.base.untrusted_files import DAMAGED, reason_of

MAX_WIDTH: Final = 64
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
    inputs = np.zeros(MAX_WIDTH * _BLOCK, np.float32)
    outputs = np.zeros(MAX_WIDTH * _BLOCK, np.float32)
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


FORMAT: Final = 1
"""Version of the file's layout."""

SHIPPED: Final = Path(__file__).resolve().parents[1] / "builtin" / "learned.npz"
"""The weights that hmd is installed with."""

MAX_BYTES: Final = 1 << 20
_MAX_LAYERS: Final = 4
_MAX_HORIZON_TICKS: Final = 4096
# Above this a layer's sums may leave what float32 has.
_MAX_VALUE: Final = 1e6
_MIN_SCALE: Final = 1e-6
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_MAX_TEXT: Final = 500

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WeightsHeader:
    """What a weights file says of itself.

    ``features`` are names in order, of version ``features_version``. ``shape`` are the widths from
    features to output. ``horizon_ticks`` is for how long ahead the network predicts a mean rate.
    ``data`` and ``code`` are SHA-256 hashes of the training data and of the code that trained;
    ``about`` is a sentence for people.
    """

    format: int
    features_version: int
    features: tuple[str, ...]
    shape: tuple[int, ...]
    horizon_ticks: int
    data: str
    code: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class LearnedWeights:
    """A network: ``mean`` and ``scale`` of shape ``(features,)``, and its layers.

    Layer N is a matrix of shape ``(outputs, inputs)`` and biases of ``(outputs,)``. A feature x
    enters as (x - mean) / scale. The output is the base-2 logarithm of a page's predicted rate over
    its estimated rate.
    """

    header: WeightsHeader
    mean: Floats
    scale: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    def packed(self) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return shape and weights for :func:`hmd.policy.learned.network.run_layers`.

        The normalisation is in the first layer. Inputs and neurons that make widths whole are 0.
        """
        *wide, last = self.header.shape
        shape = [-(-width // INPUTS) * INPUTS for width in wide] + [-(-last // NEURONS) * NEURONS]
        parts = []
        for number, (matrix, bias) in enumerate(self.layers):
            each, start = matrix.astype(np.float64), bias.astype(np.float64)
            if number == 0:
                each = each / self.scale
                start = start - each @ self.mean
            into, out = shape[number], shape[number + 1]
            whole, begin = np.zeros((out, into)), np.zeros(out)
            whole[: each.shape[0], : each.shape[1]], begin[: len(start)] = each, start
            parts += [whole.ravel(), begin]
        return np.array(shape, np.int64), np.concatenate(parts).astype(np.float32)

    def write(self, file: Path | BinaryIO) -> None:
        """Write the file; equal weights give equal bytes."""
        columns: dict[str, npt.NDArray[Any]] = {
            "header": np.frombuffer(json.dumps(asdict(self.header)).encode(), np.uint8),
            "mean": self.mean.astype("<f4"),
            "scale": self.scale.astype("<f4"),
        }
        for number, (matrix, bias) in enumerate(self.layers):
            columns[f"weight_{number}"] = matrix.astype("<f4")
            columns[f"bias_{number}"] = bias.astype("<f4")
        with ZipFile(file, "w", ZIP_STORED) as archive:
            for name, column in columns.items():
                member = io.BytesIO()
                np.lib.format.write_array(member, np.ascontiguousarray(column), allow_pickle=False)
                archive.writestr(ZipInfo(f"{name}.npy"), member.getvalue())

    @classmethod
    def read(cls, path: Path, features: tuple[str, ...], features_version: int) -> Self:
        """Read and check a file for these features; ConfigError for any other."""
        try:
            content = _content(path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"weights {path}: cannot be read: {reason}") from error
        try:
            with ZipFile(io.BytesIO(content)) as archive:
                header = _header(archive)
                _check_header(header, features, features_version)
                count = len(header.features)
                mean = _floats(archive, "mean", (count,))
                scale = _floats(archive, "scale", (count,))
                widths = list(zip(header.shape[:-1], header.shape[1:], strict=True))
                layers = tuple(
                    (
                        _floats(archive, f"weight_{number}", (out, into)),
                        _floats(archive, f"bias_{number}", (out,)),
                    )
                    for number, (into, out) in enumerate(widths)
                )
            if float(scale.min()) < _MIN_SCALE:
                raise ValueError("a scale is not above 0")
        except DAMAGED as error:
            raise ConfigError(
                f"weights {path}: not usable ({reason_of(error)}): train them again with hmd train,"
                " or leave the setting out"
            ) from error
        return cls(header, mean, scale, layers)


def _content(path: Path) -> bytes:
    """Return a regular file's bytes; raises OSError, also for one that is too large."""
    # A FIFO must not stop the daemon.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return content


def _member(archive: ZipFile, name: str) -> npt.NDArray[Any]:
    """Return an array as it is stored."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != ZIP_STORED or info.file_size > MAX_BYTES:
        raise ValueError(f"{name} is not stored as it is")
    with archive.open(info) as member:
        content = io.BytesIO(member.read())
    array: npt.NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    if content.read(1):
        raise ValueError(f"{name} is followed by something else")
    return array


def _floats(archive: ZipFile, name: str, shape: tuple[int, ...]) -> Floats:
    array = _member(archive, name)
    if array.dtype != np.dtype("<f4") or array.shape != shape:
        raise ValueError(f"{name} is not float32 of shape {shape}")
    # Also false for what is not finite.
    if not (np.abs(array) <= _MAX_VALUE).all():
        raise ValueError(f"{name} has values that are not finite, or too large")
    return np.ascontiguousarray(array, np.float32)


def _header(archive: ZipFile) -> WeightsHeader:
    raw = _member(archive, "header")
    if raw.dtype != np.uint8 or raw.ndim != 1:
        raise ValueError("it has no header")
    found = json.loads(raw.tobytes().decode())
    names = set(WeightsHeader.__dataclass_fields__)
    if not isinstance(found, dict) or set(found) != names:
        raise ValueError("its header has other fields than " + ", ".join(sorted(names)))
    for name in ("features", "shape"):
        if not isinstance(found[name], list):
            raise ValueError(f"{name} of its header is no list")
        found[name] = tuple(found[name])
    return WeightsHeader(**found)


def _check_header(header: WeightsHeader, features: tuple[str, ...], features_version: int) -> None:
    """Raise ValueError unless a network of this header can run here."""
    if header.format != FORMAT:
        raise ValueError(f"format {header.format!r:.20}, this hmd reads {FORMAT}")
    if header.features_version != features_version or header.features != features:
        raise ValueError(
            f"features of version {header.features_version!r:.20},"
            f" this hmd computes version {features_version}"
        )
    shape = header.shape
    if not (
        2 <= len(shape) <= _MAX_LAYERS + 1
        and all(type(width) is int and 1 <= width <= MAX_WIDTH for width in shape)
        and shape[0] == len(features)
        and shape[-1] == 1
    ):
        raise ValueError(f"it has no network from {len(features)} features to one output")
    if type(header.horizon_ticks) is not int or not 1 <= header.horizon_ticks <= _MAX_HORIZON_TICKS:
        raise ValueError(f"its horizon is not 1 to {_MAX_HORIZON_TICKS} ticks")
    for name in ("data", "code"):
        value = getattr(header, name)
        if not isinstance(value, str) or not _HASH.fullmatch(value):
            raise ValueError(f"{name} of its header is no SHA-256 hash")
    if not isinstance(header.about, str) or len(header.about) > _MAX_TEXT:
        raise ValueError("about of its header is no short text")
