# SPDX-License-Identifier: MIT
"""Mappings of a process that maps and unmaps without end, read by queries and by text."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES
from hmd.linux import mappings
from hmd.linux.mappings import (
    Mappings,
    covering_mappings,
    mapping_pieces,
    mappings_at,
    read_mappings,
)

PAGES = 1024
READS = 40
# Maps and unmaps every second page of its memory in turn, and counts its passes in a file. Two
# pages that it never unmaps are at the ends.
CHANGING = f"""
import ctypes, mmap, sys
with open(sys.argv[1], "r+b") as file:
    passes = ctypes.c_uint64.from_buffer(mmap.mmap(file.fileno(), {PAGE_BYTES}))
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
private, fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0x10
start = libc.mmap(None, {PAGES * PAGE_BYTES}, 3, private, -1, 0)
print(start, flush=True)
while True:
    for page in range(1, {PAGES} - 1, 2):
        assert libc.munmap(start + page * {PAGE_BYTES}, {PAGE_BYTES}) == 0
    for page in range(1, {PAGES} - 1, 2):
        at = start + page * {PAGE_BYTES}
        assert libc.mmap(at, {PAGE_BYTES}, 3, private | fixed, -1, 0) == at
    passes.value += 1
"""


@dataclass(frozen=True, slots=True)
class ChangingTarget:
    """The process, where its memory starts, and how often it has mapped all of it again."""

    child: subprocess.Popen[bytes]
    start: int
    passes: Callable[[], int]


@contextmanager
def changing(folder: Path) -> Iterator[ChangingTarget]:
    """Run the process while the block runs; at the end it must still be running."""
    counter = folder / "passes"
    counter.write_bytes(bytes(PAGE_BYTES))
    with (
        counter.open("r+b") as file,
        mmap.mmap(file.fileno(), PAGE_BYTES) as shared,
        subprocess.Popen(
            [sys.executable, "-c", CHANGING, str(counter)], stdout=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout is not None
        try:
            start = int(child.stdout.readline())
            yield ChangingTarget(child, start, lambda: int.from_bytes(shared[:8], "little"))
            assert child.poll() is None
        finally:
            child.kill()


def read_meanwhile(target: ChangingTarget, read: Callable[[], Mappings | None]) -> list[Mappings]:
    """Read often enough for the process to have mapped its memory again several times."""
    found, begun = list[Mappings](), target.passes()
    while len(found) < READS or target.passes() < begun + 3:
        mappings = read()
        assert mappings is not None
        found.append(mappings)
        assert target.child.poll() is None
    return found


def joined(pid: int) -> Mappings:
    pieces = list(mapping_pieces(pid))
    return pieces[0].joined(pieces[1:])


def test_queries_of_changing_process_find_what_stays(tmp_path: Path) -> None:
    with changing(tmp_path) as target:
        first, last = target.start, target.start + (PAGES - 1) * PAGE_BYTES
        every = np.arange(PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(first)
        for found in read_meanwhile(target, lambda: mappings_at(target.child.pid, every)):
            assert found.movable_at(np.array([first, last], np.uint64)).all()


@pytest.mark.parametrize("exact", [1, 1 << 14])
def test_pieces_of_changing_process_end(
    exact: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "EXACT_MAPPINGS", exact)
    with changing(tmp_path) as target:
        for found in read_meanwhile(target, lambda: joined(target.child.pid)):
            assert len(found) < 4 * PAGES


@pytest.mark.parametrize("exact", [1, 1 << 14])
def test_cover_of_changing_process_ascends_and_has_what_stays(
    exact: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "EXACT_MAPPINGS", exact)
    with changing(tmp_path) as target:
        stays = np.arange(0, PAGES, 2, dtype=np.uint64) * np.uint64(PAGE_BYTES)
        stays += np.uint64(target.start)
        for found in read_meanwhile(target, lambda: covering_mappings(target.child.pid)):
            assert (found.start < found.end).all()
            assert (found.end[:-1] <= found.start[1:]).all()
            assert found.movable_at(stays).all()


def test_cover_of_few_mappings_equals_text() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"started\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"started\n"
        text, found = read_mappings(child.pid), covering_mappings(child.pid)
        child.kill()
    assert text is not None and found is not None
    assert found.start.tolist() == text.start.tolist()
    assert found.end.tolist() == text.end.tolist()
    assert found.path == text.path


def test_cover_of_many_mappings_reaches_over_those_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "EXACT_MAPPINGS", 1)
    base, step = 1 << 40, 4 * PAGE_BYTES
    pages = 2 * HUGE_PAGE_BYTES // step
    lines = [
        f"{base + i * step:x}-{base + i * step + PAGE_BYTES:x} rw-p 0 00:00 0" for i in range(pages)
    ]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text("".join(f"{line}\n" for line in lines))
    found = covering_mappings(7, tmp_path)
    assert found is not None
    assert found.end[0] == base + PAGE_BYTES
    assert found.end[1:-1].tolist() == found.start[2:].tolist()
    assert found.end[-1] == base + 2 * HUGE_PAGE_BYTES


def test_cover_of_absent_process_none(tmp_path: Path) -> None:
    assert covering_mappings(7, tmp_path) is None
