# SPDX-License-Identifier: MIT
"""System calls by which a program gives memory back, as the plugin reads and records them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.emulate.recordings.misses import MissFlag
from hmd.emulate.recordings.recorder import RECORD

PAGE = 4096
USER_PAGES = (1 << 47) // PAGE
MMAP, MUNMAP, BRK, MREMAP, MADVISE, EXIT, EXIT_GROUP = 9, 11, 12, 25, 28, 60, 231
FIXED, PRIVATE, WILLNEED, DONTNEED, FREE, REMOVE = 0x10, 2, 3, 4, 8, 9


def freed(parts: Any, *call: int) -> tuple[int, int] | None:
    """Return what a call gives back: address and pages."""
    words = [*call, *[0] * (5 - len(call))]
    found = parts.ffi.new("struct freed_range *")
    if not parts.lib.freed_by(parts.ffi.new("struct system_call *", words), found):
        return None
    return found.start, found.pages


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((MUNMAP, 4 * PAGE, 2 * PAGE + 1), (4 * PAGE, 3)),
        ((MUNMAP, 4 * PAGE + 1, PAGE), None),
        ((MUNMAP, 4 * PAGE, 0), None),
        ((MUNMAP, 4 * PAGE, (1 << 64) - 1), None),
        ((MADVISE, PAGE, PAGE, DONTNEED), (PAGE, 1)),
        ((MADVISE, PAGE, PAGE, REMOVE), (PAGE, 1)),
        ((MADVISE, PAGE, PAGE, WILLNEED), None),
        ((MADVISE, PAGE, PAGE, FREE), None),
        ((MMAP, PAGE, PAGE, 3, PRIVATE | FIXED), (PAGE, 1)),
        ((MMAP, PAGE, PAGE, 3, PRIVATE), None),
        ((MREMAP, PAGE, 8 * PAGE, 3 * PAGE - 5), (4 * PAGE, 5)),
        ((MREMAP, PAGE, 3 * PAGE, 8 * PAGE), None),
        ((BRK, 5 * PAGE + 1), (6 * PAGE, 0)),
        ((BRK, 0), None),
        ((EXIT_GROUP, 0), (0, USER_PAGES)),
        ((EXIT, 0), None),
        ((0, PAGE, PAGE), None),
    ],
)
def test_call_gives_back_its_pages(
    parts: Any, call: tuple[int, ...], expected: tuple[int, int] | None
) -> None:
    assert freed(parts, *call) == expected


def test_only_syscall_is_a_system_call(parts: Any) -> None:
    codes = (b"\x0f\x05", b"\x0f\x0b", b"\x0f", b"\x48\x0f\x05")
    assert [parts.lib.is_system_call(code, len(code)) for code in codes] == [
        True,
        False,
        False,
        False,
    ]


def test_free_is_recorded_with_all_bits_of_its_pages(
    parts: Any, make_shared: Callable[[int], Any], tmp_path: Path
) -> None:
    header = make_shared(1 << 20).native.header
    header.recorded_vcpus = 2
    path = tmp_path / "misses"
    path.write_bytes(bytes(4096))
    native, why = parts.ffi.new("struct recording *"), parts.ffi.new("const char **")
    assert parts.lib.recording_open(native, bytes(path), header, parts.ffi.NULL, 2, why) == 0
    assert [parts.lib.recording_wants(native, vcpu) for vcpu in (0, 1)] == [False, True]
    given_back = parts.ffi.new("struct freed_range *", [PAGE, USER_PAGES])
    parts.lib.recording_free(native, 1, 77, given_back)
    assert header.recorded == 1
    [row] = np.fromfile(path, RECORD, 1)
    assert (row["instructions"], row["vaddr"], row["cpu"]) == (77, PAGE, 1)
    assert row["flags"] == MissFlag.FREE
    assert int(row["paid_hits"]) | int(row["near_hits"]) << 32 == USER_PAGES
