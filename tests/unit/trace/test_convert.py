# SPDX-License-Identifier: MIT
"""Import of the published ISC 2022 traces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.trace.convert import TICKS_PER_MS, read_knl
from hmd.trace.reader import TraceError


def test_read_knl_tsc_ticks_converted_to_nanoseconds(tmp_path: Path) -> None:
    ticks = np.array([0, TICKS_PER_MS, 5 * TICKS_PER_MS // 2, 60_000 * TICKS_PER_MS])
    np.savez(tmp_path / "a.npz", time_tsc=ticks, vaddr=np.arange(4, dtype=np.uint64))
    trace = read_knl(tmp_path / "a.npz")
    assert trace.samples.time_ns.tolist() == [0, 1_000_000, 2_500_000, 60_000_000_000]
    assert trace.runtime_ns == 60_000_000_000
    assert trace.samples.period.tolist() == [32] * 4


@pytest.mark.parametrize(
    "arrays", [{"x": np.zeros(3)}, {"time_tsc": np.zeros(3), "vaddr": np.zeros(2)}]
)
def test_read_knl_wrong_arrays_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(TraceError, match="time_tsc and vaddr"):
        read_knl(tmp_path / "a.npz")


def test_read_knl_other_or_missing_file_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("hello")
    with pytest.raises(TraceError, match=r"is damaged or no \.npz: no \.npz archive"):
        read_knl(tmp_path / "a.npz")
    with pytest.raises(TraceError, match="cannot read"):
        read_knl(tmp_path / "b.npz")
