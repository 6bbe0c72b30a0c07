# SPDX-License-Identifier: MIT
"""Programs made of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import HmdError, TargetError
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissFlag, MissStream
from hmd.emulate.recordings.replay import replayed
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.simulate import sampled_program
from hmd.simulate.sampled_program import program_of, read_program
from hmd.trace.trace import Ending, Trace, TracedProcess
from hmd.trace.writer import write_trace
from tests.unit.trace.test_trace_file import samples_of

PRESET = load("dram-pm")


def trace_of(
    pages: int = 200, samples: int = 2000, period: int = 20, runtime_ms: float = 4.0
) -> Trace:
    """Lower pages are hotter; a tenth of the samples are stores, a tenth prefetched lines."""
    rng = np.random.default_rng(1)
    columns = {name: np.zeros(samples, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["time_ns"] = np.sort(rng.integers(0, int(runtime_ms * 1e6), samples)).astype(np.uint64)
    page = np.minimum(rng.geometric(0.02, samples) - 1, pages - 1).astype(np.uint64)
    columns["address"] = page * np.uint64(4096) + np.uint64(0x7F00_0000_0000)
    columns["kind"][::10] = Kind.STORE
    columns["latency_ns"][:] = 100
    columns["latency_ns"][1::10] = 5
    columns["period"][:] = period
    ending = Ending(0, int(runtime_ms * 1e6), None)
    return Trace({"source": "x"}, (TracedProcess(1, "x"),), Samples(**columns), ending=ending)


@pytest.mark.parametrize("runtime_ms", [0.8, 4.0, 40.0])
def test_program_takes_as_long_as_its_run_did(runtime_ms: float) -> None:
    stream = program_of(trace_of(runtime_ms=runtime_ms), PRESET).stream
    fast = np.ones(stream.user_pages, np.bool_)
    assert replayed(stream, PRESET, fast) * 1e-9 == pytest.approx(runtime_ms, rel=0.1)
    assert replayed(stream, PRESET, ~fast) > replayed(stream, PRESET, fast)


def test_program_has_the_misses_that_samples_stand_for() -> None:
    trace = trace_of()
    stream = program_of(trace, PRESET).stream
    assert len(stream) == 2000 * 20
    page = np.unique(trace.samples.address)
    sampled = np.bincount(np.searchsorted(page, trace.samples.address))
    assert np.bincount(stream.page).tolist() == (sampled * 20).tolist()
    assert (stream.flags == MissFlag.STORE).sum() == 200 * 20
    assert (stream.flags == MissFlag.COVERED).sum() == 200 * 20
    assert np.all(np.diff(stream.page_address.astype(np.int64)) > 0)
    # Misses of one sample lie among those of others.
    assert (np.diff(stream.page.astype(np.int64)) == 0).mean() < 0.2


def test_program_of_a_long_run_is_shorter_in_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_program, "MAX_MISSES", 8000)
    trace = trace_of()
    program = program_of(trace, PRESET)
    assert (len(program.stream), program.share) == (8000, 0.2)
    fast = np.ones(program.stream.user_pages, np.bool_)
    assert replayed(program.stream, PRESET, fast) * 1e-9 == pytest.approx(0.8, rel=0.1)
    played = program_of(replace(trace, ending=Ending(0, 10**12, None)), PRESET)
    assert played.share == pytest.approx(0.01)


def test_program_of_no_samples_refused() -> None:
    trace = trace_of()
    with pytest.raises(TargetError, match="no samples to simulate"):
        program_of(replace(trace, samples=Samples.empty()), PRESET)
    with pytest.raises(TargetError, match="too few samples"):
        program_of(replace(trace, ending=Ending(0, 2**62, None)), PRESET)


def test_program_of_any_columns_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_program, "MAX_MISSES", 20_000)
    for seed in range(5):
        samples = samples_of(300, seed)
        trace = Trace({}, (TracedProcess(1, "x"), TracedProcess(2, "y")), samples)
        stream = program_of(replace(trace, ending=Ending(0, 10**6, None)), PRESET).stream
        assert len(stream) <= 20_000
        assert replayed(stream, PRESET, np.ones(stream.user_pages, np.bool_)) > 0


def test_read_program_of_misses_trace_and_other_file(tmp_path: Path) -> None:
    stream = program_of(trace_of(), PRESET).stream
    stream.write(tmp_path / "x.misses")
    read, note = read_program(tmp_path / "x.misses", PRESET)
    assert isinstance(read, MissStream)
    assert note == ""
    write_trace(tmp_path / "x.hmdt", trace_of())
    read, note = read_program(tmp_path / "x.hmdt", PRESET)
    assert len(read) == len(stream)
    assert "hottest-quarter recall" in note
    (tmp_path / "text").write_text("hello")
    with pytest.raises(HmdError, match="holds no recorded misses"):
        read_program(tmp_path / "text", PRESET)
    with pytest.raises(HmdError, match="cannot be read"):
        read_program(tmp_path / "absent", PRESET)
