# SPDX-License-Identifier: MIT
"""Idle page bits of real page frames; the bitmap is an emulated one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hmd.sample.idle_pages import IdlePageSampler
from tests.fakes.idle_bitmap import IdleBitmap
from tests.fakes.toucher import Toucher


def within(addresses: npt.NDArray[np.uint64], pages: range) -> list[int]:
    inside = (addresses >= pages.start) & (addresses < pages.stop)
    return addresses[inside].tolist()


def test_idle_bits_report_pages_used_since_the_last_scan(
    toucher: Toucher, idle_bitmap: IdleBitmap, physical: Callable[[int, int], int]
) -> None:
    pages = toucher.touch(600)
    sampler = IdlePageSampler(idle_bitmap)
    sampler.track([toucher.process])
    assert len(sampler.read()) == 0
    frames = {page: physical(toucher.process.pid, page) // 4096 for page in pages}
    assert set(frames.values()) <= idle_bitmap.idle
    used = list(pages)[::7]
    idle_bitmap.idle -= {frames[page] for page in used}
    batch = sampler.read()
    assert within(batch.address, pages) == used
    assert set(frames.values()) <= idle_bitmap.idle
    assert within(sampler.read().address, pages) == []


def test_idle_bits_page_that_cannot_be_marked_is_no_row(
    toucher: Toucher, idle_bitmap: IdleBitmap, physical: Callable[[int, int], int]
) -> None:
    """As the pages of a huge page but its first."""
    pages = toucher.touch(64)
    frames = [physical(toucher.process.pid, page) // 4096 for page in pages]
    idle_bitmap.untracked = set(frames[1:])
    sampler = IdlePageSampler(idle_bitmap)
    sampler.track([toucher.process])
    sampler.read()
    idle_bitmap.idle -= set(frames)
    assert within(sampler.read().address, pages) == [pages[0]]
