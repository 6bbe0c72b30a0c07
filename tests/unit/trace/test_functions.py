# SPDX-License-Identifier: MIT
"""Sampled accesses by the functions that made them, and files whose functions have no names."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from hmd.cli.main import main
from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.blocks import write_block, write_header
from hmd.trace.functions import function_names, heat_by_function
from hmd.trace.reader import TraceFile, blocks, read_trace
from hmd.trace.trace import Ending, MappingSnapshot, PlacementChange, Trace, TracedProcess
from hmd.trace.writer import write_trace
from tests.fakes.two_functions import MISSES, STAYS, address_of, compiled

DATA, CODE, MIB = 0x7F0000000000, 0x5500_0000_0000, 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program"), "-no-pie", "-static")


def load_offset(program: Path) -> int:
    """Return address less offset of the code of a static program that is not relocated."""
    printed = subprocess.run(
        ["readelf", "-lW", program], capture_output=True, text=True, check=True
    )
    for line in printed.stdout.splitlines():
        words = line.split()
        if words[:1] == ["LOAD"] and "E" in words[6:-1]:
            return int(words[2], 16) - int(words[1], 16)
    raise AssertionError(printed.stdout)


def offset_of(program: Path, function: str) -> int:
    return address_of(program, function) - load_offset(program)


def trace_of(code: Sequence[int], path: str, **columns: Sequence[int]) -> Trace:
    """A trace of stores by instructions at these offsets in a file, mapped in two pieces."""
    made = {name: np.zeros(len(code), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    made["address"][:] = DATA + np.arange(len(code), dtype=np.uint64) * np.uint64(4096)
    made["period"][:] = 10
    made["code_address"][:] = [
        each if each >= 1 << 63 or not each else CODE + each for each in code
    ]
    for name, values in columns.items():
        made[name][:] = values
    start = np.array([CODE, CODE + 0x2000, DATA], np.uint64)
    mapped = MappingSnapshot(
        1, 0, start, np.array([CODE + 0x2000, CODE + 16 * MIB, DATA + MIB], np.uint64),
        np.array([MappingKind.FILE, MappingKind.FILE, MappingKind.ANON], np.uint8),
        np.array([5, 5, 3], np.uint8), (path, path, ""), np.array([0, 0x2000, 0], np.uint64),
    )  # fmt: skip
    processes = (TracedProcess(7, "one"),)
    return Trace({"period": 10}, processes, Samples(**made), (mapped,), ending=Ending(0, 9, 0))


def test_accesses_of_functions_counted_with_their_latency(program: Path) -> None:
    misses, stays = offset_of(program, MISSES), offset_of(program, STAYS)
    code = [misses, misses + 4, misses + 8, stays, (1 << 63) + 5, 0, 32 * MIB]
    trace = trace_of(code, str(program), latency_ns=[300, 500, 0, 0, 0, 0, 0])
    found, unnamed = heat_by_function(trace)
    assert [(each["function"], each["mapping"]) for each in found] == [
        (MISSES, str(program)), (STAYS, str(program)), (None, "the kernel"),
        (None, "code that was not seen mapped"),
    ]  # fmt: skip
    assert [round(each["share"], 3) for each in found] == [0.429, 0.143, 0.143, 0.143]
    assert [each["mean_latency_ns"] for each in found] == [400.0, None, None, None]
    assert {each["slow_share"] for each in found} == {None}
    assert not unnamed


def test_share_of_a_function_on_slow_memory_is_that_of_its_pages(program: Path) -> None:
    misses, stays = offset_of(program, MISSES), offset_of(program, STAYS)
    trace = trace_of([misses] * 4 + [stays], str(program))
    page = np.arange(5, dtype=np.uint64) * np.uint64(4096) + np.uint64(DATA)
    first = PlacementChange.of_pages(1, 0, page, np.array([0, 0, 0, 0, 0], np.int16))
    later = PlacementChange.of_pages(2, 0, page[1:4], np.array([1, 1, -1], np.int16))
    tiers = [{"nodes": [0]}, {"nodes": [1]}]
    found, _ = heat_by_function(replace(trace, about={"tiers": tiers}, placement=(first, later)))
    shares = {each["function"]: each["slow_share"] for each in found}
    assert shares == {MISSES: pytest.approx(2 / 3), STAYS: 0.0}
    one, _ = heat_by_function(replace(trace, about={"tiers": tiers[:1]}, placement=(first, later)))
    assert {each["slow_share"] for each in one} == {None}


def test_file_without_names_says_which_of_the_reasons_it_has(program: Path, tmp_path: Path) -> None:
    at = np.array([offset_of(program, MISSES)], np.uint64)
    assert function_names(str(program), at) == ([MISSES], "")
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    before = datetime.fromtimestamp(program.stat().st_mtime - 1, UTC).isoformat(timespec="seconds")
    (tmp_path / "text").write_text("no program")
    os.mkfifo(tmp_path / "pipe")
    for path, until, reason in (
        (stripped, "", "stripped: the file has no symbols"),
        (tmp_path / "none", "", "the file is gone"),
        (program, before, "was written after the recording began"),
        (tmp_path / "text", "", "no ELF file"),
        (tmp_path / "pipe", "", "no regular file"),
        (Path("/dev/null"), "", "no regular file"),
    ):
        names, said = function_names(str(path), at, until)
        assert names == [None]
        assert reason in said, said


def test_files_without_end_of_sections_are_refused(tmp_path: Path) -> None:
    # A file of holes whose first section says that there are 2^33, and one with 2^32 - 1 segments.
    path, first = tmp_path / "holes", bytearray(64)
    for sections, segments, place, count in ((0, 0, 32, 1 << 33), (1, 0xFFFF, 44, (1 << 32) - 1)):
        head = bytearray(b"\x7fELF\2\1\1".ljust(64, b"\0"))
        struct.pack_into("<HHIQQQIHHHHHH", head, 16, 2, 62, 1, 0, 0, 64, 0, 64, 56, segments, 64,
                         sections, 0)  # fmt: skip
        first[place : place + 8] = count.to_bytes(8, "little")
        path.write_bytes(head + first)
        os.truncate(path, 1 << 40)
        names, said = function_names(str(path), np.zeros(1, np.uint64))
        assert (names, "too many sections or segments" in said) == ([None], True), said


def test_pipe_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who waits to write into it would be woken, and a device may do anything.
    os.mkfifo(pipe := tmp_path / "pipe")
    really = os.open

    def other(path: str, *how: int) -> int:
        assert path != str(pipe)
        return really(path, *how)

    monkeypatch.setattr(os, "open", other)
    assert function_names(str(pipe), np.zeros(1, np.uint64)) == ([None], "no regular file")


def test_file_that_may_not_be_read_is_not_gone(program: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    program.chmod(0o700)
    os.seteuid(65534)
    try:
        _, said = function_names(str(program), np.zeros(1, np.uint64))
    finally:
        os.seteuid(0)
        program.chmod(0o755)
    assert said == "the file cannot be read: Permission denied"


def test_stripped_library_names_what_it_exports(tmp_path: Path) -> None:
    library = compiled(tmp_path, "-shared", "-fPIC", "-s")
    start = 0
    printed = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    for line in printed.stdout.splitlines():
        if line.endswith(MISSES):
            start = int(line.split()[0], 16)
    offset = np.array([start - load_offset(library), 0], np.uint64)
    assert function_names(str(library), offset) == (
        [MISSES, None], "stripped: only functions that it exports have names",
    )  # fmt: skip


def test_damaged_programs_are_named_or_refused(program: Path, tmp_path: Path) -> None:
    rng, whole = random.Random(1), program.read_bytes()
    at = np.array([offset_of(program, MISSES), 0, (1 << 64) - 1], np.uint64)
    table = int.from_bytes(whole[40:48], "little")  # e_shoff of elf(5)
    path, refused = tmp_path / "mutant", 0
    for _ in range(300):
        mutant = bytearray(whole[: rng.choice([len(whole), len(whole), rng.randrange(len(whole))])])
        for _ in range(rng.randrange(1, 6)):
            begin = rng.choice([0, 64, table, min(table + 64 * rng.randrange(40), len(mutant))])
            place = min(begin + rng.randrange(64), len(mutant) - 1)
            mutant[place] = rng.randrange(256)
        path.write_bytes(mutant)
        names, said = function_names(str(path), at)
        assert len(names) == len(at)
        assert "\n" not in said
        refused += names[0] is None
    assert 50 < refused < 300


def test_info_shows_functions_and_why_others_have_no_names(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, gone = trace_of([offset_of(program, MISSES)], str(program)), tmp_path / "gone"
    write_trace(tmp_path / "t", trace)
    assert main(["trace", "info", str(tmp_path / "t")]) == 0
    assert f"{MISSES}  {program}" in capsys.readouterr().out
    write_trace(tmp_path / "t", trace_of([0x1234], str(gone)))
    assert main(["trace", "info", str(tmp_path / "t")]) == 0
    printed = capsys.readouterr().out
    assert f"{gone}+0x1234" in printed
    assert f"functions in {gone}: the file is gone" in printed


def test_trace_of_an_earlier_recorder_has_no_code_addresses(tmp_path: Path) -> None:
    write_trace(tmp_path / "new", trace_of([5, 6], "/usr/bin/true"))
    with (tmp_path / "old").open("wb") as file:
        write_header(file)
        for block in blocks(tmp_path / "new"):
            kept = {k: v for k, v in block.columns.items() if k not in ("code_address", "offset")}
            write_block(file, block.tag, block.words, kept)
    old = read_trace(tmp_path / "old")
    assert old.samples.code_address.tolist() == [0, 0]
    assert [each.offset for each in old.mappings] == [None]
    assert heat_by_function(old) == ([], {})
    new = TraceFile(tmp_path / "new").thinned
    assert new.samples.code_address.tolist() == [CODE + 5, CODE + 6]
