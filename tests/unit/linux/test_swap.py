# SPDX-License-Identifier: MIT
"""Far memory: what doctor says of swap devices, and how failures of them are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.base.errors import Diagnostic, Severity
from hmd.linux.cgroups import memory_pressure
from hmd.linux.swap import STALL_S, SwapWatch, disk_of, far_memory_findings, read_swap_areas, use_of

HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
SERVER = "77 (nbd-server) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 9" + " 0" * 28


class Tree:
    """A machine of files below a folder."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self.proc.mkdir()
        self.write("sys/devices/system/cpu/online", "0-3")

    def write(self, path: str, text: str) -> None:
        there = self.proc.parent / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text + "\n")

    def swap(self, *lines: str) -> None:
        self.write("proc/swaps", HEADER + "\n".join(lines))

    def device(self, name: str, reads: int = 0, writes: int = 0, waiting: int = 0) -> None:
        self.write(f"sys/class/block/{name}/size", str(1 << 21))
        stat = f"{reads} 0 0 0 {writes} 0 0 0 {waiting} 0 0"
        self.write(f"sys/class/block/{name}/stat", stat)

    def findings(self) -> dict[str, Diagnostic]:
        return {found.name: found for found in far_memory_findings(self.proc, self.sysfs)}

    def watch(self) -> SwapWatch:
        return SwapWatch(self.proc, self.sysfs)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_areas_are_read_with_kind_size_and_priority(tree: Tree) -> None:
    tree.swap(
        "/dev/zram0 partition 65532 120 100",
        "/swap\\040file file 1024 0 -2",
        "/dev/nvme0n1p3 partition 8 0 5",
        "damaged line",
    )
    zram, file, nvme = read_swap_areas(tree.proc)
    assert (zram.device, zram.kind, zram.size_bytes) == ("zram0", "zram", 65532 << 10)
    assert (zram.used_bytes, zram.priority) == (120 << 10, 100)
    assert (file.path, file.device, file.kind, file.priority) == ("/swap file", "", "file", -2)
    assert (nvme.kind, disk_of(nvme.device)) == ("NVMe", "nvme0n1")
    assert [disk_of(name) for name in ("sda3", "zram0", "nbd15", "nbd1p2", "dm-0")] == [
        "sda",
        "zram0",
        "nbd15",
        "nbd1",
        "dm-0",
    ]


def test_doctor_machine_without_swap_says_how_to_get_it(tree: Tree) -> None:
    tree.write("proc/sys/kernel/osrelease", "6.12.1")
    tree.write("lib/modules/6.12.1/modules.dep", "kernel/drivers/block/zram/zram.ko.xz:")
    found = tree.findings()
    assert "hmd enable --far" in found["swap"].state
    assert found["zram"].state == "can be loaded"
    assert found["nbd"].state == "not in this kernel (CONFIG_BLK_DEV_NBD)"
    assert found["multi-generational LRU"].state == "off"
    assert {each.level for each in found.values()} == {Severity.OK}


def test_doctor_engines_and_what_makes_them_slow_or_hang(tree: Tree) -> None:
    tree.swap(
        "/dev/zram0 partition 1048576 0 100",
        "/dev/nbd0 partition 1048576 0 10",
        "/dev/zd16 partition 1048576 0 1",
    )
    tree.write("sys/module/zswap/parameters/enabled", "Y")
    tree.write("sys/module/zswap/parameters/max_pool_percent", "20")
    tree.write("sys/kernel/mm/lru_gen/enabled", "0x0007")
    tree.write("sys/class/block/nbd0/mq/0/nr_tags", "128")
    tree.write("proc/77/stat", SERVER.format(flags=0x400000))
    tree.write("sys/bus/dax/devices/dax0.0/size", str(64 << 30))
    found = tree.findings()
    assert found["swap"].level == Severity.WARN
    assert "swapoff /dev/zd16" in found["swap"].action
    assert found["zswap"].level == Severity.WARN
    assert found["nbd connections"].state == "1 of /dev/nbd0, with 4 CPUs"
    assert found["nbd server"].state == "nbd-server (pid 77) is without PR_SET_IO_FLUSHER"
    assert found["multi-generational LRU"].state == "on"
    assert "dax0.0, 65536 MiB, not a memory node" in found["DAX device"].state
    tree.write("proc/77/stat", SERVER.format(flags=0x480000))
    assert "nbd server" not in tree.findings()


def test_doctor_names_disks_and_their_use(tree: Tree) -> None:
    for name in ("nvme0n1", "nvme1n1", "nvme2n1"):
        tree.device(name)
    tree.write("sys/class/block/nvme0n1/nvme0n1p1/partition", "1")
    tree.write("proc/mounts", "/dev/nvme1n1 /data ext4 rw 0 0")
    state = tree.findings()["NVMe"].state
    assert "/dev/nvme0n1 (1024 MiB, has partitions: nvme0n1p1)" in state
    assert "/dev/nvme1n1 (1024 MiB, is mounted on /data)" in state
    assert "/dev/nvme2n1 (1024 MiB, no use known)" in state
    tree.swap("/dev/nvme2n1 partition 1048576 0 5")
    assert use_of("/dev/nvme2n1", tree.proc, tree.sysfs) == "is used for swap"


def test_watch_device_that_ends_no_request_fails_until_it_does(tree: Tree) -> None:
    tree.swap("/dev/nbd0 partition 1048576 0 10")
    watch = tree.watch()
    tree.device("nbd0", writes=5, waiting=3)
    assert watch.failure(0.0) == ""
    assert watch.failure(STALL_S - 1) == ""
    tree.device("nbd0", writes=6, waiting=3)
    assert watch.failure(STALL_S) == ""
    assert "no request has ended" in watch.failure(2 * STALL_S)
    tree.device("nbd0", reads=9, writes=6, waiting=3)
    assert watch.failure(2 * STALL_S + 1) == ""
    tree.device("nbd0", reads=9, writes=6)
    assert watch.failure(9 * STALL_S) == ""


def test_watch_devices_that_are_gone_given_up_or_have_errors_fail(tree: Tree) -> None:
    tree.swap("/dev/sdb2 partition 1048576 0 10", "/file file 8 0 1")
    watch = tree.watch()
    assert watch.failure(0.0) == "swap on /dev/sdb2 fails: the device is gone"
    tree.device("sdb2")
    tree.write("sys/class/block/sdb/device/ioerr_cnt", "0x2")
    assert watch.failure(1.0) == ""
    tree.write("sys/class/block/sdb/device/ioerr_cnt", "0x3")
    assert "requests had errors" in watch.failure(2.0)
    tree.write("sys/class/block/sdb/device/state", "offline")
    assert "its driver says offline" in watch.failure(3.0)


def test_watch_nbd_without_a_connection_fails_with_what_its_client_says(tree: Tree) -> None:
    tree.swap("/dev/nbd0 partition 1048576 0 50")
    tree.device("nbd0")
    watch = tree.watch()
    assert watch.failure(0.0) == ""
    tree.write("run/hmd-far/failure", "2 connections are missing: refused")
    assert watch.failure(1.0) == "swap on /dev/nbd0 fails: 2 connections are missing: refused"
    tree.write("run/hmd-far/failure", "")
    assert watch.failure(2.0) == ""


def test_memory_pressure_of_the_group_or_else_of_the_machine(tree: Tree) -> None:
    tree.write("proc/5/cgroup", "0::/a.slice")
    assert memory_pressure(5, tree.proc, tree.sysfs) is None
    tree.write("proc/pressure/memory", "some avg10=1.50 avg60=0.00 avg300=0.00 total=9")
    assert memory_pressure(5, tree.proc, tree.sysfs) == pytest.approx(0.015)
    tree.write("sys/a.slice/memory.pressure", "some avg10=40.00 avg60=0.00 avg300=0.00 total=9")
    assert memory_pressure(5, tree.proc, tree.sysfs) == pytest.approx(0.4)
