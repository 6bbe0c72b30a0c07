# SPDX-License-Identifier: MIT
"""hmd trace on a recording whose recorder was killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.reader import read_trace
from hmd.trace.trace import Ending, InstructionProgress, Trace, TracedProcess
from hmd.trace.writer import write_trace
from tests.unit.trace.perf_file import Event, PerfFile, comm, sample, values

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


def test_trace_info_tier_without_figures_has_no_speed(tmp_path: Path, capsys: Capture) -> None:
    tiers = [{"nodes": [0], "read_latency_ns": 90}, {"nodes": [1]}]
    trace = Trace({"tiers": tiers}, (), Samples.empty(), ending=Ending(0, 9, 0))
    write_trace(tmp_path / "t", trace)
    assert main(["trace", "info", str(tmp_path / "t")]) == Exit.OK
    printed = capsys.readouterr().out
    assert "nodes 0, read 90 ns" in printed
    assert "nodes 1, speed unknown" in printed


@pytest.fixture
def imported(tmp_path: Path, capsys: Capture) -> str:
    """An import of 300 samples of 100 pages, and 3 that a cache answered."""
    event = Event()
    made = PerfFile([event], [comm(event, 100, "prog", 1)])
    for n in range(300):
        made.records.append(sample(event, values(4096 * (1 + n % 100), time=10 + n * 10_000)))
    made.records += [sample(event, values(4096, source=0x2 | 1 << 33, time=9))] * 3
    (tmp_path / "perf.data").write_bytes(made.file())
    output = str(tmp_path / "run.hmdt")
    assert main(["trace", "import", str(tmp_path / "perf.data"), "-o", output]) == Exit.OK
    printed = capsys.readouterr()
    assert "300 samples (0 stores), 0.00 s; left out: 3 answered by caches" in printed.out
    assert "sampled 1 in 1,009, 3.0 samples per page: hottest-quarter recall" in printed.out
    assert "unknown number of loads" in printed.err
    return output


def test_trace_import_info_says_source_levels_and_error(imported: str, capsys: Capture) -> None:
    assert main(["trace", "info", imported]) == Exit.OK
    text = capsys.readouterr().out
    assert "perf.data, Some CPU @ 2.00GHz" in text
    assert "L1 1.0 %, memory 99.0 %" in text
    assert "runtime error (estimate) about" in text
    assert main(["trace", "info", imported, "--json"]) == Exit.OK
    info = json.loads(capsys.readouterr().out)
    assert (info["source"], info["levels"]) == ("perf.data", {"memory": 300, "L1": 3})
    assert info["sampling"]["samples_per_page"] == 3


def test_heat_map_without_a_file_is_text(imported: str, capsys: Capture) -> None:
    assert main(["trace", "heatmap", imported]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert int(lines[23].split()[0], 16) < int(lines[0].split()[0], 16)
    assert sum(line.count("@") for line in lines[:24]) > 60
    assert "@: 1" in lines[24]


def test_cells_of_one_sample_are_seen_in_the_heat_map(imported: str, tmp_path: Path) -> None:
    picture = tmp_path / "x.png"
    assert main(["trace", "heatmap", imported, "-o", str(picture)]) == Exit.OK
    drawn = imread(picture)[..., :3]
    height, width = drawn.shape[:2]
    inner = drawn[height // 4 : 3 * height // 4, width // 4 : width // 2]
    ground = np.median(inner, axis=(0, 1))
    assert (np.abs(inner - ground).max(axis=2) > 0.3).mean() > 1e-4


def test_trace_import_drawn_estimated_and_simulated(
    imported: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["trace", "heatmap", imported, "-o", str(tmp_path / "x.svg")]) == Exit.OK
    assert "hottest-quarter recall" in capsys.readouterr().out
    assert main(["estimate", imported]) == Exit.OK
    assert "prog (100)" in capsys.readouterr().out
    assert main(["simulate", imported, "--policy", "none", "--json"]) == Exit.OK
    printed = capsys.readouterr()
    assert json.loads(printed.out)["bytes"] == 100 * 4096
    assert "runtime error (simulate) about" in printed.err


def test_trace_import_ghz_sets_the_clock_of_latencies(tmp_path: Path) -> None:
    event = Event()
    made = PerfFile([event], [sample(event, values(4096, latency=300))])
    (tmp_path / "perf.data").write_bytes(made.file())
    words = [
        "trace",
        "import",
        str(tmp_path / "perf.data"),
        "-o",
        str(tmp_path / "o"),
        "--ghz",
        "3",
    ]
    assert main(words) == Exit.OK
    assert read_trace(tmp_path / "o").samples.latency_ns.tolist() == [100]
