# SPDX-License-Identifier: MIT
"""Scenarios of memory that a policy, a cpuset, KSM, userfaultfd or swap has a say in."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hmd.linux.memory_policy import MemoryBindings
from hmd.linux.page_calls import query_nodes
from hmd.migrate import Mover, MoverSettings
from hmd.residency.memory_reader import MemoryReader
from tests.vm.programs.move_scenarios.command_line import command
from tests.vm.programs.move_scenarios.moves import mover, names, names_of_nodes, plan_of, raw
from tests.vm.programs.move_scenarios.target import MIB, PAGE, Target, checked, libc

KSM = Path("/sys/kernel/mm/ksm")
MERGEABLE = 12  # MADV_MERGEABLE
PAGEOUT = 21  # MADV_PAGEOUT

# linux/userfaultfd.h: _IOWR(0xAA, 0x3f, 24 bytes), _IOWR(0xAA, 0x00, 32 bytes)
SYS_USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER = 323, 0xC018AA3F, 0xC020AA00
REGISTER_MISSING = 1


def bound() -> dict[str, Any]:
    """Memory that mbind(2) binds to node 0: the kernel would move it, hmd does not."""
    with Target(64 * PAGE) as target:
        plan = plan_of(target, 1)
        kept = Mover(MoverSettings(rate_bytes_per_s=None), bindings=MemoryBindings()).apply(plan)
        cli = command("--pid", target.pid, "--to", 1, "--range", target.range)
        movable = [
            bool(piece.movable[row].all())
            for piece in MemoryReader().pieces(target.process)
            if (row := (piece.start <= target.start) & (piece.end > target.start)).any()
        ]
        nodes = names_of_nodes(target)
        by_kernel = raw(target.pid, target.addresses[:2].tolist(), 1)
        return {
            "status": names(kept.status), "calls": kept.calls, "cli": cli,
            "movable": movable, "nodes": nodes, "raw": by_kernel,
        }  # fmt: skip


def merged() -> dict[str, Any]:
    """Equal pages that KSM has made one: several places map it, so it moves as shared pages do."""

    def put(start: int, length: int) -> None:
        ctypes.memset(start, 7, length)
        checked(libc.madvise(start, length, MERGEABLE))

    (KSM / "pages_to_scan").write_text("1000")
    (KSM / "sleep_millisecs").write_text("1")
    (KSM / "run").write_text("1")
    try:
        with Target(64 * PAGE, put=put) as target:
            end_s = time.monotonic() + 60
            while int((KSM / "pages_sharing").read_text()) < 48 and time.monotonic() < end_s:
                time.sleep(0.1)
            sharing = int((KSM / "pages_sharing").read_text())
            before = target.digest
            outcome = mover().apply(plan_of(target, 1))
            return {
                "sharing": sharing,
                "status": names(outcome.status),
                "intact": target.digest == before,
            }
    finally:
        (KSM / "run").write_text("2")  # unmerges


def userfault() -> dict[str, Any]:
    """Half of the pages are registered for missing faults, and no one answers these."""

    def prepare(start: int) -> None:
        checked(libc.madvise(start + 32 * PAGE, 32 * PAGE, mmap.MADV_DONTNEED))
        fd = checked(libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC))
        fcntl.ioctl(fd, UFFDIO_API, bytearray(struct.pack("=3Q", 0xAA, 0, 0)))
        area = bytearray(struct.pack("=4Q", start, 64 * PAGE, REGISTER_MISSING, 0))
        fcntl.ioctl(fd, UFFDIO_REGISTER, area)

    with Target(64 * PAGE, prepare=prepare) as target:
        outcome = mover().apply(plan_of(target, 1))
        # A fault of one of the absent pages would wait for ever: none may have happened.
        state = Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return {"status": names(outcome.status), "state": state}


@contextlib.contextmanager
def swap(size: int) -> Iterator[None]:
    """A swap area on a loop device of a file in memory."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(size)
        device = subprocess.run(
            ["losetup", "-f", "--show", file.name], check=True, capture_output=True, text=True
        ).stdout.strip()
        try:
            subprocess.run(["mkswap", device], check=True, capture_output=True)
            subprocess.run(["swapon", device], check=True, capture_output=True)
            try:
                yield
            finally:
                subprocess.run(["swapoff", device], check=True)
        finally:
            subprocess.run(["losetup", "-d", device], check=True)


def compressed() -> dict[str, Any]:
    """Pages that zswap holds are on no node: neither the sweep nor a move brings them back."""
    enabled = Path("/sys/module/zswap/parameters/enabled")
    enabled.write_text("Y")
    try:
        with swap(16 * MIB), Target(256 * PAGE) as target:
            before = target.digest
            pidfd = os.pidfd_open(target.pid)
            vector = (ctypes.c_uint64 * 2)(target.start, 256 * PAGE)
            checked(libc.syscall(440, pidfd, ctypes.byref(vector), 1, PAGEOUT, 0))
            os.close(pidfd)
            out = int((query_nodes(target.pid, target.addresses) < 0).sum())
            outcome = mover().apply(plan_of(target, 1))
            still = int((query_nodes(target.pid, target.addresses) < 0).sum())
            return {
                "out": out, "still": still, "absent": names(outcome.status).get("NOT_PRESENT", 0),
                "intact": target.digest == before,
            }  # fmt: skip
    finally:
        enabled.write_text("N")


def cpuset_v1() -> dict[str, Any]:
    """A cpuset of the first version; its hierarchy is not in each kernel."""
    root = Path(tempfile.mkdtemp())
    words = ["mount", "-t", "cgroup", "-o", "cpuset", "cpuset", str(root)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        return {"mounted": False}
    group = root / "hmd-test"
    try:
        group.mkdir()
        (group / "cpuset.cpus").write_text("0")
        (group / "cpuset.mems").write_text("0")
        with Target(16 * PAGE) as target:
            (group / "cgroup.procs").write_text(str(target.pid))
            status = names(mover().apply(plan_of(target, 1)).status)
        end_s = time.monotonic() + 10
        while np.any((group / "cgroup.procs").read_text().split()) and time.monotonic() < end_s:
            time.sleep(0.05)
        group.rmdir()
        return {"mounted": True, "status": status}
    finally:
        subprocess.run(["umount", str(root)], check=False)
        root.rmdir()
