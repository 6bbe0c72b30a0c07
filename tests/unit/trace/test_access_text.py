# SPDX-License-Identifier: MIT
"""Import of accesses that Pin and DynamoRIO print."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.cli.main import main
from hmd.sample.access_batch import Kind
from hmd.trace.convert import open_recording
from hmd.trace.perf_recording import import_recording
from hmd.trace.reader import TraceError, read_trace
from hmd.trace.text_recordings import AccessText, PerfScript, form_of
from hmd.trace.trace import Trace

FORMS = {
    "pinatrace": "0x7f3a: R 0x7ffe00001008\n0x7f3e: W 0x7ffe00002010\n#eof\n",
    "memtrace_simple": (
        "Format: <data address>: <data size>, <(r)ead/(w)rite/opcode>\n"
        "0x00007f3a:  3, mov\n0x00007ffe00001008:  8, r\n0x00007ffe00002010:  4, w\n"
    ),
    "memtrace": (
        "Format: <instr address>,<(r)ead/(w)rite>,<data size>,<data address>\n"
        "0x00007f3a,r,8,0x00007ffe00001008\n0x00007f3e,w,4,0x00007ffe00002010\n"
    ),
    "view": (
        "Output format:\n<--record#-> <--instr#->: <---tid---> <record details>\n"
        "       47742       37769:     2765543 ifetch       6 byte(s) @ 0x0000000000404a78 0f 84\n"
        "       47743       37770:     2765543 read         8 byte(s) @ 0x00007ffe00001008 by PC"
        " 0x0000000000402680\n"
        "       47744       37770:     2765543 write        8 byte(s) @ 0x00007ffe00002010 by PC"
        " 0x0000000000402680\n"
    ),
}


def imported(path: Path, seconds: float | None = None) -> tuple[Trace, list[str]]:
    recording = open_recording(path, runtime_s=seconds)
    assert isinstance(recording, AccessText)
    found = import_recording(recording, path, path.with_suffix(".hmdt"))
    return read_trace(path.with_suffix(".hmdt")), found.notes


@pytest.mark.parametrize("form", FORMS)
def test_accesses_of_each_form_are_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.out"
    path.write_text(FORMS[form])
    assert (form_of(path) or "").endswith(form)
    trace, notes = imported(path, 2e-6)
    rows = trace.samples
    assert rows.address.tolist() == [0x7FFE00001008, 0x7FFE00002010]
    assert rows.kind.tolist() == [Kind.LOAD, Kind.STORE]
    assert rows.time_ns.tolist() == [1, 1001]
    assert trace.runtime_ns == 2000
    assert rows.period.tolist() == [1, 1]
    assert [process.name for process in trace.processes] == ["trace"]
    assert len(notes) == 1
    assert "all accesses" in notes[0]


@pytest.mark.parametrize("process", ["", "77,"])
def test_misses_of_drcachesim_are_read_compressed(process: str, tmp_path: Path) -> None:
    path = tmp_path / "misses.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(
            f"{process}0x401000,{0x7F0000000000 + i * 4096:#x}\n" for i in range(70_000)
        )
    trace, notes = imported(path)
    assert len(trace.samples) == 70_000  # more than are read at once
    assert trace.samples.address[-1] == 0x7F0000000000 + 69_999 * 4096
    assert trace.runtime_ns == 7_000_000
    assert trace.processes[0].pid == (77 if process else 1)
    assert ["no times" in note for note in notes] == [True]


def test_other_text_is_still_of_perf_script(tmp_path: Path) -> None:
    path = tmp_path / "script.txt"
    path.write_text("ls 32410/32410 16391.775344: page-faults:     7fd092fce650 \n")
    assert isinstance(open_recording(path), PerfScript)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"0x1: R 0x7f00\n0x2: X 0x7f00\n", ":2: no access as Pin's pinatrace prints it"),
        (gzip.compress(b"0x1,0x7f00\n" * 9999, mtime=0)[:-90], "damaged"),
        (gzip.compress(b"something else\n", mtime=0), "no access of Pin or DynamoRIO"),
        (b"\x1f\x8b\x08 no gzip", "damaged"),
        (b"0x1: R 0x0\n", "none of its 1 samples has an address of user memory"),
    ],
)
def test_damaged_files_are_one_line(
    data: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    assert main(["trace", "import", str(path), "-o", str(tmp_path / "o.hmdt")]) != 0
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert not (tmp_path / "o.hmdt").exists()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(FORMS)), st.integers(0, 300))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, form: str, at: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    text = FORMS[form].encode()
    path.write_bytes(text[:at] + noise + text[at:])
    try:
        recording = open_recording(path)
        assert recording is not None
        import_recording(recording, path, path.with_suffix(".hmdt"))
    except TraceError as error:
        assert str(error)
