# SPDX-License-Identifier: MIT
"""The shared memory: laid out by the plugin's code, read and controlled from Python."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import MissingError
from hmd.linux.emulator_memory import SharedMemory, find_device

MIB = 1 << 20


def test_shared_memory_header_describes_the_machine(make_shared: Callable[[int], Any]) -> None:
    shared = make_shared(MIB)
    memory = shared.memory
    assert memory.ready
    assert (memory.vcpus, memory.nodes, memory.dilation) == (2, 2, 20.0)
    assert (memory.clock_ps, memory.running, memory.armed) == (0, False, False)


@pytest.mark.parametrize("size", [64 << 10, 100_000, MIB, 16 * MIB])
def test_shared_memory_rings_are_largest_powers_of_two(
    make_shared: Callable[[int], Any], size: int
) -> None:
    memory = make_shared(size).memory
    data = len(memory.ring(0)) - 4096
    assert data & (data - 1) == 0
    assert 2 * (4096 + data) <= size - 8192 < 2 * (4096 + 2 * data)


@pytest.mark.parametrize(
    ("size", "says"), [(0, b"give it its size"), (4096, b"too small"), (20_000, b"too small")]
)
def test_shared_memory_of_too_small_file_is_refused(
    parts: Any, params: Any, tmp_path: Path, size: int, says: bytes
) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(size))
    native, why = parts.ffi.new("struct shared *"), parts.ffi.new("const char **")
    assert parts.lib.shared_open(native, bytes(path), params, 20.0, why) == -1
    assert says in parts.ffi.string(why[0])


def test_shared_memory_control_words_have_fixed_offsets(make_shared: Callable[[int], Any]) -> None:
    shared = make_shared(MIB)
    shared.memory.sample(101, 53, 90)
    shared.memory.running = True
    words = struct.unpack_from("<QQIIII", shared.path.read_bytes(), 56)
    assert words == (101, 53, 90, 1, 1, 0)
    shared.memory.sample(101, 53, 90, 109, 3001)
    assert struct.unpack_from("<QQ", shared.path.read_bytes(), 120) == (109, 3001)
    shared.memory.sample(101, 53, 90)
    assert struct.unpack_from("<QQ", shared.path.read_bytes(), 120) == (0, 0)
    shared.memory.stop_sampling()
    shared.memory.running = False
    words = struct.unpack_from("<QQIIII", shared.path.read_bytes(), 56)
    assert words == (101, 53, 90, 0, 0, 0)


def test_shared_memory_clock_is_monotonic_maximum(
    make_shared: Callable[[int], Any], parts: Any
) -> None:
    shared = make_shared(MIB)
    for clock_ps in (5, 9, 7):
        parts.lib.shared_advance_clock(shared.native.header, clock_ps)
    assert shared.memory.clock_ps == 9
    assert struct.unpack_from("<Q", shared.path.read_bytes(), 192) == (9,)


def test_shared_memory_counters_are_read_by_name(
    make_shared: Callable[[int], Any], parts: Any
) -> None:
    shared = make_shared(MIB)
    node = {"load_misses": 11, "store_misses": 12, "prefetched_lines": 13, "kernel_lines": 14}
    node |= {"table_lines": 18, "read_bytes": 15, "write_bytes": 16, "stall_ps": 17}
    own = {"instructions": 1, "loads": 2, "stores": 3, "llc_hits": 4, "clock_ps": 5, "busy_ps": 6}
    own |= {"sampling_ps": 7, "shootdown_ps": 8, "page_walks": 9}
    counters = parts.ffi.new(
        "struct timing_vcpu_counters *", {**own, "node": [{}, node, *[{}] * 6]}
    )
    vcpu = shared.vcpu(1)
    vcpu.load_samples, vcpu.store_samples, vcpu.lost_samples = 31, 32, 33
    parts.lib.shared_publish(vcpu, counters, 41, 42, 43)
    found = asdict(shared.memory.counters(1))
    assert [one._asdict() for one in found.pop("nodes")] == [dict.fromkeys(node, 0), node]
    samples = {"load_samples": 31, "store_samples": 32, "lost_samples": 33}
    host = {"host_ns": 41, "paced_ns": 42, "behind_ns": 43}
    assert found == own | samples | host
    assert shared.memory.counters(0).instructions == 0, "the other vCPU's are its own"


def test_shared_memory_snapshot_is_consistent(
    make_shared: Callable[[int], Any], parts: Any
) -> None:
    shared = make_shared(MIB)
    vcpu = shared.vcpu(0)
    # The call gives up Python's lock: it writes while we read.
    writer = threading.Thread(target=parts.lib.publish_equal_words, args=(vcpu, 2_000_000))
    writer.start()
    while writer.is_alive():
        found = shared.memory.counters(0)
        words = {found.instructions, found.busy_ps, found.host_ns, found.behind_ns}
        words |= {word for node in found.nodes for word in node}
        assert len(words) == 1
    writer.join()
    assert shared.memory.counters(0).stores == 2_000_000


def test_shared_memory_counters_after_killed_writer_are_readable(
    make_shared: Callable[[int], Any], parts: Any
) -> None:
    shared = make_shared(MIB)
    parts.lib.publish_equal_words(shared.vcpu(0), 7)
    sequence = 4096 + 32
    with shared.path.open("r+b") as file:
        file.seek(sequence)
        file.write(struct.pack("<Q", 15))
    assert shared.memory.counters(0).loads == 7


@pytest.mark.parametrize(
    ("offset", "word", "says"),
    [
        (0, b"\0" * 8, "its plugin is not up"),
        (8, struct.pack("<I", 99), "has version 99"),
        (12, struct.pack("<I", 4000), "damaged"),
        (16, struct.pack("<I", 9), "damaged"),
        (48, struct.pack("<Q", 12345), "damaged"),
    ],
)
def test_shared_memory_with_invalid_header_is_refused_in_one_line(
    make_shared: Callable[[int], Any], offset: int, word: bytes, says: str
) -> None:
    path = make_shared(MIB).path
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(word)
    with pytest.raises(MissingError, match=says) as raised:
        SharedMemory.open(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [0, 10])
def test_shared_memory_shorter_than_header_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(size))
    with pytest.raises(MissingError, match="no header"):
        SharedMemory.open(path)


def test_find_device_among_others_returns_ivshmem_device(tmp_path: Path) -> None:
    assert find_device(tmp_path) is None
    for slot, (vendor, device) in enumerate([("0x8086", "0x1110"), ("0x1af4", "0x1000")]):
        make_device(tmp_path, slot, vendor, device)
    assert find_device(tmp_path) is None
    ours = make_device(tmp_path, 5, "0x1af4", "0x1110")
    assert find_device(tmp_path) == ours


def make_device(sysfs: Path, slot: int, vendor: str, device: str) -> Path:
    folder = sysfs / f"bus/pci/devices/0000:00:{slot:02x}.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")
    (folder / "resource2").touch()
    return folder / "resource2"
