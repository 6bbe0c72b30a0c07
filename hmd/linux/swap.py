# SPDX-License-Identifier: MIT
"""Swap as far memory: which devices there are, what they lack, and whether they still answer.

Areas are those of /proc/swaps (proc(5)), their devices those of /sys/class/block; nothing is
opened. The kernel counts no failed requests of swap: :class:`SwapWatch` sees devices that are gone,
that their driver has given up, that are not connected, and whose requests no longer end, in some
50 µs per area.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.base.errors import Diagnostic, Severity
from hmd.base.quantities import format_mib
from hmd.linux.procfs import PROC, SYSFS, parse_ids, read_int, read_stat, read_text

STALL_S: Final = 5.0
"""Time in which a device must end some request of those that it has."""

NBD_FAILURE: Final = Path("/run/hmd-far/failure")
"""Says why nbd has no connection, in a line (hmd.daemon.nbd_client); empty or absent where it has.
Requests that wait for one are not under way for the kernel."""

_PF_MEMALLOC_NOIO: Final = 0x00080000  # include/linux/sched.h; what PR_SET_IO_FLUSHER sets
_NBD_SERVERS: Final = frozenset({"nbd-server", "nbdkit", "qemu-nbd", "qemu-storage-da"})
_DISK: Final = re.compile(r"((?:nvme|nbd|mmcblk|loop|zd)\d.*?)p\d+|((?:[hsv]|xv)d[a-z]+)\d+")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_DEAD: Final = frozenset({"dead", "deleting", "deleting (no IO)", "offline", "transport-offline"})
_KINDS: Final = {"zram": "zram", "nvme": "NVMe", "nbd": "nbd", "zd": "ZFS volume", "dm-": "mapped"}
_CONFIG: Final = {"zram": "ZRAM", "nbd": "BLK_DEV_NBD"}


@dataclass(frozen=True, slots=True)
class SwapArea:
    """An area in use: its path, kind of device, bytes, and priority (the highest is filled first).

    ``device`` is its name in /sys/class/block, empty for a file.
    """

    path: str
    device: str
    kind: str
    size_bytes: int
    used_bytes: int
    priority: int


def read_swap_areas(proc: Path = PROC) -> tuple[SwapArea, ...]:
    """Return the areas in use; malformed lines are skipped."""
    areas = []
    for line in (read_text(proc / "swaps") or "").splitlines()[1:]:
        words = line.split()
        if len(words) != 5 or not all(w.removeprefix("-").isdigit() for w in words[2:]):
            continue
        path = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), words[0])
        path = path.removesuffix(" (deleted)")
        device = path.rpartition("/")[2] if words[1] == "partition" else ""
        kind = next((kind for start, kind in _KINDS.items() if device.startswith(start)), "disk")
        size_bytes, used_bytes, priority = (int(word) << 10 for word in words[2:])
        kind = kind if device else "file"
        areas.append(SwapArea(path, device, kind, size_bytes, used_bytes, priority >> 10))
    return tuple(areas)


class SwapWatch:
    """Says which area of swap does not work any more; one for a daemon."""

    def __init__(self, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        self._proc, self._sysfs = proc, sysfs
        self._nbd_failure = proc.parent / NBD_FAILURE.relative_to("/")
        self._progress: dict[str, tuple[tuple[str, ...], float]] = {}
        self._errors: dict[str, int] = {}

    def failure(self, now_s: float) -> str:
        """Return what fails in a line, empty where all areas work; call it every few seconds."""
        for area in read_swap_areas(self._proc):
            if area.device and (reason := self._failure_of(area.device, now_s)):
                return f"swap on {area.path} fails: {reason}"
        return ""

    def _failure_of(self, device: str, now_s: float) -> str:
        folder = self._sysfs / "class/block" / device
        if not read_int(folder / "size"):
            self._progress.pop(device, None)
            return "the device is gone"
        if device.startswith("nbd") and (reason := read_text(self._nbd_failure)):
            return reason
        disk = self._sysfs / "class/block" / disk_of(device) / "device"
        if (state := read_text(disk / "state")) in _DEAD:
            return f"its driver says {state}"
        errors = int(read_text(disk / "ioerr_cnt") or "0", 16)
        if errors > self._errors.setdefault(device, errors):
            return "requests had errors"
        # Documentation/block/stat.rst: ended reads and writes, and requests under way.
        words = (read_text(folder / "stat") or "").split()
        ended, waits = tuple(words[0:5:4]), words[8:9] not in ([], ["0"])
        before, since_s = self._progress.get(device, (ended, now_s))
        since_s = since_s if waits and ended == before else now_s
        self._progress[device] = ended, since_s
        return f"no request has ended for {STALL_S:.0f} s" if now_s - since_s >= STALL_S else ""


def disk_of(device: str) -> str:
    """Return the disk of a partition, or the device itself."""
    match = _DISK.fullmatch(device)
    return (match[1] or match[2]) if match else device


def far_memory_findings(proc: Path = PROC, sysfs: Path = SYSFS) -> tuple[Diagnostic, ...]:
    """Return what far memory there is, what could be, and what would make it hang or slow."""
    areas = read_swap_areas(proc)
    generations = int(read_text(sysfs / "kernel/mm/lru_gen/enabled") or "0", 16) & 1
    return (
        _swap(areas),
        _module("zram", proc, sysfs),
        _module("nbd", proc, sysfs),
        _nvme(proc, sysfs),
        _zswap(areas, sysfs),
        Diagnostic("multi-generational LRU", Severity.OK, "on" if generations else "off"),
        *_nbd(areas, proc, sysfs),
        *_memory_devices(sysfs),
    )


def _swap(areas: Sequence[SwapArea]) -> Diagnostic:
    name = "swap"
    state = "; ".join(
        f"{area.path} ({area.kind}, {format_mib(area.size_bytes)}, {format_mib(area.used_bytes)}"
        f" used, priority {area.priority})"
        for area in areas
    )
    if volumes := [area.path for area in areas if area.kind == "ZFS volume"]:
        why = "a ZFS volume allocates memory to write: machines hang when memory is short"
        return Diagnostic(name, Severity.WARN, state, why, f"swapoff {volumes[0]}")
    state = state or "none (hmd enable --far zram:SIZE, nbd:HOST/EXPORT or a disk)"
    return Diagnostic(name, Severity.OK, state)


def _module(name: str, proc: Path, sysfs: Path) -> Diagnostic:
    """Return whether a driver is loaded, or is among the kernel's modules."""
    if (sysfs / "module" / name).is_dir():
        return Diagnostic(name, Severity.OK, "loaded")
    folder = proc.parent / "lib/modules" / (read_text(proc / "sys/kernel/osrelease") or "unknown")
    lists = [read_text(folder / file) for file in ("modules.dep", "modules.builtin")]
    if lists == [None, None]:
        return Diagnostic(name, Severity.OK, "not loaded")
    found = any(f"/{name}.ko" in (text or "") for text in lists)
    missing = f"not in this kernel (CONFIG_{_CONFIG[name]})"
    return Diagnostic(name, Severity.OK, "can be loaded" if found else missing)


def _nvme(proc: Path, sysfs: Path) -> Diagnostic:
    found = []
    for folder in sorted((sysfs / "class/block").glob("nvme*n*")):
        size_bytes = (read_int(folder / "size") or 0) << 9
        if size_bytes and not (folder / "partition").exists():
            use = use_of(f"/dev/{folder.name}", proc, sysfs) or "no use known"
            found.append(f"/dev/{folder.name} ({format_mib(size_bytes)}, {use})")
    return Diagnostic("NVMe", Severity.OK, "; ".join(found) or "none")


def use_of(device: str, proc: Path = PROC, sysfs: Path = SYSFS) -> str:
    """Return what a block device is used for, empty where no use is known.

    What is written on it, such as a file system that is not mounted, is not looked at.
    """
    name = device.rpartition("/")[2]
    folder = sysfs / "class/block" / name
    if any(area.device == name for area in read_swap_areas(proc)):
        return "is used for swap"
    if parts := sorted(path.parent.name for path in folder.glob("*/partition")):
        return f"has partitions: {', '.join(parts)}"
    if holders := sorted(path.name for path in folder.glob("holders/*")):
        return f"is used by {', '.join(holders)}"
    mounted = re.search(rf"^{re.escape(device)} (\S+)", read_text(proc / "mounts") or "", re.M)
    return f"is mounted on {mounted[1]}" if mounted else ""


def _zswap(areas: Sequence[SwapArea], sysfs: Path) -> Diagnostic:
    name = "zswap"
    folder = sysfs / "module/zswap/parameters"
    if (read_text(folder / "enabled") or "N") not in ("Y", "1"):
        return Diagnostic(name, Severity.OK, "off")
    state = f"on, up to {read_int(folder / 'max_pool_percent')}% of memory"
    if not any(area.kind == "zram" for area in areas):
        return Diagnostic(name, Severity.OK, state)
    why = "pages on their way to zram are compressed twice, and kept by zswap first"
    action = "echo N > /sys/module/zswap/parameters/enabled"
    return Diagnostic(name, Severity.WARN, state, why, action)


def _nbd(areas: Sequence[SwapArea], proc: Path, sysfs: Path) -> Iterator[Diagnostic]:
    """Yield swap over few connections, and servers here that wait for the memory that they free."""
    cpus = len(parse_ids(read_text(sysfs / "devices/system/cpu/online")))
    areas = [area for area in areas if area.kind == "nbd"]
    for area in areas:
        queues = len(list((sysfs / "class/block" / disk_of(area.device)).glob("mq/*")))
        if 0 < queues < cpus:
            state = f"{queues} of {area.path}, with {cpus} CPUs"
            why = "CPUs that share a connection wait for each other"
            action = f"connect {area.path} once per CPU (nbd-client -C {cpus})"
            yield Diagnostic("nbd connections", Severity.WARN, state, why, action)
    for entry in sorted(proc.iterdir()) if areas else ():
        stat = read_stat(int(entry.name), proc) if entry.name.isdigit() else None
        name = stat.name.decode("utf-8", "replace") if stat else ""
        if stat and name in _NBD_SERVERS and not stat.flags & _PF_MEMALLOC_NOIO:
            yield Diagnostic(
                "nbd server",
                Severity.WARN,
                f"{name} (pid {stat.pid}) is without PR_SET_IO_FLUSHER",
                "swap whose server runs on the same machine hangs once the server needs memory",
                "use a server that sets it (prctl(2)), or one on another machine",
            )


def _memory_devices(sysfs: Path) -> Iterator[Diagnostic]:
    """Yield CXL and persistent memory that is not a node."""
    for device in sorted((sysfs / "bus/dax/devices").glob("dax*")):
        driver = (device / "driver").resolve().name if (device / "driver").exists() else "none"
        if driver != "kmem" and (size_bytes := read_int(device / "size")):
            node = f"daxctl reconfigure-device --mode=system-ram {device.name} makes it one"
            state = f"{device.name}, {format_mib(size_bytes)}, not a memory node: {node}"
            yield Diagnostic("DAX device", Severity.OK, state)
