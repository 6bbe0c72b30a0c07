# SPDX-License-Identifier: MIT
"""Objects of recorded runs, and which pages of two runs are the same, on small made recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.second_run.objects import (
    Mapping,
    Objects,
    mappings_of,
    matched,
    objects_of,
    pages_in,
    regions_of,
)
from hmd.emulate.recordings.misses import MissStream
from tests.unit.simulate.conftest import stream_of

TOP = 0x7FFFF7000
HEAP = 0x555555560


def recording(pages: Sequence[int]) -> MissStream:
    """A recording that touches these page numbers, ascending, once each."""
    stream = stream_of(np.empty(0, np.int64), len(pages))
    return replace(stream, page_address=np.array(pages, np.uint64) * np.uint64(4096))


def objects(sizes: Sequence[int], heaps: Sequence[bool] = ()) -> Objects:
    """Objects of these sizes, all of whose pages are in the recording, one after the other."""
    count = np.array(sizes)
    number = np.arange(len(count)).repeat(count)
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return Objects(number, offset, count, np.array(heaps or [False] * len(count), np.bool_))


def test_mappings_of_trace_heap_first_and_last_program_only() -> None:
    trace = """execve("/bin/sh", ["sh"], 0x7 /* 1 var */) = 0
mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7ffff7fb8000
execve("/bin/xz", ["xz"], 0x7 /* 1 var */) = 0
brk(NULL)                               = 0x4ae000
brk(0x4d0000)                           = 0x4d0000
mmap(NULL, 41807, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7ffff7fb5000
1234  mmap(NULL, 12289, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7ffff7000000
mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = -1 ENOMEM
mremap(0x7ffff7000000, 16384, 32768, MREMAP_MAYMOVE) = 0x7ffff6000000
+++ exited with 0 +++
"""
    assert mappings_of(trace) == [Mapping(0x4AE, 34, is_heap=True), Mapping(0x7FFFF6000, 8)]


def test_objects_of_neighbours_told_apart_below_a_constant_shift() -> None:
    stream = recording([*range(HEAP, HEAP + 10), *range(TOP, TOP + 30)])
    calls = [Mapping(HEAP + 7, 10, is_heap=True), Mapping(TOP - 2, 10), Mapping(TOP + 8, 20)]
    found = objects_of(stream, calls)
    assert found.number.tolist() == [0] * 10 + [1] * 10 + [2] * 20
    assert found.offset.tolist() == [*range(10), *range(10), *range(20)]
    assert found.is_heap.tolist() == [True, False, False]


def test_objects_of_reused_addresses_belong_to_the_last_mapping() -> None:
    stream = recording(range(TOP, TOP + 20))
    found = objects_of(stream, [Mapping(TOP, 20), Mapping(TOP + 12, 8)])
    assert found.number.tolist() == [0] * 12 + [1] * 8


def test_regions_of_neighbours_are_one_and_far_ones_are_not() -> None:
    found = regions_of(recording([*range(TOP, TOP + 30), *range(TOP + 100, TOP + 110)]))
    assert found.sizes.tolist() == [30, 10]
    assert found.number.tolist() == [0] * 30 + [1] * 10


def test_matched_by_order_where_counts_are_equal_and_heaps_apart() -> None:
    mine = objects([4, 8, 2], [False, True, False])
    theirs = objects([9, 1, 3], [True, False, False])
    assert matched(mine, theirs).tolist() == [1, 0, 2]


def test_matched_by_size_class_where_one_run_has_more() -> None:
    assert matched(objects([64, 512, 128]), objects([64, 8, 512, 128])).tolist() == [0, 2, 3]
    assert matched(objects([64, 8, 512]), objects([64, 512])).tolist() == [0, -1, 1]


@pytest.mark.parametrize("other", [8, 32])
def test_pages_in_other_size_by_relative_place(other: int) -> None:
    page, factor = pages_in(objects([4, 16]), objects([4, other]))
    assert page[:4].tolist() == [0, 1, 2, 3]
    assert factor[4:].tolist() == [other / 16] * 16
    relative = (page[4:] - 4 + 0.5) / other - (np.arange(16) + 0.5) / 16
    assert np.abs(relative).max() <= 0.5 / min(16, other)


def test_pages_in_page_never_accessed_before_is_its_neighbours() -> None:
    theirs = objects([6])
    kept = np.array([0, 1, 4, 5])
    sparse = replace(theirs, number=theirs.number[kept], offset=theirs.offset[kept])
    page, _ = pages_in(objects([6]), sparse)
    assert page.tolist() == [0, 1, 1, 1, 2, 3]


def test_pages_in_unknown_object_has_no_page() -> None:
    page, factor = pages_in(objects([64, 8, 512]), objects([64, 512]))
    assert (page[64:72] == -1).all()
    assert not factor[64:72].any()
