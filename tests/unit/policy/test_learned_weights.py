# SPDX-License-Identifier: MIT
"""Weights files: what was written is read again, and anything else is refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import ConfigError
from hmd.policy import registry
from hmd.policy.learned.network import (
    FEATURES,
    FORMAT,
    MAX_OCTAVES,
    SHIPPED,
    VERSION,
    LearnedWeights,
    WeightsHeader,
)

HASH = "0" * 64
HEADER = WeightsHeader(
    format=FORMAT,
    features_version=VERSION,
    features=FEATURES,
    shape=(len(FEATURES), 5, 3, 1),
    horizon_ticks=16,
    data=HASH,
    code=HASH,
    about="for tests",
)


def drawn(seed: int = 0, header: WeightsHeader = HEADER) -> LearnedWeights:
    """Weights at random."""
    random = np.random.default_rng(seed)
    layers = tuple(
        (random.normal(size=(out, into)).astype("f4"), random.normal(size=out).astype("f4"))
        for into, out in zip(header.shape[:-1], header.shape[1:], strict=True)
    )
    mean = random.normal(size=len(FEATURES)).astype("f4")
    scale = random.uniform(0.5, 2, len(FEATURES)).astype("f4")
    return LearnedWeights(header, mean, scale, layers)


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        LearnedWeights.read(path)
    line = str(error.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_weights_written_read_the_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    weights = drawn()
    weights.write(one)
    found = LearnedWeights.read(one)
    assert found.header == HEADER
    found.write(two)
    assert one.read_bytes() == two.read_bytes()
    for (matrix, bias), (again, other) in zip(weights.layers, found.layers, strict=True):
        assert np.array_equal(matrix, again)
        assert np.array_equal(bias, other)


def test_weights_shipped_file_valid() -> None:
    weights = LearnedWeights.read(SHIPPED)
    assert weights.header.features == FEATURES
    assert weights.header.horizon_ticks >= 1


def test_weights_file_damaged_refused_or_valid(tmp_path: Path) -> None:
    path = tmp_path / "damaged.npz"
    drawn().write(path)
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    refusals = 0
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            content[random.integers(0, len(content))] = random.integers(0, 256)
        if random.random() < 0.3:
            del content[random.integers(0, len(content)) :]
        path.write_bytes(content)
        try:
            weights = LearnedWeights.read(path)
        except ConfigError as error:
            refusals += 1
            assert "\n" not in str(error)
            continue
        # The checksum does not cover what this changed: times and attributes of members.
        assert all(np.isfinite(matrix).all() for matrix, _ in weights.layers)
        assert weights.header == HEADER
    assert refusals > 300


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
def test_weights_value_not_finite_or_huge_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "bad.npz"
    weights = drawn()
    weights.layers[1][0][0, 0] = value
    weights.write(path)
    assert "weight_1" in refused(path)


def test_weights_scale_of_zero_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    weights = drawn()
    weights.scale[1] = 0
    weights.write(path)
    assert "scale" in refused(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": FORMAT + 1}, "format"),
        ({"features_version": VERSION + 1}, "features of version"),
        ({"features": tuple(reversed(FEATURES))}, "features of version"),
        ({"horizon_ticks": 0}, "horizon"),
        ({"horizon_ticks": 1.5}, "horizon"),
        ({"data": "secret"}, "data"),
        ({"code": 5}, "code"),
        ({"about": "x" * 5000}, "about"),
        ({"shape": (len(FEATURES), 1)}, "weight_0"),
        ({"shape": (len(FEATURES), 5, 3, 2)}, "one output"),
        ({"shape": (len(FEATURES), 5000, 3, 1)}, "shape.1"),
        ({"shape": ("a",)}, "shape"),
        ({"shape": (len(FEATURES), 6, 3, 1)}, "weight_0"),
    ],
)
def test_weights_header_of_another_kind_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    path = tmp_path / "bad.npz"
    drawn().write(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.dumps({**HEADER.model_dump(), **changes}).encode()
    np.savez(path, allow_pickle=False, **{**arrays, "header": np.frombuffer(header, np.uint8)})
    assert reason in refused(path)


def test_weights_file_missing_empty_large_or_fifo_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent.npz"
    assert "No such file" in refused(path)
    path.write_bytes(b"")
    assert "not usable" in refused(path)
    path.write_bytes(bytes((1 << 20) + 1))
    assert "larger" in refused(path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "regular" in refused(fifo)
    assert "regular" in refused(tmp_path) or "directory" in refused(tmp_path)


def test_weights_pickled_objects_refused_unread(tmp_path: Path) -> None:
    path, witness = tmp_path / "pickle.npz", tmp_path / "witness"

    class Opens:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(witness), "w"))

    np.savez(path, header=np.array([Opens()], object))
    assert "not usable" in refused(path)
    assert not witness.exists()


def test_registry_policy_with_bad_weights_raises_configerror(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_text("no weights")
    with pytest.raises(ConfigError, match="not usable"):
        registry.create("learned", {"weights": str(path)})
    with pytest.raises(ConfigError, match="absolute path"):
        registry.create("learned", {"weights": "relative.npz"})


def test_network_answers_normalised_features_within_its_bound() -> None:
    weights = drawn(seed=4)
    columns = np.random.default_rng(2).normal(size=(len(FEATURES), 333)).astype(np.float32)
    expected = []
    for row in columns.T:
        value = (row - weights.mean) / weights.scale
        for matrix, bias in weights.layers[:-1]:
            value = np.maximum(matrix @ value + bias, 0)
        matrix, bias = weights.layers[-1]
        expected.append(float(matrix[0] @ value + bias[0]))
    bounded = np.clip(expected, -MAX_OCTAVES, MAX_OCTAVES)
    assert 0 < np.count_nonzero(bounded != expected) < len(expected)
    assert np.allclose(weights.octaves(columns), bounded, rtol=1e-3, atol=1e-3)
