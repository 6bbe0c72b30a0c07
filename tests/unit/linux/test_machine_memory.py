# SPDX-License-Identifier: MIT
from collections.abc import Callable
from pathlib import Path

import pytest

from hmd.base.errors import MissingError
from hmd.base.units import PAGE_BYTES
from hmd.linux.machine_memory import MemoryRow, ProcessMemory, read_cgroups
from tests.unit.linux.conftest import FakeProc

GROUP = "0::/system.slice/db.service\n"


def add(
    proc: FakeProc, pid: int, pages: int, *, tables_kib: int = 4, readable: bool = True
) -> None:
    """Add a process with a quarter of its pages on node 1, in pages of 2 MiB of hugetlbfs."""
    proc.add(pid, exe=f"/bin/p{pid}", cgroup=GROUP, rss_pages=pages)
    folder = proc.root / str(pid)
    with (folder / "status").open("a") as status:
        status.write(f"VmPTE:\t{tables_kib} kB\n")
    if readable:
        huge = pages // 4 * PAGE_BYTES // (2 << 20)
        (folder / "numa_maps").write_text(
            f"7f00 default anon={pages} N0={pages - pages // 4} kernelpagesize_kB=4\n"
            f"7fff default file=/x huge N1={huge} kernelpagesize_kB=2048\n"
        )


def by_pid(rows: list[MemoryRow]) -> dict[int, MemoryRow]:
    return {row.pid: row for row in rows if row.pid > 2}


def test_processes_have_the_kernels_counts_by_node(proc: FakeProc, tmp_path: Path) -> None:
    add(proc, 10, 4096)
    row = by_pid(ProcessMemory(proc.root, tmp_path).read(1.0))[10]
    assert row == MemoryRow(
        "p10", 10, "/system.slice/db.service", 16 << 20, {0: 12 << 20, 1: 4 << 20}
    )


def test_processes_that_may_not_be_read_have_shares_of_their_cgroup(
    proc: FakeProc, tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    add(proc, 10, 4096, readable=False)
    reader = ProcessMemory(proc.root, tmp_path / "cgroup")
    row = by_pid(reader.read(1.0))[10]
    assert (row.known, row.total_bytes, row.node_bytes) == ("forbidden", 16 << 20, {})
    write(
        "cgroup/system.slice/db.service/memory.numa_stat",
        "anon N0=200 N1=90\nfile_mapped N0=100 N1=10\n",
    )
    row = by_pid(reader.read(1.0))[10]
    assert row.node_bytes == {0: 12 << 20, 1: 4 << 20}


def test_rounds_of_readings_are_bounded_and_complete_each_other(
    proc: FakeProc, tmp_path: Path
) -> None:
    for pid in range(10, 20):
        add(proc, pid, 4096)
    add(proc, 20, 1 << 28, tables_kib=1 << 21)  # a TiB: 26 s
    moments = iter(range(10_000))
    reader = ProcessMemory(proc.root, tmp_path, clock=lambda: float(next(moments)))
    exact = [
        {pid for pid, row in by_pid(reader.read(5.0)).items() if row.known == "exact"}
        for _ in range(4)
    ]
    assert exact[0] < exact[1] < exact[2]
    assert exact[3] == set(range(10, 20))
    assert by_pid(reader.read(5.0))[20].known == "late"


def test_processes_that_exit_are_left_out(proc: FakeProc, tmp_path: Path) -> None:
    add(proc, 10, 4096)
    reader = ProcessMemory(proc.root, tmp_path)
    assert by_pid(reader.read(1.0))
    proc.remove(10)
    assert not by_pid(reader.read(0.0))


def test_cgroups_upper_ones_first_and_bounded(
    tmp_path: Path, write: Callable[[str, str], Path]
) -> None:
    with pytest.raises(MissingError, match="version 2"):
        read_cgroups(1.0, tmp_path)
    write("cgroup.controllers", "cpu memory pids\n")
    for group, size in {"a": 4096, "a/b": 1024, "c": 0, "d": 2048}.items():
        write(f"{group}/memory.numa_stat", f"anon N0={size} N1={size}\nfile_mapped N0=0 N1=64\n")
    rows, all_read = read_cgroups(1.0, tmp_path)
    assert all_read
    assert [(row.name, row.total_bytes) for row in rows] == [
        ("/a", 8256), ("/c", 64), ("/d", 4160), ("/a/b", 2112)
    ]  # fmt: skip
    moments = iter(range(100))
    rows, all_read = read_cgroups(3.0, tmp_path, lambda: float(next(moments)))
    assert not all_read
    assert [row.name for row in rows] == ["/a"]
