# SPDX-License-Identifier: MIT
"""The page cache of a node that moves may replace, from meminfo texts."""

from __future__ import annotations

import pytest

from hmd.linux.node_memory import parse_meminfo, reclaimable_bytes

KIB = 1 << 10


def meminfo(
    active: int, inactive: int, mapped: int = 0, dirty: int = 0, writeback: int = 0
) -> dict[str, int]:
    lines = {
        "MemTotal": 262144,
        "Active(anon)": 11,
        "Inactive(anon)": 22,
        "Active(file)": active,
        "Inactive(file)": inactive,
        "Dirty": dirty,
        "Writeback": writeback,
        "FilePages": active + inactive,
        "Mapped": mapped,
        "WritebackTmp": 1 << 20,
        "ShmemPmdMapped": 1 << 20,
        "FilePmdMapped": 1 << 20,
    }
    text = "".join(f"Node 0 {name}: {kib:>12} kB\n" for name, kib in lines.items())
    return parse_meminfo(text.encode())


def test_cache_inactive_and_clean_is_reclaimable() -> None:
    assert reclaimable_bytes(meminfo(active=0, inactive=6900)) == 6900 * KIB


def test_cache_active_is_reclaimable_by_half() -> None:
    assert reclaimable_bytes(meminfo(active=6900, inactive=0)) == 3450 * KIB


def test_cache_active_beside_more_inactive_stays() -> None:
    assert reclaimable_bytes(meminfo(active=1000, inactive=3000)) == 3000 * KIB


@pytest.mark.parametrize("busy", ["mapped", "dirty", "writeback"])
def test_cache_in_use_is_not_reclaimable(busy: str) -> None:
    found = reclaimable_bytes(meminfo(0, 5000, **{busy: 1000}))
    assert found == 4000 * KIB
    assert reclaimable_bytes(meminfo(0, 5000, **{busy: 9000})) == 0


def test_cache_of_node_without_lists_is_zero() -> None:
    assert (
        reclaimable_bytes(parse_meminfo(b"Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 1024 kB\n"))
        == 0
    )
