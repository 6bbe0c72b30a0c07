"""Fixtures for every room: a real process that touches memory, an emulated PMU's memory, DAMON."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmd.machine.process_id import ProcessId, identify, read_stat

# GNU readline, which pytest imports, exports the terminal's size to children (readline(3),
# rl_change_environment): tables of commands that tests start would be as narrow as that terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)

# A shell starts background jobs with SIGINT ignored, which children inherit across exec; what
# tests interrupt must react. Python resets a handler to the default in a child that calls exec.
signal.signal(signal.SIGINT, signal.default_int_handler)

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


class DamonKernel:
    """DAMON's sysfs tree, where no kernel keeps one: ``write`` does what mm/damon/sysfs.c does.

    ``accesses`` are ranges (start, end, count) by pid that the next look finds, once, in all
    regions that they reach. The real kernel's is tested in the emulated machine
    (tests/vm/dram_pm/test_samplers.py).
    """

    SCHEME = (
        *("action", "access_pattern/sz/max", "access_pattern/age/max"),
        *("access_pattern/nr_accesses/min", "access_pattern/nr_accesses/max"),
        *("filters/nr_filters", "tried_regions/total_bytes"),
    )
    CONTEXT = (
        *("operations", "targets/nr_targets", "schemes/nr_schemes"),
        *(f"monitoring_attrs/intervals/{name}" for name in ("sample_us", "aggr_us", "update_us")),
        *(f"monitoring_attrs/nr_regions/{name}" for name in ("min", "max")),
    )
    FILTER = ("type", "damon_target_idx", "matching")

    def __init__(self, sysfs: Path) -> None:
        self.sysfs = sysfs
        self.path = sysfs / "kernel/mm/damon/admin/kdamonds"
        self._files(self.path, ("nr_kdamonds",))
        self.accesses: dict[int, list[tuple[int, int, int]]] = {}
        self.looks = 0
        self.exclusive = False
        self.slow = False
        """Whether counting takes so long that it is given up."""
        self.busy = 0
        """How many writes from now on are answered EBUSY."""

    def write(self, path: Path, text: str) -> None:
        """Write a file, and do what the kernel does then."""
        if self.busy:
            self.busy -= 1
            raise OSError(errno.EBUSY, "busy")
        if not path.is_file():
            raise OSError(errno.ENOENT, "no such file")
        folder = path.parent
        match path.name:
            case "nr_kdamonds":
                self._refuse(errno.EBUSY, any(self.on(i) for i in range(self._number(path))))
                self._children(path, text, ("state", "pid", "contexts/nr_contexts"))
                for i in range(int(text)):
                    (folder / f"{i}/state").write_text("off\n")
            case "nr_contexts":
                self._children(path, text, self.CONTEXT)
            case "nr_targets":
                self._children(path, text, ("pid_target", "regions/nr_regions"))
            case "nr_regions":
                self._children(path, text, ("start", "end"))
            case "nr_schemes":
                self._children(path, text, self.SCHEME)
            case "nr_filters":
                self._children(path, text, self.FILTER)
            case "state":
                self._command(folder, text)
                return
        path.write_text(f"{text}\n")

    def on(self, index: int = 0) -> bool:
        """Whether a kdamond runs."""
        state = self.path / f"{index}/state"
        return state.exists() and state.read_text() == "on\n"

    def targets(self) -> list[int]:
        """The pids that are monitored."""
        count = self._number(self.path / "0/contexts/0/targets/nr_targets")
        return [
            self._number(self.path / f"0/contexts/0/targets/{i}/pid_target") for i in range(count)
        ]

    def reap(self) -> None:
        """End the kdamond where all its targets have gone."""
        if self.on() and not any(alive(pid) for pid in self.targets()):
            (self.path / "0/state").write_text("off\n")

    def _command(self, kdamond: Path, text: str) -> None:
        self.reap()
        running = self.on(int(kdamond.name))
        match text:
            case "on":
                self._refuse(errno.EBUSY, running or self.exclusive)
                self._refuse(errno.EINVAL, not all(alive(pid) for pid in self.targets()))
                (kdamond / "pid").write_text(f"{os.getpid()}\n")
                (kdamond / "state").write_text("on\n")
            case "off":
                self._refuse(errno.EPERM, not running)
                (kdamond / "state").write_text("off\n")
            case "update_schemes_tried_regions":
                self._refuse(errno.EINVAL, not running)
                for i, pid in enumerate(self.targets()):
                    self._tell(kdamond / f"contexts/0/schemes/{i}", pid)
                self.looks += 1

    def _tell(self, scheme: Path, pid: int) -> None:
        matching = (scheme / "filters/0/matching").read_text()
        index = self._number(scheme / "filters/0/damon_target_idx")
        assert (matching, scheme.name) == ("N\n", str(index))
        shutil.rmtree(scheme / "tried_regions")
        self._files(scheme / "tried_regions", ("total_bytes",))
        accesses, found = self.accesses.get(pid, []), False
        for i, (start, end) in enumerate([] if self.slow else self.regions(index)):
            counts = [n for first, last, n in accesses if first < end and start < last]
            found = found or bool(counts)
            names = ("start", "end", "nr_accesses", "age")
            self._files(scheme / f"tried_regions/{i}", names)
            for name, value in zip(names, (start, end, sum(counts), 0), strict=True):
                (scheme / f"tried_regions/{i}/{name}").write_text(f"{value}\n")
        if found:
            del self.accesses[pid]

    def regions(self, target: int) -> list[tuple[int, int]]:
        """The regions of a target."""
        folder = self.path / f"0/contexts/0/targets/{target}/regions"
        each = range(self._number(folder / "nr_regions"))
        return [
            (self._number(folder / f"{i}/start"), self._number(folder / f"{i}/end")) for i in each
        ]

    def _children(self, count: Path, text: str, names: tuple[str, ...]) -> None:
        for i in range(self._number(count)):
            shutil.rmtree(count.parent / str(i), ignore_errors=True)
        for i in range(int(text)):
            self._files(count.parent / str(i), names)

    def _files(self, folder: Path, names: tuple[str, ...]) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("0\n")

    def _number(self, path: Path) -> int:
        return int(path.read_text())

    def _refuse(self, code: int, when: bool) -> None:
        if when:
            raise OSError(code, os.strerror(code))


def alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and not stat.exited


@pytest.fixture
def damon_kernel(tmp_path: Path) -> DamonKernel:
    return DamonKernel(tmp_path / "damon")


class IdleBitmap:
    """The bitmap of idle page tracking, where the kernel has none; frames that are idle."""

    def __init__(self) -> None:
        self.idle: set[int] = set()
        self.untracked: set[int] = set()
        """Frames that take no mark, as those of a huge page but the first."""

    def read(self, word: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return words."""
        numbers = range(word, word + count)
        bits = [sum(1 << i for i in range(64) if n * 64 + i in self.idle) for n in numbers]
        return np.array(bits, np.uint64)

    def mark(self, word: int, words: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        """Mark frames as idle; bits that are 0 change nothing."""
        for n, bits in enumerate(words.tolist(), word):
            self.idle |= {n * 64 + i for i in range(64) if bits >> i & 1} - self.untracked

    def close(self) -> None: ...


@pytest.fixture
def idle_bitmap() -> IdleBitmap:
    return IdleBitmap()
