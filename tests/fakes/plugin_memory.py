# SPDX-License-Identifier: MIT
"""The emulated PMU's memory as the plugin lays it out, written by a test."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path


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
        header = (0x3130554D45444D48, 4, vcpus, 2, 0, 4096, self.RINGS, self._stride, data_bytes)
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

    @property
    def prefetched_period(self) -> int:
        """The period of the counter of prefetched loads, 0: none."""
        return int(struct.unpack_from("<Q", self._map, 128)[0])

    @property
    def each_interrupts(self) -> bool:
        """Whether each sample costs an interrupt."""
        return bool(struct.unpack_from("<I", self._map, 108)[0])

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

    @property
    def tags_loads(self) -> bool:
        """Whether loads are chosen by a tag."""
        return int(struct.unpack_from("<I", self._map, 140)[0]) == 1

    def miss(self, vcpu: int, loads: int, node: int) -> None:
        """Let a vCPU have missed so many loads of a node in all."""
        struct.pack_into("<Q", self._map, 4096 + vcpu * 1024 + 64 + 8 * (9 + 8 * node), loads)

    def wait(self, vcpu: int, ps: int, node: int) -> None:
        """Let a vCPU have waited so long for a node in all."""
        struct.pack_into("<Q", self._map, 4096 + vcpu * 1024 + 64 + 8 * (9 + 8 * node + 7), ps)

    def run(self, vcpu: int, ps: int) -> None:
        """Let a vCPU have been busy for so long in all."""
        struct.pack_into("<Q", self._map, 4096 + vcpu * 1024 + 64 + 8 * 5, ps)

    def clock(self, machine_ps: int, vcpu: int, vcpu_ps: int) -> None:
        """Set the modelled clocks of the machine and of a vCPU."""
        struct.pack_into("<Q", self._map, 192, machine_ps)
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
