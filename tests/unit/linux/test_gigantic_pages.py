# SPDX-License-Identifier: MIT
"""Pages of 1 GiB that a node has no free page for, from trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hmd.base.units import GIB, HUGE_PAGE_BYTES
from hmd.linux.huge_pages import GiganticPages
from hmd.linux.procfs import ProcessId

PID = 77
GIGANTIC, HUGE, SMALL = 4 * GIB, 8 * GIB, 16 * GIB


@pytest.fixture
def gigantic(tmp_path: Path) -> GiganticPages:
    """A process with a page of 1 GiB, one of 2 MiB and small ones; node 1 has a free page."""
    process = tmp_path / "proc" / str(PID)
    process.mkdir(parents=True)
    (process / "maps").write_text(
        f"{GIGANTIC:x}-{GIGANTIC + GIB:x} rw-p 00000000 00:0f 9 /anon_hugepage (deleted)\n"
        f"{HUGE:x}-{HUGE + HUGE_PAGE_BYTES:x} rw-p 00000000 00:0f 9 /anon_hugepage (deleted)\n"
        f"{SMALL:x}-{SMALL + HUGE_PAGE_BYTES:x} rw-p 00000000 00:00 0 \n"
    )
    (process / "status").write_text("Name:\tprogram\nHugetlbPages:\t 1050624 kB\n")
    file = r"file=/anon_hugepage\040(deleted)"
    (process / "numa_maps").write_text(
        f"{GIGANTIC:x} default {file} huge anon=1 dirty=1 N1=1 kernelpagesize_kB=1048576\n"
        f"{HUGE:x} default {file} huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048\n"
        f"{SMALL:x} default anon=512 dirty=512 N1=512 kernelpagesize_kB=4\n"
    )
    for node, pages, free in ((0, 0, 0), (1, 2, 1)):
        pool = tmp_path / f"sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB"
        pool.mkdir(parents=True)
        (pool / "nr_hugepages").write_text(f"{pages}\n")
        (pool / "free_hugepages").write_text(f"{free}\n")
    return GiganticPages(tmp_path / "proc", tmp_path / "sys")


ADDRESSES = np.array(
    [GIGANTIC, GIGANTIC + HUGE_PAGE_BYTES, GIGANTIC + GIB, HUGE, SMALL, 0], np.uint64
)


def test_gigantic_pages_node_without_free_one_lacks_them(gigantic: GiganticPages) -> None:
    found = gigantic(ProcessId(PID, 1), ADDRESSES, 0)
    assert found.tolist() == [True, True, False, False, False, False]


def test_gigantic_pages_node_with_free_one_lacks_none(gigantic: GiganticPages) -> None:
    assert not gigantic(ProcessId(PID, 1), ADDRESSES, 1).any()


def test_gigantic_pages_numa_maps_of_other_processes_not_read(
    gigantic: GiganticPages, tmp_path: Path
) -> None:
    process = tmp_path / "proc" / str(PID)
    (process / "status").write_text("Name:\tprogram\nHugetlbPages:\t    2048 kB\n")
    (process / "numa_maps").unlink()
    (process / "numa_maps").mkdir()  # to read it raises an error
    assert not gigantic(ProcessId(PID, 1), ADDRESSES, 0).any()


def test_gigantic_pages_process_gone_lacks_none(gigantic: GiganticPages) -> None:
    assert not gigantic(ProcessId(PID + 1, 1), ADDRESSES, 0).any()


def test_gigantic_pages_process_exits_between_two_reads_lacks_none(
    gigantic: GiganticPages, tmp_path: Path
) -> None:
    """/proc/PID/maps of a process that has exited is empty, and no error."""
    (tmp_path / "proc" / str(PID) / "maps").write_text("")
    assert not gigantic(ProcessId(PID, 1), ADDRESSES, 0).any()


def test_gigantic_pages_machine_without_pools_lacks_none(tmp_path: Path) -> None:
    assert not GiganticPages(tmp_path, tmp_path)(ProcessId(PID, 1), ADDRESSES, 0).any()
