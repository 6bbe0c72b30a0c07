# SPDX-License-Identifier: MIT
"""Totals of the kernel where pages have not been asked for, over files as proc(5) has them."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES
from hmd.heat.table import HeatTable
from hmd.linux.memory_policy import MAX_TABLE_BYTES, MemoryBindings, count_own_pages, count_pages
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import read_topology
from hmd.residency.kernel_totals import REFRESH_S, KernelTotals, OffFastest, ResidentTotals
from hmd.residency.memory_reader import ModelledMemory
from hmd.residency.sweep import ResidencySweep, SweepSettings
from tests.unit.heat.swept_tick import tick
from tests.unit.residency.test_residency_sweep import PROCESS, Spaces, setting

MIB = 1 << 20
NOTHING = np.zeros((1, 2), np.int64)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two nodes: 3 GiB of programs' memory on the first, 1 GiB on the second."""
    for node, program_kib in enumerate((3 << 20, 1 << 20)):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node}\n")
        (folder / "distance").write_text("10 20\n" if node == 0 else "20 10\n")
        (folder / "meminfo").write_text(
            f"Node {node} MemTotal: {8 << 20} kB\nNode {node} MemFree: {1 << 20} kB\n"
            f"Node {node} AnonPages: {program_kib} kB\nNode {node} Mapped: 0 kB\n"
        )
    nodes = tmp_path / "sys/devices/system/node"
    for name in ("online", "has_memory", "has_normal_memory", "has_cpu"):
        (nodes / name).write_text("0-1\n")
    return tmp_path


def program(tree: Path, tables_kib: int, numa_maps: str = "", cgroup: str = "/") -> None:
    folder = tree / f"proc/{PROCESS.pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text(f"VmPTE:\t{tables_kib} kB\n")
    (folder / "numa_maps").write_text(numa_maps)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


def totals(tree: Path, swept: np.ndarray = NOTHING, size: int = 400 * MIB) -> ResidentTotals:
    bindings = MemoryBindings(tree / "proc")
    kernel = KernelTotals(bindings, tree / "proc", tree / "sys", tree / "cgroup")
    topology = read_topology(tree / "sys")
    return kernel.complete(swept, (PROCESS,), {PROCESS}, lambda _: size, topology, 0.0)


def mib(found: ResidentTotals) -> list[int]:
    return [pages * PAGE_BYTES // MIB for pages in found.pages[0].tolist()]


def test_small_process_lies_where_numa_maps_counts_it(tree: Path) -> None:
    program(tree, 100, "10000000 default anon=102400 N0=25600 N1=76800 kernelpagesize_kB=4\n")
    found = totals(tree)
    assert mib(found) == [100, 300]
    assert found.known.tolist() == [0.0]


def test_pages_found_one_by_one_count_before_what_was_read_earlier(tree: Path) -> None:
    program(tree, 100, "10000000 default anon=102400 N0=25600 N1=76800 kernelpagesize_kB=4\n")
    swept = np.array([[50 * MIB // PAGE_BYTES, 0]])
    found = totals(tree, swept)
    assert mib(found) == [100, 300]
    assert found.known[0] == pytest.approx(50 / 400)


def test_process_that_was_swept_meanwhile_has_what_the_sweep_found(tree: Path) -> None:
    """What it shares with others counts for one of them, and its resident size is larger."""
    program(tree, 100, "10000000 default anon=102400 N0=25600 N1=76800 kernelpagesize_kB=4\n")
    kernel = KernelTotals(MemoryBindings(tree / "proc"), tree / "proc", tree / "sys")
    topology, other = read_topology(tree / "sys"), ProcessId(11, 1)
    both, swept = (PROCESS, other), np.array([[9, 0], [0, 0]])
    before = kernel.complete(swept, both, {PROCESS, other}, lambda _: MIB, topology, 0.0)
    after = kernel.complete(swept, both, {other}, lambda _: MIB, topology, 1.0)
    assert before.known[0] < 0.01
    assert (after.known[0], after.pages[0].tolist()) == (1.0, [9, 0])


def test_new_process_is_read_at_once_and_others_are_not_again(tree: Path) -> None:
    program(tree, 100, "10000000 default anon=102400 N0=25600 N1=76800 kernelpagesize_kB=4\n")
    kernel = KernelTotals(MemoryBindings(tree / "proc"), tree / "proc", tree / "sys")
    topology, other = read_topology(tree / "sys"), ProcessId(11, 1)
    read: list[ProcessId] = []

    def size(process: ProcessId) -> int:
        read.append(process)
        return 400 * MIB

    kernel.complete(NOTHING, (PROCESS,), {PROCESS}, size, topology, 0.0)
    both = np.zeros((2, 2), np.int64)
    found = kernel.complete(both, (other, PROCESS), {PROCESS, other}, size, topology, 1.0)
    assert read == [PROCESS, other]
    assert (found.pages[1] * PAGE_BYTES // MIB).tolist() == [100, 300]
    assert found.pages[0].sum() * PAGE_BYTES == pytest.approx(400 * MIB, rel=0.01)


def test_large_process_lies_as_its_cgroup_does(tree: Path) -> None:
    program(tree, 2 * MAX_TABLE_BYTES >> 10, "10000000 default\n", "/db.service")
    group = tree / "cgroup/db.service"
    group.mkdir(parents=True)
    (group / "memory.numa_stat").write_text(
        "anon N0=300000000 N1=100000000\nfile N0=0 N1=900000000\nfile_mapped N0=0 N1=0\n"
    )
    assert mib(totals(tree)) == [300, 100]


def test_process_without_group_lies_as_programs_of_the_machine_do(tree: Path) -> None:
    program(tree, 2 * MAX_TABLE_BYTES >> 10)
    assert mib(totals(tree)) == [300, 100]


def test_totals_of_all_processes_stay_within_the_nodes(tree: Path) -> None:
    program(tree, 2 * MAX_TABLE_BYTES >> 10)
    assert mib(totals(tree, size=64 << 30)) == [3072, 1024]


def test_hugetlbfs_pages_counted_in_base_pages() -> None:
    text = (
        b"00400000 default file=/usr/bin/prog mapped=31 N0=31 kernelpagesize_kB=4\n"
        b"10000000 default file=/dev/hugepages/a huge anon=3 N1=3 kernelpagesize_kB=2048\n"
    )
    assert count_pages(text) == ((0, 31), (1, 3 * 512))


def test_process_is_unswept_until_a_sweep_has_ended() -> None:
    table, spaces, sweep = setting(pages=600)
    spaces.map(CHUNK_BYTES, 4 * 512)
    spaces.fill(CHUNK_BYTES, 4 * 512)
    seen = []
    for _ in range(6):
        tick(table, sweep)
        seen.append(bool(sweep.unswept))
    assert seen[0]
    assert not seen[-1]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS])
def test_refused_query_does_not_say_that_there_are_no_pages(number: int) -> None:
    """A seccomp profile that refuses move_pages(2): pages are there, wherever that is."""

    class Refusing(Spaces):
        refuses = False

        def nodes(self, pid: int, addresses: np.ndarray) -> np.ndarray:
            if self.refuses:
                return np.full(len(addresses), -number, np.int16)
            return super().nodes(pid, addresses)

    table, spaces = HeatTable(), Refusing()
    table.track_processes([PROCESS])
    sweep = ResidencySweep(
        SweepSettings(max_sweep_ticks=1), ModelledMemory(spaces), clock=lambda: 0.0
    )
    spaces.map(CHUNK_BYTES, 512)
    spaces.fill(CHUNK_BYTES, 512)
    spaces.refuses = True
    for _ in range(3):
        tick(table, sweep)
    assert sweep.refusals == {ProcessId(10, 1): number}
    assert sweep.unswept == {PROCESS}
    spaces.refuses = False
    for _ in range(6):
        tick(table, sweep)
    assert not sweep.refusals
    assert not sweep.unswept
    assert int(table.resident_pages(4)[0][0, 1]) == 512


def test_nothing_is_left_to_learn_where_there_are_no_processes() -> None:
    none = ResidentTotals(np.zeros((0, 2), np.int64), np.zeros(0))
    assert none.known_share == 1.0


OWN = (
    "10000000 default anon=100 dirty=100 N0=60 N1=40 kernelpagesize_kB=4\n"
    "20000000 default file=/dev/shm/x dirty=8 mapmax=2 N1=8 kernelpagesize_kB=4\n"
    "30000000 default file=/lib/libc.so mapped=300 mapmax=40 N1=300 kernelpagesize_kB=4\n"
    "40000000 default file=/lib/libc.so anon=2 dirty=2 N0=2 kernelpagesize_kB=4\n"
    "50000000 default file=/huge\\040(deleted) huge dirty=1 N1=1 kernelpagesize_kB=2048\n"
)


def test_own_pages_are_without_page_cache_of_files(tree: Path) -> None:
    program(tree, 100, OWN)
    assert count_own_pages(PROCESS.pid, tree / "proc") == ((0, 62), (1, 48 + 512))
    program(tree, 1 + (MAX_TABLE_BYTES >> 10), OWN)
    assert count_own_pages(PROCESS.pid, tree / "proc") is None
    assert count_own_pages(PROCESS.pid + 1, tree / "proc") is None


def test_memory_off_the_fastest_tier_is_counted_anew_and_not_at_each_tick(tree: Path) -> None:
    off = OffFastest(tree / "proc", lambda: 0.0)
    whole = {PROCESS: np.array([1000, 7])}

    def slow(now_s: float) -> int:
        return off.by_target({PROCESS: "db"}, whole, (0,), now_s)["db"] // PAGE_BYTES

    program(tree, 100, OWN)
    assert slow(0.0) == 560
    program(tree, 100, OWN.partition("\n")[0].replace("N1=40", "") + "\n")
    assert slow(REFRESH_S / 2) == 560
    assert slow(REFRESH_S) == 0
    # Where it cannot be counted, by what is known otherwise; a new target at once.
    program(tree, 1 + (MAX_TABLE_BYTES >> 10), OWN)
    assert off.by_target({PROCESS: "other"}, whole, (0,), REFRESH_S) == {"other": 7 * PAGE_BYTES}
