# SPDX-License-Identifier: MIT
"""Parts of an address space in which pages may be resident."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from hmd.base.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.resident_pages import every_page, present_pages


def test_every_page_takes_huge_pages_of_its_part_only() -> None:
    start = 8 * HUGE_PAGE_BYTES
    huge = np.array([3, 8, 10, 11, 12, 40], np.uint64) * np.uint64(HUGE_PAGE_BYTES)
    part = every_page(start, start + 4 * HUGE_PAGE_BYTES, huge)
    assert part.until == 12 * HUGE_PAGE_BYTES
    assert (part.huge // np.uint64(HUGE_PAGE_BYTES)).tolist() == [8, 10, 11]
    single = 9 * HUGE_PAGE_BYTES + np.arange(HUGE_PAGE_PAGES) * PAGE_BYTES
    assert part.pages.tolist() == single.tolist()


def test_every_page_without_huge_pages_has_each_small_page() -> None:
    part = every_page(0, 2 * HUGE_PAGE_BYTES, max_pages=HUGE_PAGE_PAGES)
    assert part.until == HUGE_PAGE_BYTES
    assert not len(part.huge)
    assert len(part.pages) == HUGE_PAGE_PAGES


def test_present_pages_of_reserved_space_are_those_that_were_written() -> None:
    reserved = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    reserved.madvise(mmap.MADV_NOHUGEPAGE)
    view = np.frombuffer(reserved, np.uint8)
    start = int(view.__array_interface__["data"][0])
    for page in (0, 5, 16383):
        reserved[page * mmap.PAGESIZE] = 1
    found = present_pages(os.getpid(), start, start + (64 << 20))
    assert ((found - np.uint64(start)) // np.uint64(mmap.PAGESIZE)).tolist() == [0, 5, 16383]
    del view


def test_present_pages_without_pagemap_may_be_all(tmp_path: Path) -> None:
    assert len(present_pages(7, 0, 4 * mmap.PAGESIZE, tmp_path)) == 4
