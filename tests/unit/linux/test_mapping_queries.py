# SPDX-License-Identifier: MIT
"""Mappings of some addresses: queries of the kernel, and the text that stands in for them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES
from hmd.linux import mappings
from hmd.linux.mappings import (
    Mappings,
    mapping_pieces,
    mappings_at,
    query_at,
    query_from,
    read_mappings,
)

PAGES = 3000
USER_END = 1 << 47

FILES = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    own = mmap.mmap(file.fileno(), 8 << 20)
shared = mmap.mmap(-1, 8 << 20)
print(0, flush=True)
sys.stdin.read()
"""
ALTERNATING = f"""
import ctypes, mmap, sys
memory = mmap.mmap(-1, {PAGES * PAGE_BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None)
for page in range(0, {PAGES}, 2):
    assert libc.mprotect(ctypes.c_void_p(start + page * {PAGE_BYTES}), {PAGE_BYTES}, 1) == 0
print(start, flush=True)
sys.stdin.read()
"""


@contextmanager
def mapped(program: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a program until it has mapped its memory; its pid and the address that it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        yield child.pid, int(child.stdout.readline())
        child.kill()


@contextmanager
def maps_of(pid: int) -> Iterator[int]:
    """Open maps of a process; skips where the kernel has no PROCMAP_QUERY."""
    fd = os.open(f"/proc/{pid}/maps", os.O_RDONLY)
    try:
        query_from(fd, 0, HUGE_PAGE_BYTES)
        yield fd
    except OSError as error:
        if error.errno == errno.ENOTTY:
            pytest.skip("PROCMAP_QUERY needs Linux 6.11")
        raise
    finally:
        os.close(fd)


def assert_same(found: Mappings, expected: Mappings) -> None:
    for name in ("start", "end", "kind", "access", "unmovable", "huge_bytes"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
    assert found.path == expected.path
    assert found.shared == expected.shared


def test_query_of_every_mapping_equals_text(tmp_path: Path) -> None:
    file = tmp_path / "a name with\na line break"
    file.write_bytes(bytes(8 << 20))
    with mapped(FILES, str(file)) as (pid, _), maps_of(pid) as fd:
        text = read_mappings(pid)
        assert text is not None
        # The kernel's own page at the top is in maps, but no mapping of the process.
        expected = text.take(np.flatnonzero(text.start < USER_END))
        found = query_at(fd, expected.start)
        assert_same(found, expected)
        assert len(found.shared) == 2
        assert any("line break" in path for path in found.path)


def test_query_finds_mappings_of_addresses_only() -> None:
    with mapped(ALTERNATING) as (pid, start), maps_of(pid) as fd:
        asked = [1, start + 5 * PAGE_BYTES, start + 5 * PAGE_BYTES + 8, start + 7 * PAGE_BYTES]
        found = query_at(fd, np.array([*asked, USER_END], np.uint64))
        starts = [start + 5 * PAGE_BYTES, start + 7 * PAGE_BYTES]
        assert found.start.tolist() == starts
        assert found.end.tolist() == [one + PAGE_BYTES for one in starts]
        every = np.arange(PAGES, dtype=np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(start)
        assert len(query_at(fd, every)) in (PAGES, PAGES - 1, PAGES + 1)
        assert len(query_at(fd, every[:0])) == 0


def test_mappings_at_by_query_equal_those_by_text(tmp_path: Path) -> None:
    with mapped(ALTERNATING) as (pid, start), maps_of(pid):
        (tmp_path / str(pid)).mkdir()
        text = Path(f"/proc/{pid}/maps").read_bytes()
        (tmp_path / str(pid) / "maps").write_bytes(text)
        pages = np.random.default_rng(1).integers(-5, PAGES + 5, 500)
        addresses = (pages * PAGE_BYTES + start).astype(np.uint64)
        found, stood_in = mappings_at(pid, addresses), mappings_at(pid, addresses, tmp_path)
        assert found is not None and stood_in is not None
        assert_same(found, stood_in)
        assert found.movable_at(addresses).sum() >= 480


def test_text_beyond_its_bound_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "TEXT_BYTES", 1 << 16)
    count = 8000
    lines = "".join(f"{i:x}000-{i:x}fff rw-p 0 0:0 0 \n" for i in range(1, count))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(lines)
    found = mappings_at(7, np.array([0x1000, (count - 1) << 12], np.uint64), tmp_path)
    assert found is not None
    assert found.start.tolist() == [0x1000]


def test_mappings_of_exited_process_none(tmp_path: Path) -> None:
    assert mappings_at(7, np.array([0], np.uint64), tmp_path) is None
    with mapped(ALTERNATING) as (pid, start), maps_of(pid) as fd:
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            query_at(fd, np.array([start], np.uint64))


def test_pieces_of_many_mappings_skip_within_stride(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "EXACT_MAPPINGS", 1)
    with mapped(ALTERNATING) as (pid, start), maps_of(pid):
        whole = read_mappings(pid)
        assert whole is not None
        pieces = list(mapping_pieces(pid))
        starts = np.concatenate([piece.start for piece in pieces])
        assert len(np.unique(starts)) == len(starts)
        assert set(starts.tolist()) <= set(whole.start.tolist())
        # The text's first piece is exact; of the rest each stride with memory has its first one.
        rest = whole.start[whole.start > pieces[0].start[-1]]
        rest = rest[rest < USER_END]
        strides = set((rest // np.uint64(HUGE_PAGE_BYTES)).tolist())
        found = set((starts // np.uint64(HUGE_PAGE_BYTES)).tolist())
        spanned = {
            number
            for first, last in zip(
                np.concatenate([p.start for p in pieces]).tolist(),
                np.concatenate([p.end for p in pieces]).tolist(),
                strict=True,
            )
            for number in range(first // HUGE_PAGE_BYTES, -(-last // HUGE_PAGE_BYTES))
            if last - first < 1 << 32
        }
        assert strides <= found | spanned
        assert len(starts) < len(whole) / 2
        # What is not anonymous is all there.
        named = {s for s, path in zip(whole.start.tolist(), whole.path, strict=True) if path}
        assert {s for s in named if s < start} <= set(starts.tolist())
