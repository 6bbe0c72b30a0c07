# SPDX-License-Identifier: MIT
"""What doctor says of hugetlbfs pages, from trees of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.base.errors import Severity
from hmd.linux.node_memory import hugetlb_finding

SMALL, LARGE = 2048, 1048576


def pool(sysfs: Path, node: int, kib: int, pages: int, free: int) -> None:
    folder = sysfs / f"devices/system/node/node{node}/hugepages/hugepages-{kib}kB"
    folder.mkdir(parents=True)
    (folder / "nr_hugepages").write_text(f"{pages}\n")
    (folder / "free_hugepages").write_text(f"{free}\n")


def test_hugetlb_finding_without_pools_none(tmp_path: Path) -> None:
    pool(tmp_path, 0, SMALL, 0, 0)
    found = hugetlb_finding(tmp_path)
    assert (found.level, found.state) == (Severity.OK, "none")


def test_hugetlb_finding_pages_of_2_mib_counted_over_nodes(tmp_path: Path) -> None:
    pool(tmp_path, 0, SMALL, 3, 0)
    pool(tmp_path, 1, SMALL, 4, 4)
    found = hugetlb_finding(tmp_path)
    assert (found.level, found.state) == (Severity.OK, "7 of 2 MiB; each moves whole")


@pytest.mark.parametrize(("free", "level"), [(2, Severity.OK), (1, Severity.WARN)])
def test_hugetlb_finding_used_pages_of_1_gib_warned(
    tmp_path: Path, free: int, level: Severity
) -> None:
    pool(tmp_path, 0, LARGE, 2, free)
    pool(tmp_path, 0, SMALL, 1, 1)
    found = hugetlb_finding(tmp_path)
    assert found.level == level
    assert found.state.startswith("1 of 2 MiB, 2 of 1 GiB")
    assert bool(found.action) == (level == Severity.WARN)
