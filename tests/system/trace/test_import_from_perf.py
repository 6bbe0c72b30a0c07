# SPDX-License-Identifier: MIT
"""Import of what perf itself records here: page faults with addresses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.sample.access_batch import Kind
from hmd.trace.reader import read_trace
from hmd.trace.text_recordings import FIELDS
from hmd.trace.trace import Trace

PROGRAM = ["python3", "-c", "b = bytearray(4 << 20)\nb[::4096] = b[1::4096]"]

TO_FILE = ("-o", "perf.data")


@pytest.fixture(scope="module")
def perf() -> str:
    found = shutil.which("perf")
    if found is None:
        pytest.skip("no perf")
    return found


def recorded(perf: str, folder: Path, *options: str) -> bytes:
    words = [perf, "record", "-e", "page-faults", "-c", "1", "-d", *options, "--", *PROGRAM]
    done = subprocess.run(words, capture_output=True, check=False, cwd=folder)
    if done.returncode:
        pytest.skip("perf may not record")
    return done.stdout


def imported(source: Path, *options: str) -> Trace:
    output = source.with_suffix(".hmdt")
    assert main(["trace", "import", str(source), "-o", str(output), *options]) == Exit.OK
    return read_trace(output)


@pytest.mark.parametrize("options", [TO_FILE, (*TO_FILE, "-z"), (*TO_FILE, "-g"), ("-o", "-")])
def test_import_of_a_program_that_touches_1024_pages(
    perf: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    output = recorded(perf, tmp_path, *options)
    source = tmp_path / "perf.data"
    if "-" in options:
        source.write_bytes(output)
    trace = imported(source)
    page = trace.samples.address // 4096
    assert len(set(page.tolist())) >= 1024
    assert set(trace.samples.kind.tolist()) == {Kind.FAULT}
    assert trace.processes[0].name.startswith("python3")
    assert 0 < trace.runtime_ns < 60 * 10**9
    (mapped,) = (each for each in trace.mappings if each.process == 0)
    place = mapped.start.searchsorted(trace.samples.address, side="right") - 1
    assert (trace.samples.address < mapped.end[place]).mean() > 0.95
    assert "[heap]" in mapped.path


def test_import_of_text_has_the_rows_of_its_file(perf: str, tmp_path: Path) -> None:
    recorded(perf, tmp_path, *TO_FILE)
    fields = FIELDS.replace("cpu,", "").replace(",data_src,weight", "")
    words = [perf, "script", "--header", "--ns", "--show-mmap-events", "-i", "perf.data"]
    words += ["-F", fields]
    text = subprocess.run(words, capture_output=True, check=True, cwd=tmp_path).stdout
    (tmp_path / "script.txt").write_bytes(text)
    whole, printed = (
        imported(tmp_path / "perf.data"),
        imported(tmp_path / "script.txt", "--fields", fields),
    )
    for name in ("address", "time_ns", "thread", "kind", "period"):
        assert getattr(printed.samples, name).tolist() == getattr(whole.samples, name).tolist()
