# SPDX-License-Identifier: MIT
"""The error that sampling brings, by samples per page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.summary import TABLE, sampling_error
from hmd.trace.trace import Trace, TracedProcess

RESULTS = Path(__file__).resolve().parents[3] / "docs/results/import_error.json"
ROWS = yaml.safe_load(TABLE.read_text())


def trace_of(samples: int, pages: int) -> Trace:
    columns = {name: np.zeros(samples, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["address"] = np.arange(samples, dtype=np.uint64) % np.uint64(pages) * np.uint64(4096)
    return Trace({"period": 1009}, (TracedProcess(1, "x"),), Samples(**columns))


def test_table_is_that_of_the_committed_measurement() -> None:
    assert json.loads(RESULTS.read_text())["means"] == ROWS
    density = [row["samples_per_page"] for row in ROWS]
    assert density == sorted(density)


@pytest.mark.parametrize("end", [0, -1])
def test_error_beyond_what_was_measured_is_the_nearest(end: int) -> None:
    row = ROWS[end]
    found = sampling_error(trace_of(20_000, 1 if end else 20_000))
    assert (found.recall, found.simulate_error) == (row["recall"], row["simulate_error"])
    assert found.samples_per_page == (20_000 if end else 1)


def test_error_between_two_densities_lies_between_theirs() -> None:
    first, second = ROWS[1:3]
    between = (first["samples_per_page"] * second["samples_per_page"]) ** 0.5
    found = sampling_error(trace_of(round(between * 1000), 1000))
    assert found.recall == pytest.approx((first["recall"] + second["recall"]) / 2, abs=0.01)


def test_error_of_a_thinned_trace_counts_all_its_samples() -> None:
    trace = trace_of(1000, 1000)
    thinned = Trace(trace.about, trace.processes, trace.samples, stride=8)
    assert sampling_error(thinned).samples_per_page == 8


def test_error_described_for_estimates_and_simulations() -> None:
    found = sampling_error(trace_of(1000, 1000))
    line = found.describe()
    assert line.startswith("sampled 1 in 1,009, 1.0 samples per page: hottest-quarter recall about")
    assert f"(estimate) about {found.estimate_error * 100:.0f} %" in line
    assert f"(simulate) about {found.simulate_error * 100:.0f} %" in found.describe("simulate")
