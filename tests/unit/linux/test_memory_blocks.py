# SPDX-License-Identifier: MIT
"""Physical addresses of a node, from trees of memory blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.linux.topology import physical_ranges

SIZE = 128 << 20


def with_blocks(sysfs: Path, node: int, blocks: list[int], size: str = "8000000") -> None:
    folder = sysfs / f"devices/system/node/node{node}"
    for block in blocks:
        (folder / f"memory{block}").mkdir(parents=True)
    (folder / "memory_failure").mkdir(parents=True, exist_ok=True)
    file = sysfs / "devices/system/memory/block_size_bytes"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{size}\n")


def test_blocks_that_follow_each_other_are_one_range(tmp_path: Path) -> None:
    with_blocks(tmp_path, 1, [10, 0, 1, 9, 2])
    assert physical_ranges(1, tmp_path) == ((0, 3 * SIZE), (9 * SIZE, 11 * SIZE))


@pytest.mark.parametrize("size", ["", "x", "0"])
def test_block_size_not_known_no_ranges(tmp_path: Path, size: str) -> None:
    with_blocks(tmp_path, 0, [1], size)
    assert physical_ranges(0, tmp_path) == ()


def test_node_that_does_not_exist_no_ranges(tmp_path: Path) -> None:
    with_blocks(tmp_path, 0, [1])
    assert physical_ranges(3, tmp_path) == ()
