# SPDX-License-Identifier: MIT
"""Summaries of address spaces of any size, in bounded memory."""

from __future__ import annotations

import numpy as np

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES
from hmd.linux.mappings import parse_maps
from hmd.residency.address_spaces import (
    MAX_RUNS,
    MAX_ZONES,
    accessible_part,
    summarise_space,
    within,
)


def lines(count: int, apart: int, accesses: tuple[str, ...], paths: tuple[str, ...]) -> bytes:
    """Mappings of one page each."""
    return "".join(
        f"{i * apart:x}-{i * apart + PAGE_BYTES:x} {accesses[i % len(accesses)]} 0 0:0 0 "
        f"{paths[i % len(paths)]}\n"
        for i in range(1, count + 1)
    ).encode()


def test_summary_of_reserved_address_space_empty() -> None:
    text = b"100000000000-700000000000 ---p 00000000 00:00 0 \n"
    summary = summarise_space([accessible_part(parse_maps(text))])
    assert summary.runs == []
    assert len(summary.edges) == 0
    assert not summary.movable_at(np.array([0x200000000000], np.uint64)).any()


def test_summary_of_alternating_access_one_zone() -> None:
    text = lines(2000, PAGE_BYTES, ("rw-p", "r--p"), ("",))
    summary = summarise_space([accessible_part(parse_maps(text))])
    assert summary.runs == [(0, 2000 * PAGE_BYTES // CHUNK_BYTES)]
    assert summary.edges.tolist() == [PAGE_BYTES]


def test_summary_of_scattered_mappings_bounded_and_complete() -> None:
    text = lines(5000, 4 * CHUNK_BYTES, ("r-xp", "rw-p"), ("/usr/lib/x.so", ""))
    whole = parse_maps(text)
    summary = summarise_space([accessible_part(whole)])
    assert len(summary.runs) == MAX_RUNS
    assert len(summary.edges) == MAX_ZONES
    assert within(whole.start, summary.runs).all()
    movable = summary.movable_at(whole.start)
    assert movable[:MAX_ZONES].tolist() == [True, False] * (MAX_ZONES // 2)
    assert not movable[MAX_ZONES:].any()


def test_summary_of_parts_equals_summary_of_whole() -> None:
    text = lines(300, CHUNK_BYTES * 3, ("r-xp", "rw-p", "---p"), ("/usr/lib/x.so", "", ""))
    whole = summarise_space([accessible_part(parse_maps(text))])
    pieces = [line + b"\n" for line in text.splitlines()]
    parts = summarise_space([accessible_part(parse_maps(piece)) for piece in pieces])
    assert parts.runs == whole.runs
    assert parts.edges.tolist() == whole.edges.tolist()
    assert parts.movable.tolist() == whole.movable.tolist()
