# SPDX-License-Identifier: MIT
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.tensors.trace import TensorTrace, TensorTraceError, read_trace, write_trace
from tests.unit.tensors.conftest import R, W, make_trace


def step() -> TensorTrace:
    return make_trace([1, 2], [(1, [(0, W)]), (2, [(0, R), (1, W)]), (1, [(1, R)])])


def test_trace_written_and_read_is_same(tmp_path: Path) -> None:
    trace = step()
    write_trace(trace, tmp_path / "step.npz")
    found = read_trace(tmp_path / "step.npz")
    assert found.name == trace.name
    assert found.ideal_seconds == pytest.approx(0.004)
    for column in ("kernel_ticks", "tensor_bytes", "use_tensor", "use_mode", "tensor_persistent"):
        assert np.array_equal(getattr(found, column), getattr(trace, column))


def test_trace_is_written_to_the_named_file(tmp_path: Path) -> None:
    write_trace(step(), tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("tensor_bytes", np.array([4096, 0]), "tensor 1 has no bytes"),
        ("use_tensor", np.array([0, 0, 7, 1]), "outside 0 to 1"),
        ("use_mode", np.array([0, 1, 2, 1]), "outside 0 to 2"),
        ("kernel_ticks", np.array([5, -1, 5]), "kernel 1 has a negative time"),
        ("use_start", np.array([0, 2, 1, 4]), "use_start does not ascend"),
    ],
)
def test_trace_wrong_column_refused(column: str, value: Any, message: str) -> None:
    wrong: dict[str, Any] = {column: value}
    with pytest.raises(TensorTraceError, match=message):
        replace(step(), **wrong)


def test_trace_file_without_column_names_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "part.npz", tensor_trace_format=np.int64(1), name="x", source="")
    with pytest.raises(TensorTraceError, match="has no column"):
        read_trace(tmp_path / "part.npz")


def test_trace_file_of_other_content_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(TensorTraceError, match="cannot be read"):
        read_trace(tmp_path / "text.npz")
