# SPDX-License-Identifier: MIT
"""The recording of misses, next to a guest that writes every word of the header that it can."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
RECORD_BYTES = 32
VCPUS = 2


@pytest.fixture
def recording(parts: Any, make_shared: Callable[[int], Any], tmp_path: Path) -> tuple[Any, Any]:
    """A recording of two vCPUs into a file of two pages, and the header that the guest sees."""
    header = make_shared(MIB).native.header
    header.recorded_vcpus = 0xFFFFFFFF
    path = tmp_path / "misses"
    path.write_bytes(bytes(8192))
    native, why = parts.ffi.new("struct recording *"), parts.ffi.new("const char **")
    opened = parts.lib.recording_open(native, bytes(path), header, parts.ffi.NULL, VCPUS, why)
    assert opened == 0
    parts.lib.highest_asked = 0
    return native, header


def test_recording_takes_the_number_of_vcpus_from_the_launcher(
    parts: Any, recording: tuple[Any, Any]
) -> None:
    """The counters of vCPUs that the machine has not lie outside the plugin's memory."""
    native, header = recording
    header.vcpus = 4096
    parts.lib.record_wakes(native, 1)
    assert parts.lib.highest_asked == VCPUS - 1
    assert header.recorded == VCPUS, "the wake-up, and one mark"


def test_recording_reads_the_guests_count_of_records_once(
    parts: Any, recording: tuple[Any, Any]
) -> None:
    """A count that changes between a check and its use would be a place anywhere in memory."""
    native, header = recording
    pid = os.fork()
    if not pid:
        stop = parts.ffi.new("bool *")
        words = parts.ffi.new("uint64_t[]", [0, 1 << 40, native.capacity - 1, 1 << 58])
        guest = threading.Thread(
            target=parts.lib.guest_writes, args=(header, words, len(words), stop)
        )
        guest.start()
        parts.lib.record_wakes(native, 5_000_000)
        stop[0] = True
        guest.join()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, "the recording wrote outside its file"


def test_recording_beyond_its_file_is_counted_and_not_written(
    parts: Any, recording: tuple[Any, Any], tmp_path: Path
) -> None:
    native, header = recording
    assert native.capacity == 8192 // RECORD_BYTES
    parts.lib.record_wakes(native, native.capacity)
    assert header.recorded == VCPUS * native.capacity
    assert (tmp_path / "misses").stat().st_size == 8192
