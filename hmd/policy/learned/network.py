# SPDX-License-Identifier: MIT
"""The network of the learned policy, its features, and its weights in a file.

A small perceptron that all pages share: takes the features of each row, gives the base-2 logarithm
of a factor on the row's rate. Features are base-2 logarithms, that of the rate of its ratio to the
mean page of the process, so that neither the speed of the machine nor the sampling period matters.
Both take about 15 ns per page.

The weights are an ``.npz`` file, checked in full; any other file is refused with one line. It has a
``header`` (JSON, as bytes), ``mean`` and ``scale`` of each feature, and ``weight_N`` and ``bias_N``
of each layer, and no date, so that equal training gives an equal file.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal, Self
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hmd.base.errors import ConfigError
from hmd.base.untrusted_files import DAMAGED, read_arrays, reason_of

if TYPE_CHECKING:
    from hmd.heat.view import PageView

FEATURES: Final = ("rate", "support")
"""Names in the order of the columns; docs/reference/learned-features.md describes them."""

VERSION: Final = 3
"""Weights are valid for one version: a change of a feature is another."""

# What is added to a rate, as a part of the mean: the logarithm of a page without any is finite.
_FLOOR: Final = 0.1
_MIN_MEAN: Final = 1e-20

Floats = npt.NDArray[np.float32]


def feature_columns(pages: PageView, rate: Floats) -> Floats:
    """Return the features of each row, shape ``(len(FEATURES), n)``.

    ``rate`` is in accesses per second and base page; shape ``(n,)``.
    """
    count = np.bincount(pages.process, pages.size, len(pages.processes))
    mean = process_sums(pages, rate) / np.maximum(count, 1) + _MIN_MEAN
    columns = np.empty((len(FEATURES), len(pages)), np.float32)
    columns[0] = rate * (1 / mean)[pages.process] + _FLOOR
    columns[1] = 1 + pages.effective_samples
    return np.log2(columns, out=columns)


def process_sums(pages: PageView, rate: Floats) -> npt.NDArray[np.float64]:
    """Return the sum over the base pages of each process; ``rate`` is per page, by row."""
    sums = np.bincount(pages.process, rate * pages.size, len(pages.processes))
    return sums.astype(np.float64)


FORMAT: Final = 1
"""Version of the file's layout."""

SHIPPED: Final = Path(__file__).resolve().parents[1] / "builtin" / "learned.npz"
"""The weights that hmd is installed with."""

MAX_OCTAVES: Final = 2.0
"""Bound of the network's answer, in training and in use."""

MAX_WIDTH: Final = 64
"""Most neurons of a layer, and most features."""

MAX_BYTES: Final = 1 << 20
# Above this a layer's sums may leave what float32 has.
_MAX_VALUE: Final = 1e6
_MIN_SCALE: Final = 1e-6

_Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class WeightsHeader(BaseModel):
    """What a weights file says of itself.

    ``features`` are names in order, ``shape`` the widths from features to output. ``horizon_ticks``
    is for how long ahead the network predicts a mean rate. ``data`` and ``code`` are SHA-256 hashes
    of the training data and of the code that trained; ``about`` is a sentence for people.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[1]
    features_version: int
    features: tuple[str, ...]
    shape: tuple[_Width, ...] = Field(min_length=2, max_length=5)
    horizon_ticks: int = Field(ge=1, le=4096)
    data: _Sha256
    code: _Sha256
    about: str = Field(default="", max_length=500)


@dataclass(frozen=True, slots=True)
class LearnedWeights:
    """A network: ``mean`` and ``scale`` of shape ``(features,)``, and its layers.

    Layer N is a matrix of shape ``(outputs, inputs)`` and biases of ``(outputs,)``; between two
    layers, values below 0 become 0. A feature x enters as (x - mean) / scale.
    """

    header: WeightsHeader
    mean: Floats
    scale: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    def octaves(self, columns: Floats) -> Floats:
        """Return the base-2 logarithm of the factor on each row's rate; shape ``(n,)``.

        ``columns`` are features of shape ``(features, n)``. The factor is at most
        2**``MAX_OCTAVES`` and at least its inverse.
        """
        values = (columns - self.mean[:, None]) / self.scale[:, None]
        for number, (matrix, bias) in enumerate(self.layers):
            values = matrix @ (np.maximum(values, 0) if number else values) + bias[:, None]
        answer: Floats = np.clip(values[0], -MAX_OCTAVES, MAX_OCTAVES)
        return answer

    def write(self, file: Path | BinaryIO) -> None:
        """Write the file; equal weights give equal bytes."""
        columns: dict[str, npt.NDArray[Any]] = {
            "header": np.frombuffer(self.header.model_dump_json().encode(), np.uint8),
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
    def read(cls, path: Path) -> Self:
        """Read and check a file for the features of this hmd; ConfigError for any other."""
        try:
            # A FIFO must not stop the daemon.
            if path.exists() and not path.is_file():
                raise OSError("it is no regular file")
            if path.stat().st_size > MAX_BYTES:
                raise OSError(f"it is larger than {MAX_BYTES >> 20} MiB")
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"weights {path}: cannot be read: {reason}") from error
        try:
            arrays = read_arrays(path, max_bytes=MAX_BYTES)
            header = _header(arrays["header"])
            mean, scale = (_floats(arrays, name, (len(FEATURES),)) for name in ("mean", "scale"))
            layers = tuple(
                (
                    _floats(arrays, f"weight_{number}", (out, into)),
                    _floats(arrays, f"bias_{number}", (out,)),
                )
                for number, (into, out) in enumerate(pairwise(header.shape))
            )
            if float(scale.min()) < _MIN_SCALE:
                raise ValueError("a scale is not above 0")
        except DAMAGED as error:
            raise ConfigError(
                f"weights {path}: not usable ({reason_of(error)}): train them again with hmd train,"
                " or leave the setting out"
            ) from error
        return cls(header, mean, scale, layers)


def _floats(arrays: dict[str, npt.NDArray[Any]], name: str, shape: tuple[int, ...]) -> Floats:
    array = arrays[name]
    if array.dtype != np.dtype("<f4") or array.shape != shape:
        raise ValueError(f"{name} is not float32 of shape {shape}")
    # Also false for what is not finite.
    if not (np.abs(array) <= _MAX_VALUE).all():
        raise ValueError(f"{name} has values that are not finite, or too large")
    return np.ascontiguousarray(array, np.float32)


def _header(raw: npt.NDArray[Any]) -> WeightsHeader:
    """Return a header; ValueError unless a network of this header can run here."""
    if raw.dtype != np.uint8 or raw.ndim != 1:
        raise ValueError("it has no header")
    try:
        header = WeightsHeader.model_validate_json(raw.tobytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where or 'header'}: {first['msg']}") from None
    if header.features_version != VERSION or header.features != FEATURES:
        raise ValueError(
            f"features of version {header.features_version}, this hmd computes version {VERSION}"
        )
    if header.shape[0] != len(FEATURES) or header.shape[-1] != 1:
        raise ValueError(f"it has no network from {len(FEATURES)} features to one output")
    return header
