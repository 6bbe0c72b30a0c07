# SPDX-License-Identifier: MIT
"""Tensor traces that are damaged or made to mislead: one error of hmd, whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.untrusted_files import MAX_ARCHIVE_BYTES
from hmd.tensors.trace import TensorTraceError, read_trace

TRACE = Path(__file__).parents[3] / "bench/tensors/training_steps/mlp_mixer.npz"
WRONG: dict[str, npt.NDArray[Any]] = {
    "text": np.array("x"),
    "number": np.array(3.5),
    "three numbers": np.array([1, 2, 3]),
    "object": np.array([{}], dtype=object),
}


def columns() -> dict[str, npt.NDArray[Any]]:
    with np.load(TRACE) as archive:
        return dict(archive)


@pytest.mark.parametrize("name", columns())
@pytest.mark.parametrize("wrong", WRONG)
def test_column_of_another_kind_refused_or_read(tmp_path: Path, name: str, wrong: str) -> None:
    path = tmp_path / "trace.npz"
    np.savez(path, allow_pickle=True, **(columns() | {name: WRONG[wrong]}))
    if name in ("name", "source") and wrong != "object":
        assert read_trace(path).kernels
        return
    with pytest.raises(TensorTraceError, match="trace"):
        read_trace(path)


def test_changed_bytes_anywhere_read_or_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "trace.npz", TRACE.read_bytes()
    random, refused = np.random.default_rng(7), 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            read_trace(path)
        except TensorTraceError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 150


def test_arrays_larger_than_the_limit_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        zeros = bytes(1 << 24)
        for _ in range((MAX_ARCHIVE_BYTES >> 24) + 1):
            member.write(zeros)
    assert path.stat().st_size < 4 << 20
    with pytest.raises(TensorTraceError, match="more than 1024 MiB"):
        read_trace(path)
