# SPDX-License-Identifier: MIT
"""Memory that the emulated machine's plugin shares with its guest and with its launcher.

The layout is that of hmd/emulate/plugin/shared.h: a header with control words, counters per vCPU,
and one perf ring per vCPU. The guest sees it as the BAR of an ivshmem device, the launcher as a
memfd; both use ``SharedMemory``. Words are read in place, so that a read costs no system call.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hmd.base.errors import MissingError, os_error
from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import SYSFS

T = TypeVar("T")

MAGIC = 0x3130554D45444D48
VERSION = 4
MAX_NODES = 8

# A snapshot is written in less than a microsecond, unless its writer is preempted.
_SNAPSHOT_ATTEMPTS = 1000
_SNAPSHOT_WAIT_S = 0.0002

_IVSHMEM = ("0x1af4", "0x1110")

_HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("version", "<u4"),
        ("vcpus", "<u4"),
        ("nodes", "<u4"),
        ("pad", "<u4"),
        ("counters_offset", "<u8"),
        ("ring_offset", "<u8"),
        ("ring_stride", "<u8"),
        ("ring_data_bytes", "<u8"),
        ("load_period", "<u8"),
        ("store_period", "<u8"),
        ("ldlat_ns", "<u4"),
        ("enabled", "<u4"),
        ("running", "<u4"),
        ("armed", "<u4"),
        ("counters_stride", "<u8"),
        ("dilation", "<f8"),
        ("recorded_vcpus", "<u4"),
        ("each_interrupts", "<u4"),
        ("recorded", "<u8"),
        ("pair_period", "<u8"),
        ("prefetched_period", "<u8"),
        ("watched_vcpus", "<u4"),
        ("selection", "<u4"),
        ("awake_ps", "<u8"),
        ("tag_interval", "<u4"),
        ("kernel_mode", "<u4"),
        ("pad3", "<u8", (4,)),
        ("clock_ps", "<u8"),
    ]
)


class NodeCounters(NamedTuple):
    """Traffic between one vCPU and one node; misses are user-mode demand misses of 64-byte lines.

    Each line counts in one of the first five fields. Bytes are those that the media moved,
    including write-backs.
    """

    load_misses: int
    store_misses: int
    prefetched_lines: int
    kernel_lines: int
    table_lines: int
    read_bytes: int
    write_bytes: int
    stall_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VcpuCounters:
    """Counters of one vCPU. ``clock_ps`` includes time halted, ``busy_ps`` does not.

    ``sampling_ps`` and ``shootdown_ps`` are the parts of the busy time that sampling records and
    interprocessor interrupts took.
    """

    instructions: int
    loads: int
    stores: int
    llc_hits: int
    clock_ps: int
    busy_ps: int
    sampling_ps: int
    shootdown_ps: int
    page_walks: int
    nodes: tuple[NodeCounters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginVcpuCounters(VcpuCounters):
    """The same of the machine's plugin, a consistent snapshot."""

    host_ns: int
    paced_ns: int
    behind_ns: int
    load_samples: int
    store_samples: int
    lost_samples: int


NODE_WORDS = NodeCounters._fields
VCPU_WORDS = tuple(field.name for field in fields(VcpuCounters) if field.name != "nodes")
"""Counters in the order in which the plugin and the timing model have them."""

_SAMPLE_WORDS = ("load_samples", "store_samples", "lost_samples")
_TIME_WORDS = ("host_ns", "paced_ns", "behind_ns")
_VCPU_HEAD = np.dtype(
    [(name, "<u8") for name in ("clock_ps", *_SAMPLE_WORDS, "sequence", *_TIME_WORDS)]
)
_COUNTERS = np.dtype(
    [(name, "<u8") for name in VCPU_WORDS]
    + [("node", [(name, "<u8") for name in NODE_WORDS], (MAX_NODES,))]
)


class Selection(IntEnum):
    """How the emulated PMU chooses loads (enum pebs_selection of hmd/emulate/plugin/pebs.h)."""

    COUNTED = 0
    """Every miss is counted."""
    TAGGED = 1
    """One load at a time is followed, and counted if it missed."""
    OPS = 2
    """An op is tagged at the end of each period, whatever it is."""


def find_device(sysfs: Path = SYSFS) -> Path | None:
    """Return the BAR of the emulated machine's device, None on any other machine."""
    for folder in sorted(sysfs.glob("bus/pci/devices/*")):
        try:
            identity = tuple((folder / name).read_text().strip() for name in ("vendor", "device"))
        except OSError:
            continue
        if identity == _IVSHMEM and (folder / "resource2").exists():
            return folder / "resource2"
    return None


class _Word(Generic[T]):
    """A word of the header as an attribute of ``SharedMemory``."""

    def __init__(self, kind: type[T]) -> None:
        self._kind: Callable[[Any], T] = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, memory: SharedMemory, owner: type) -> T:
        return self._kind(memory._header[self._name][0])

    def __set__(self, memory: SharedMemory, value: T) -> None:
        memory._header[self._name][0] = value


class SharedMemory:
    """The mapped memory; a context manager. Counters are at most a millisecond old.

    Raises UnavailableError where the file cannot be opened, MissingError where the plugin has not
    laid it out.
    """

    vcpus, nodes = _Word(int), _Word(int)
    dilation = _Word(float)
    """Host (and guest) time over modelled time; a change applies from the next start on."""
    clock_ps = _Word(int)
    """Modelled time of the machine, the furthest vCPU's."""
    running = _Word(bool)
    """True while the timing model is on."""
    armed = _Word(bool)
    """True once code is instrumented, soon after ``running`` was set."""
    store_period = _Word(int)
    """Stores per sample, as ``sample`` last set it; 0: none are sampled."""
    recorded = _Word(int)
    """Misses of the recording so far, those without room included."""
    awake_ps = _Word(int)
    """Modelled time in which at least one watched vCPU did not halt, until all did."""

    def __init__(self, fd: int) -> None:
        """Map the file of this descriptor, which the caller keeps; MissingError if it is short."""
        if os.fstat(fd).st_size < _HEADER.itemsize:
            raise MissingError("the emulated machine's memory has no header: boot it again")
        self._map = mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._header: Any = self._bytes[: _HEADER.itemsize].view(_HEADER)[0:1]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a file or a device's BAR."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise os_error(
                error,
                f"cannot open the emulated machine's memory {path}: {error.strerror} (run as root)",
            ) from None
        try:
            memory = cls(fd)
        finally:
            os.close(fd)
        memory.check()
        return memory

    def check(self) -> None:
        """Raise MissingError unless the plugin has laid the memory out and it is consistent."""
        if not self.ready:
            raise MissingError("the emulated machine's memory has no header: its plugin is not up")
        if self._word("version") != VERSION:
            raise MissingError(
                f"the emulated machine's memory has version {self._word('version')}, "
                f"this hmd reads {VERSION}: start the machine with the same hmd"
            )
        size, data = len(self._bytes), self._word("ring_data_bytes")
        rings = self._word("ring_offset") + self.vcpus * self._word("ring_stride")
        counters = self._word("counters_offset") + self.vcpus * self._word("counters_stride")
        sound = (
            0 < self.vcpus <= 4096
            and 0 < self.nodes <= MAX_NODES
            and data & (data - 1) == 0
            and PAGE_BYTES + data <= self._word("ring_stride")
            and max(rings, counters) <= size
        )
        if not sound:
            raise MissingError("the emulated machine's memory has a damaged header: boot it again")

    @property
    def ready(self) -> bool:
        """True once the plugin has written its header."""
        return self._word("magic") == MAGIC

    def vcpu_clock_ps(self, vcpu: int) -> int:
        """Return modelled time of one vCPU, live."""
        return int(self._live(vcpu)[0]["clock_ps"][0])

    # Single words: readers in the guest are slower than the plugin publishes, and so could not get
    # a consistent snapshot of all.

    def vcpu_word(self, vcpu: int, name: str) -> int:
        """Return one of ``VCPU_WORDS`` of a vCPU, such as its ``instructions``."""
        return int(self._live(vcpu)[1][name][0])

    def vcpu_sum(self, vcpu: int, name: str) -> int:
        """Return the sum over nodes of a field of ``NodeCounters`` of a vCPU."""
        return int(self._live(vcpu)[1]["node"][name].sum())

    def node_bytes(self, node: int) -> tuple[int, int]:
        """Return the bytes that a node's memory has read and written for all vCPUs."""
        moved = [self._live(vcpu)[1]["node"][0, node] for vcpu in range(self.vcpus)]
        return sum(int(n["read_bytes"]) for n in moved), sum(int(n["write_bytes"]) for n in moved)

    def counters(self, vcpu: int) -> PluginVcpuCounters:
        """Return a consistent snapshot of a vCPU's counters, if no killed machine was writing."""
        head, live = self._live(vcpu)
        for _ in range(_SNAPSHOT_ATTEMPTS):
            sequence = int(head["sequence"][0])
            first, words = head.copy(), live.copy()
            if sequence % 2 == 0 and sequence == int(head["sequence"][0]):
                break
            time.sleep(_SNAPSHOT_WAIT_S)
        return PluginVcpuCounters(
            **{name: int(words[name][0]) for name in VCPU_WORDS},
            **{name: int(first[name][0]) for name in (*_TIME_WORDS, *_SAMPLE_WORDS)},
            nodes=tuple(NodeCounters(*words["node"][0, n].tolist()) for n in range(self.nodes)),
        )

    def ring(self, vcpu: int) -> npt.NDArray[np.uint8]:
        """Return a vCPU's perf ring, header page and data, as writable bytes in place."""
        start = self._word("ring_offset") + vcpu * self._word("ring_stride")
        return self._bytes[start : start + PAGE_BYTES + self._word("ring_data_bytes")]

    def sample(
        self,
        load_period: int,
        store_period: int,
        ldlat_ns: int,
        pair_period: int = 0,
        prefetched_period: int = 0,
        *,
        each_interrupts: bool = False,
        kernel_mode: bool = False,
    ) -> None:
        """Sample one in N load misses and one in N stores (0: none), loads from ``ldlat_ns`` on.

        A second counter of the same loads samples one in ``pair_period``; another samples one in
        ``prefetched_period`` loads of lines that the prefetcher brought. ``each_interrupts``:
        the kernel takes an interrupt for each sample, as for samples with timestamps, instead of
        one for a full buffer. ``kernel_mode``: accesses of the kernel are counted and sampled, too.
        """
        words = {
            "kernel_mode": kernel_mode,
            "each_interrupts": each_interrupts,
            "load_period": load_period,
            "store_period": store_period,
            "pair_period": pair_period,
            "prefetched_period": prefetched_period,
            "ldlat_ns": ldlat_ns,
            "enabled": True,  # the last: the plugin reads the others then
        }
        for name, value in words.items():
            self._header[name][0] = value

    def stop_sampling(self) -> None:
        """Make the plugin stop writing records."""
        self._header["enabled"][0] = 0

    def set_pmu(self, tag_interval: int, *, ibs: bool) -> None:
        """Say what the emulated CPU is; ``ibs`` tags ops, the other counts misses or tags loads."""
        self._header["tag_interval"][0] = tag_interval
        self._header["selection"][0] = Selection.OPS if ibs else Selection.COUNTED

    @property
    def selection(self) -> Selection:
        """How loads are chosen for sampling now."""
        return Selection(self._word("selection"))

    def tag_loads(self, *, tagged: bool) -> None:
        """Choose loads by a tag, or count all misses; of a CPU that tags ops nothing changes."""
        if self.selection is not Selection.OPS:
            self._header["selection"][0] = Selection.TAGGED if tagged else Selection.COUNTED

    def record_misses(self, *vcpus: int) -> None:
        """Start a new recording of these vCPUs' misses, or stop without any."""
        if vcpus:
            self._header["recorded"][0] = 0
        self._header["recorded_vcpus"][0] = sum(1 << vcpu for vcpu in vcpus)

    def watch(self, *vcpus: int) -> None:
        """Measure ``awake_ps`` of these vCPUs, which are halted now."""
        self._header["watched_vcpus"][0] = sum(1 << vcpu for vcpu in vcpus)

    def close(self) -> None:
        """Unmap, once no view of a ring is left; may be called twice."""
        self._header = None
        self._bytes = np.empty(0, np.uint8)
        # BufferError: a view of a ring exists; the mapping ends with it.
        with contextlib.suppress(BufferError):
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _word(self, name: str) -> int:
        return int(self._header[name][0])

    def _live(self, vcpu: int) -> tuple[Any, Any]:
        """Return views of a vCPU's words, which may change while they are read: head, counters."""
        start = self._word("counters_offset") + vcpu * self._word("counters_stride")
        middle = start + _VCPU_HEAD.itemsize
        head = self._bytes[start:middle].view(_VCPU_HEAD)
        return head, self._bytes[middle : middle + _COUNTERS.itemsize].view(_COUNTERS)


ClockKind: TypeAlias = Literal["monotonic", "modelled"]


class Clock:
    """CLOCK_MONOTONIC, or the modelled time of the emulated machine, whose memory it then owns.

    Modelled time is what memory accesses and instructions take on the modelled machine; it stands
    still while no CPU runs. Guest time passes ``dilation`` times slower, and unevenly where the
    emulation falls behind. Each CPU has a clock of its own, which stamps its samples. The machine's
    is that of the CPU furthest ahead, from which a CPU continues when it wakes; it lags execution
    by at most 2 µs of host time.
    """

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self._memory = memory
        self.kind: ClockKind = "modelled" if memory else "monotonic"

    def now_ns(self, cpu: int | None = None) -> int:
        """Return the time now: of one CPU where each has a clock, else of the machine."""
        if self._memory is None:
            return time.monotonic_ns()
        if cpu is None:
            return self._memory.clock_ps // 1000
        return self._memory.vcpu_clock_ps(cpu) // 1000

    def close(self) -> None:
        """Unmap the memory; may be called twice."""
        if self._memory is not None:
            self._memory.close()
