# SPDX-License-Identifier: MIT
"""Windows of equal instruction counts, compared with hand computations."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import UsageError
from hmd.estimate.windows import CutBy, cut
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.trace import Ending, InstructionProgress, Trace, TracedProcess
from hmd.trace.writer import write_trace

MS = 1_000_000
BEGIN_MS = 1000


def trace_of(
    sampled_ms: list[float], rows: Sequence[tuple[float, int, int]], runtime_ms: float
) -> Trace:
    """Samples at these times, and progress as (milliseconds, process, instructions)."""
    columns = {name: np.zeros(len(sampled_ms), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.array([(BEGIN_MS + t) * MS for t in sampled_ms], np.uint64)
    columns["address"] = np.arange(1, len(sampled_ms) + 1, dtype=np.uint64) * np.uint64(4096)
    columns["period"] = np.ones(len(sampled_ms), np.uint32)
    progress = InstructionProgress(
        np.array([(BEGIN_MS + t) * MS for t, _, _ in rows], np.uint64),
        np.array([process for _, process, _ in rows], np.uint16),
        np.zeros(len(rows), np.uint64),
        np.array([executed for _, _, executed in rows], np.uint64),
        np.zeros(len(rows), np.uint64),
    )
    return Trace(
        {"begin_ns": BEGIN_MS * MS},
        (TracedProcess(1, "x"), TracedProcess(2, "y")),
        Samples(**columns),
        progress=progress,
        ending=Ending(BEGIN_MS * MS, int(runtime_ms * MS), 0),
    )


def lengths_ms(trace: Trace, count: int) -> list[float]:
    windows = cut(trace, count, CutBy.INSTRUCTIONS)
    return [float(round(ns / MS, 6)) for ns in windows.ns]


def test_cut_run_slows_down_windows_by_instructions() -> None:
    # 600 in the first 10 ms, 200 in the next 10, nothing counted in the last 5.
    trace = trace_of([1, 6, 7, 15, 24], [(10, 0, 600), (20, 0, 800)], 25)
    # Quarters of 200: 10/3 ms each in the first part, then all of the second, and the rest.
    assert lengths_ms(trace, 4) == pytest.approx([10 / 3, 10 / 3, 10 / 3, 15], abs=1e-5)
    windows = cut(trace, 4, CutBy.INSTRUCTIONS)
    assert windows.of(trace.samples.time_ns).tolist() == [0, 1, 2, 3, 3]
    # Halves of 400: 400/60 ms and the rest.
    assert lengths_ms(trace, 2) == pytest.approx([20 / 3, 25 - 20 / 3], abs=1e-5)


def test_cut_two_processes_instructions_added() -> None:
    # One executes 100 in 10 ms, the other 300 from 5 ms to 10 ms, having begun with nothing.
    rows = [(5, 0, 50), (5, 1, 0), (10, 0, 100), (10, 1, 300)]
    trace = trace_of([], rows, 10)
    # 200 of 400: 50 at 5 ms, then 70 a millisecond.
    assert lengths_ms(trace, 2) == pytest.approx([5 + 150 / 70, 5 - 150 / 70], abs=1e-5)


def test_cut_counts_in_samples_refine_progress() -> None:
    # 800 in 10 ms by the progress rows; of it, by its CPU, 100 in 1 to 6 ms and 300 in 6 to 7 ms.
    # What the other CPU counts belongs to another process.
    trace = trace_of([1, 5, 6, 7], [(10, 0, 800)], 10)
    trace.samples.instructions[:] = [5000, 9, 5100, 5400]
    trace.samples.cpu[1] = 1
    trace.samples.process[1] = 1
    # In shares of 400: 0 up to 1 ms, 200 at 6 ms, 800 at 7 ms. Half of it at 6 1/3 ms.
    assert lengths_ms(trace, 2) == pytest.approx([6 + 1 / 3, 4 - 1 / 3], abs=1e-5)
    assert lengths_ms(trace, 8)[:2] == pytest.approx([1 + 5 / 2, 5 / 2], abs=1e-5)


def test_cut_process_on_two_cpus_both_counts_added() -> None:
    trace = trace_of([0, 1, 4, 5], [(5, 0, 600)], 5)
    trace.samples.instructions[:] = [100, 7000, 400, 7300]
    trace.samples.cpu[:] = [0, 1, 0, 1]
    # 300 from 0 to 4 ms seen at 4 ms, 300 from 1 to 5 ms at 5 ms.
    assert lengths_ms(trace, 2) == pytest.approx([4, 1], abs=1e-5)


def test_cut_pause_within_window_counts_to_it() -> None:
    # 100 to 2 ms, nothing to 8 ms, 300 to 11 ms: halves of 200 meet at 9 ms.
    rows = [(2, 0, 100), (8, 0, 100), (11, 0, 400)]
    assert lengths_ms(trace_of([], rows, 11), 2) == pytest.approx([9, 2], abs=1e-5)


def test_cut_ended_process_count_kept() -> None:
    rows = [(2, 0, 200), (2, 1, 0), (4, 1, 200)]
    assert lengths_ms(trace_of([], rows, 4), 2) == pytest.approx([2, 2], abs=1e-5)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_cut_by_instructions_windows_sum_to_runtime(count: int) -> None:
    trace = trace_of([1, 2, 3], [(-1, 0, 0), (3, 0, 7), (99, 0, 9)], 12)
    windows = cut(trace, count, CutBy.INSTRUCTIONS)
    assert len(windows) == count
    assert windows.ns.sum() == pytest.approx(12 * MS)
    assert (windows.ns >= 0).all()
    assert windows.of(trace.samples.time_ns).max() < count


@pytest.mark.parametrize("rows", [[], [(5, 0, 0)]])
def test_cut_without_instruction_counts_refused_in_one_line(
    rows: list[tuple[float, int, int]],
) -> None:
    with pytest.raises(UsageError, match="no instruction counts") as refused:
        cut(trace_of([1], rows, 10), 2, CutBy.INSTRUCTIONS)
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="no instruction counts"):
        cut(replace(trace_of([1], [], 10), progress=None), 2, CutBy.INSTRUCTIONS)


def test_estimate_command_cut_by_instructions_estimates_and_refusal(tmp_path: Path) -> None:
    slow = trace_of([1, 6], [(10, 0, 600), (20, 0, 800)], 20)
    fast = trace_of([1, 6], [(5, 0, 600), (10, 0, 800)], 10)
    files = str(tmp_path / "slow"), str(tmp_path / "fast")

    def hmd(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hmd", name, *files, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    write_trace(Path(files[0]), slow)
    write_trace(Path(files[1]), fast)
    done = hmd("estimate", "--windows=4", "--cut-by=instructions", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["cut_by"], found["windows"]) == ("instructions", 4)
    estimates = {e["layout"]: e["runtime_s"] for e in found["estimates"]}
    assert estimates["all slow"] == pytest.approx(0.020)
    assert estimates["all fast"] == pytest.approx(0.010)
    write_trace(Path(files[1]), replace(fast, progress=None))
    refused = hmd("estimate", "--cut-by=instructions")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
