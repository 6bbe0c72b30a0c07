# SPDX-License-Identifier: MIT
"""The trace file: written traces are read back, and damaged blocks are reported or left out."""

import io
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.cli.main import main
from hmd.sample.access_batch import FILE_NAMES, SAMPLE_COLUMNS, Samples
from hmd.trace.blocks import DamageError, read_block, read_header, write_block, write_header
from hmd.trace.reader import TraceError, blocks, read_trace
from hmd.trace.summary import summarise
from hmd.trace.trace import (
    Ending,
    InstructionProgress,
    Losses,
    MappingSnapshot,
    NodeTraffic,
    PlacementChange,
    ThreadProgress,
    Trace,
    TracedProcess,
)
from hmd.trace.writer import BLOCK_ROWS, write_trace


def samples_of(count: int, seed: int = 0) -> Samples:
    random = np.random.default_rng(seed)
    columns = {
        name: random.integers(0, np.iinfo(dtype).max, count, dtype, endpoint=True)
        for name, dtype in SAMPLE_COLUMNS.items()
    }
    columns["time_ns"] = np.sort(columns["time_ns"] >> np.uint64(20))
    columns["process"] = columns["process"] % 2
    # Half of the code in the mapped file.
    columns["code_address"][::2] = 0x7FFF0000 + columns["code_address"][::2] % 0x1000
    return Samples(**columns)


def trace_of(count: int) -> Trace:
    start = np.array([0x1000, 0x7FFF0000], np.uint64)
    return Trace(
        about={"command": ["prog", "--x"], "begin_ns": 5, "period": 32, "tier": "slow"},
        processes=(TracedProcess(10, "prog"), TracedProcess(11, "child")),
        samples=samples_of(count),
        mappings=(
            MappingSnapshot(
                6,
                1,
                start,
                start + np.uint64(0x1000),
                np.array([1, 3], np.uint8),
                np.array([3, 5], np.uint8),
                ("[heap]", "/usr/lib/ünï.so"),
                np.array([0, 0x1000], np.uint64),
            ),
        ),
        placement=(
            PlacementChange(7, 0, start, np.array([1, 9], np.uint32), np.array([0, -1], np.int16)),
        ),
        progress=InstructionProgress(
            np.array([1, 2], np.uint64),
            np.array([0, 1], np.uint16),
            np.array([1000, 2000], np.uint64),
            np.array([0, 7], np.uint64),
            np.array([0, 900], np.uint64),
        ),
        threads=ThreadProgress(
            np.array([1, 2], np.uint64),
            np.array([0, 1], np.uint16),
            np.array([10, 12], np.uint32),
            np.array([0, 3], np.uint16),
            np.array([900, 2**40], np.uint64),
        ),
        traffic=NodeTraffic(
            np.array([1, 1], np.uint64),
            np.array([0, 1], np.uint16),
            np.array([64, 2**40], np.uint64),
            np.array([0, 256], np.uint64),
        ),
        losses=Losses(3, 1),
        ending=Ending(5, 123456789, 0, 987654321),
    )


def assert_equal(left: Trace, right: Trace) -> None:
    for name in SAMPLE_COLUMNS:
        np.testing.assert_array_equal(getattr(left.samples, name), getattr(right.samples, name))
    assert left.about == right.about
    assert left.processes == right.processes
    assert (left.losses, left.ending) == (right.losses, right.ending)
    for a, b in zip(left.mappings, right.mappings, strict=True):
        assert (a.time_ns, a.process, a.path) == (b.time_ns, b.process, b.path)
        np.testing.assert_array_equal(a.end, b.end)
        np.testing.assert_array_equal(np.array(a.offset), np.array(b.offset))
    for c, d in zip(left.placement, right.placement, strict=True):
        assert (c.time_ns, c.process) == (d.time_ns, d.process)
        np.testing.assert_array_equal(c.pages, d.pages)
        np.testing.assert_array_equal(c.node, d.node)
    for e, f in (
        (left.progress, right.progress),
        (left.threads, right.threads),
        (left.traffic, right.traffic),
    ):
        assert type(e) is type(f)
        for name in [] if e is None else [field.name for field in fields(e)]:
            np.testing.assert_array_equal(getattr(e, name), getattr(f, name))


@pytest.mark.parametrize("count", [0, 1, BLOCK_ROWS, 3 * BLOCK_ROWS + 17])
def test_trace_written_and_read_equal(tmp_path: Path, count: int) -> None:
    trace = trace_of(count)
    write_trace(tmp_path / "t", trace)
    assert_equal(read_trace(tmp_path / "t"), trace)


def test_read_trace_truncated_refused_or_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_trace(path, trace_of(3 * BLOCK_ROWS))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="damaged"):
        read_trace(path)
    rest = read_trace(path, salvage=True)
    assert rest.damage is not None
    assert len(rest.samples) in (BLOCK_ROWS, 2 * BLOCK_ROWS)
    assert rest.ending is None


def test_read_trace_without_end_block_runtime_to_last_sample(tmp_path: Path) -> None:
    path = tmp_path / "t"
    trace = trace_of(10)
    write_trace(path, Trace(trace.about, trace.processes, trace.samples))
    read = read_trace(path)
    assert read.ending is None
    assert read.runtime_ns == int(trace.samples.time_ns[-1]) - 5


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_read_block_changed_byte_raises_damage_error(data: st.DataObject) -> None:
    file = io.BytesIO()
    write_header(file)
    samples = samples_of(100)
    columns = {FILE_NAMES[name]: getattr(samples, name) for name in SAMPLE_COLUMNS}
    write_block(file, "SAMP", {"a": 1}, columns)
    damaged = bytearray(file.getvalue())
    offset = data.draw(st.integers(0, len(damaged) - 1))
    damaged[offset] ^= data.draw(st.integers(1, 255))
    again = io.BytesIO(bytes(damaged))
    with pytest.raises(DamageError):
        read_header(again)
        read_block(again)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_read_header_random_bytes_raise_damage_error(garbage: bytes) -> None:
    with pytest.raises(DamageError):
        read_header(io.BytesIO(garbage))
    file = io.BytesIO(garbage)
    if garbage:
        with pytest.raises(DamageError):
            read_block(file)


@pytest.mark.parametrize("content", [b"", b"HMDTRACE", b"PK\x03\x04 and so on, long enough"])
def test_read_trace_other_file_format_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(TraceError, match="is no trace") as caught:
        read_trace(tmp_path / "x", salvage=True)
    assert "\n" not in str(caught.value)


def test_read_trace_missing_file_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read the trace"):
        read_trace(tmp_path / "nothing")


def test_read_trace_later_version_refused(tmp_path: Path) -> None:
    import struct
    import zlib

    start = struct.pack("<8sI", b"HMDTRACE", 99)
    (tmp_path / "x").write_bytes(start + struct.pack("<I", zlib.crc32(start)))
    with pytest.raises(TraceError, match="version 99"):
        read_trace(tmp_path / "x")


def test_read_trace_unknown_block_kind_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_trace(path, trace_of(5))
    with path.open("ab") as file:
        write_block(file, "NEWS", {"what": "ever"}, {"x": np.arange(3)})
    assert_equal(read_trace(path), trace_of(5))


def test_read_trace_first_format_no_counts_and_one_clock(tmp_path: Path) -> None:
    samples = samples_of(7)
    columns = {FILE_NAMES[n]: getattr(samples, n) for n in SAMPLE_COLUMNS if n != "instructions"}
    path = tmp_path / "t"
    with path.open("wb") as file:
        write_header(file)
        write_block(file, "META", {"begin_ns": 5}, {})
        for index in range(2):
            write_block(file, "PROC", {"index": index, "pid": 10 + index, "name": "x"}, {})
        write_block(file, "SAMP", {}, columns)
        write_block(file, "TAIL", {"begin_ns": 5, "runtime_ns": 9, "exit_code": None}, {})
    trace = read_trace(path)
    assert trace.samples.instructions.tolist() == [0] * 7
    np.testing.assert_array_equal(trace.samples.address, samples.address)
    assert trace.clock == "monotonic"
    assert trace.ending == Ending(5, 9, None, None)
    summary = summarise(trace)
    assert summary["elapsed_s"] == summary["runtime_s"] == 9e-9
    assert (summary["tiers"], summary["instructions_detail"]) == ([], "not counted")


def test_summary_modelled_clock_named(tmp_path: Path) -> None:
    trace = trace_of(3)
    modelled = replace(trace, about={**trace.about, "clock": "modelled"})
    write_trace(tmp_path / "t", modelled)
    summary = summarise(read_trace(tmp_path / "t"))
    assert (summary["clock"], summary["runtime_s"]) == ("modelled", 0.123456789)
    assert summary["elapsed_s"] == 0.987654321
    assert summary["instructions"] == 7
    printed = subprocess.run(
        [sys.executable, "-m", "hmd", "trace", "info", str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "0.123 s of modelled time, 0.988 s by the guest's clock" in printed


def test_read_trace_samples_of_unknown_process_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    trace = trace_of(5)
    write_trace(path, Trace(trace.about, (), trace.samples))
    with pytest.raises(TraceError, match="damaged"):
        read_trace(path)


def test_write_trace_samples_take_under_8_bytes_each(tmp_path: Path) -> None:
    count = 100_000
    random = np.random.default_rng(1)
    samples = Samples(
        time_ns=np.cumsum(random.integers(500, 1500, count)).astype(np.uint64),
        address=(np.uint64(0x7F0000000000) + random.integers(0, 1 << 26, count).astype(np.uint64)),
        process=np.zeros(count, np.uint16),
        thread=np.full(count, 77, np.uint32),
        cpu=np.ones(count, np.uint16),
        kind=np.zeros(count, np.uint8),
        latency_ns=random.integers(80, 120, count).astype(np.uint32),
        period=np.full(count, 199, np.uint32),
        instructions=np.zeros(count, np.uint64),
        code_address=np.uint64(0x5500_0000_1000) + random.integers(0, 16, count).astype(np.uint64),
    )
    write_trace(tmp_path / "t", Trace({}, (TracedProcess(1, "x"),), samples))
    assert (tmp_path / "t").stat().st_size < 8 * count


def test_trace_info_load_counters_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, path = trace_of(10), tmp_path / "t"
    for more, expected in (
        ({}, "none: overlapping misses cannot be identified"),
        ({"pair_period": 211}, "loads also by a second counter, one in 211"),
        (
            {"pair_period": 211, "reorder_window": 224},
            "one in 211; the core looks 224 instructions ahead",
        ),
    ):
        write_trace(path, replace(trace, about={**trace.about, **more}))
        assert main(["trace", "info", str(path)]) == 0
        assert expected in capsys.readouterr().out
        assert main(["trace", "info", "--json", str(path)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["pair_period"], found["reorder_window"]) == (
            more.get("pair_period"),
            more.get("reorder_window"),
        )


def test_progress_of_earlier_recorders_has_no_waits(tmp_path: Path) -> None:
    write_trace(tmp_path / "new", trace_of(3))
    with (tmp_path / "old").open("wb") as file:
        write_header(file)
        for block in blocks(tmp_path / "new"):
            kept = {k: v for k, v in block.columns.items() if k != "stalled_ns"}
            write_block(file, block.tag, block.words, kept)
    progress = read_trace(tmp_path / "old").progress
    assert progress is not None
    assert progress.instructions.tolist() == [0, 7]
    assert progress.stalled_ns.tolist() == [0, 0]
