"""Fixtures for every room: a real process that touches memory, and an emulated PMU's memory."""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hmd.machine.process import ProcessId, identify

PROGRAM = """
import mmap, sys, threading, ctypes, os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
kept = []
def touch(pages):
    area = mmap.mmap(-1, pages * 4096)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    kept.append(area)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for page in range(pages):
        area[page * 4096] = 1
    return start
for line in sys.stdin:
    verb, pages = line.split()
    if verb == "touch":
        start = touch(int(pages))
    elif verb == "thread":
        found = []
        thread = threading.Thread(target=lambda: found.append(touch(int(pages))))
        thread.start()
        thread.join()
        start = found[0]
    print(start, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Toucher:
    """A running program; ``touch`` maps fresh pages, touches each once, and says where."""

    process: ProcessId
    popen: subprocess.Popen[str]

    def touch(self, pages: int, verb: str = "touch") -> range:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(f"{verb} {pages}\n")
        self.popen.stdin.flush()
        start = int(self.popen.stdout.readline())
        return range(start, start + pages * 4096, 4096)

    def end(self) -> None:
        """Let the program exit, and wait for it."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait()


@pytest.fixture
def toucher() -> Iterator[Toucher]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        process = identify(popen.pid)
        assert process is not None
        yield Toucher(process, popen)
        if popen.stdin and not popen.stdin.closed:
            popen.stdin.close()


class EmulatedMemory:
    """The memory of an emulated machine as its plugin lays it out, written by hand.

    A file with a sysfs tree around it, so that it is found as in the guest. The layout is that
    of hmd/emulate/plugin/shared.h, the records those of hmd/emulate/plugin/pebs.c.
    """

    RINGS = 8192

    def __init__(self, folder: Path, vcpus: int = 2, data_bytes: int = 1 << 14) -> None:
        device = folder / "bus/pci/devices/0000:00:05.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1af4\n")
        (device / "device").write_text("0x1110\n")
        self.sysfs = folder
        self.data_bytes = data_bytes
        self._stride = 4096 + data_bytes
        with (device / "resource2").open("w+b") as file:
            file.truncate(self.RINGS + vcpus * self._stride)
            self._map = mmap.mmap(file.fileno(), 0)
        header = (0x3130554D45444D48, 1, vcpus, 2, 0, 4096, self.RINGS, self._stride, data_bytes)
        struct.pack_into("<QIIIIQQQQ", self._map, 0, *header)
        struct.pack_into("<Qd", self._map, 88, 1024, 20.0)

    @property
    def control(self) -> tuple[int, int, int, int]:
        """Load period, store period, threshold, enabled, as the plugin would read them."""
        return struct.unpack_from("<QQII", self._map, 56)

    @property
    def pair_period(self) -> int:
        """The period of the second counter of loads, 0: none."""
        return int(struct.unpack_from("<Q", self._map, 120)[0])

    def sample(
        self, vcpu: int, root: int, address: int, physical: int, store: bool = False
    ) -> None:
        """Write the sample of a miss."""
        latency_ns, period = 305, self.control[1 if store else 0]
        body = (0x401000, root, 0, 12345, address, vcpu, 0, period, 678, latency_ns)
        source = 4 if store else 2
        self._write(vcpu, struct.pack("<IHHQIIQQIIQQQQQ", 9, 2, 88, *body, source, physical))

    def lost(self, vcpu: int, count: int) -> None:
        """Write how many samples found no room."""
        self._write(vcpu, struct.pack("<IHHQQ", 2, 0, 24, 0, count))

    def execute(self, vcpu: int, instructions: int) -> None:
        """Let a vCPU have executed so many in all."""
        struct.pack_into("<Q", self._map, 4096 + vcpu * 1024 + 64, instructions)

    def clock(self, machine_ps: int, vcpu: int, vcpu_ps: int) -> None:
        """Set the modelled clocks of the machine and of a vCPU."""
        struct.pack_into("<Q", self._map, 128, machine_ps)
        struct.pack_into("<Q", self._map, 4096 + vcpu * 1024, vcpu_ps)

    def _write(self, vcpu: int, record: bytes) -> None:
        page = self.RINGS + vcpu * self._stride
        (head,) = struct.unpack_from("<Q", self._map, page + 1024)
        for i, byte in enumerate(record):
            self._map[page + 4096 + (head + i) % self.data_bytes] = byte
        struct.pack_into("<Q", self._map, page + 1024, head + len(record))

    def unread(self, vcpu: int) -> int:
        """Bytes that the reader has not taken."""
        head, tail = struct.unpack_from("<QQ", self._map, self.RINGS + vcpu * self._stride + 1024)
        return int(head - tail)


@pytest.fixture
def emulated_memory(tmp_path: Path) -> EmulatedMemory:
    return EmulatedMemory(tmp_path / "emulated")


def physical_address(pid: int, address: int) -> int:
    """Return where the kernel says that an address is; 0 where it does not say."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        pagemap.seek(address // 4096 * 8)
        (entry,) = struct.unpack("<Q", pagemap.read(8))
    frame = entry & ((1 << 55) - 1) if entry >> 63 else 0
    return frame * 4096 + address % 4096 if frame else 0


@pytest.fixture
def physical() -> Callable[[int, int], int]:
    return physical_address
