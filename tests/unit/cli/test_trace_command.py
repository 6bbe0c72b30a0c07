# SPDX-License-Identifier: MIT
"""hmd trace on a recording whose recorder was killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.trace.trace import SAMPLE_COLUMNS, InstructionProgress, Samples, Trace, TracedProcess
from hmd.trace.writer import write_trace

Capture = pytest.CaptureFixture[str]
MS = 1_000_000


@pytest.fixture
def unfinished(tmp_path: Path) -> str:
    """Ten samples in the first 9 ms of a recording that was killed after 50 ms."""
    columns = {name: np.zeros(10, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    samples = replace(Samples(**columns), time_ns=np.arange(10, dtype=np.uint64) * np.uint64(MS))
    progress = InstructionProgress(
        np.array([20 * MS, 50 * MS], np.uint64),
        np.zeros(2, np.uint16),
        np.array([1, 2], np.uint64),
        np.zeros(2, np.uint64),
    )
    processes = (TracedProcess(1, "x"),)
    trace = Trace({"begin_ns": 0, "command": ["x"]}, processes, samples, progress=progress)
    write_trace(tmp_path / "t", trace)
    return str(tmp_path / "t")


def test_trace_info_unfinished_trace_refused_in_one_line(unfinished: str, capsys: Capture) -> None:
    assert main(["trace", "info", unfinished]) == Exit.FAILURE
    out, err = capsys.readouterr()
    assert not out
    assert "its recorder was killed" in err
    assert "--salvage" in err
    assert err.count("\n") == 1


def test_trace_info_salvage_runtime_to_last_row(unfinished: str, capsys: Capture) -> None:
    assert main(["trace", "info", "--salvage", "--json", unfinished]) == Exit.OK
    info = json.loads(capsys.readouterr().out)
    assert not info["ended"]
    assert info["runtime_s"] == pytest.approx(0.05)
