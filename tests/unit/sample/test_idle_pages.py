# SPDX-License-Identifier: MIT
"""Scans of idle page tracking: passes over all memory, bounded reads, the bitmap."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.errors import MissingError, NotPermittedError
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.page_calls import PRESENT
from hmd.linux.procfs import identify
from hmd.sample.idle_pages import BITMAP, PERIODS, IdlePageSampler, KernelBitmap, open_idle_pages
from tests.fakes.idle_bitmap import IdleBitmap
from tests.fakes.toucher import Toucher

MAP_NORESERVE = 0x4000  # include/uapi/asm-generic/mman-common.h


class EveryPage(IdlePageSampler):
    """A sampler in a kernel in which all present pages are always used."""

    def __init__(self, max_pages: int, period: int | None = None) -> None:
        super().__init__(IdleBitmap(), period, max_pages=max_pages)
        self.scanned: list[int] = []

    def find_used(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        self.scanned.append(len(entries))
        return (entries & PRESENT) != 0


def within(addresses: npt.NDArray[np.uint64], pages: range) -> list[int]:
    inside = (addresses >= pages.start) & (addresses < pages.stop)
    return addresses[inside].tolist()


def test_page_scan_read_is_bounded_by_its_share(toucher: Toucher) -> None:
    toucher.touch(3000)
    sampler = EveryPage(1024)
    sampler.track([toucher.process])
    for period in (1, 4, 128):
        sampler.set_period(period)
        sampler.scanned.clear()
        sampler.read()
        assert sum(sampler.scanned) == 1024 // period


def test_page_scan_pass_covers_every_page_once(toucher: Toucher) -> None:
    pages = toucher.touch(3000)
    sampler = EveryPage(256)
    sampler.track([toucher.process])
    while not sampler.scans:
        assert not len(sampler.read())  # what was used before does not count
    for scan in (1, 2):
        found: list[int] = []
        while sampler.scans == scan:
            found += within(sampler.read().address, pages)
        assert sorted(found) == list(pages)
        first, last = np.mean(found[:500]), np.mean(found[-500:])
        assert (first < last) == (scan == 2)


def test_page_scan_of_reserved_terabytes_asks_for_what_is_resident(toucher: Toucher) -> None:
    if huge_source() is not HugeSource.SCAN:
        pytest.skip("this kernel lacks PAGEMAP_SCAN (Linux 6.7)")
    me, sampler = identify(os.getpid()), EveryPage(1 << 18)
    assert me is not None
    reserved = mmap.mmap(-1, 4 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    try:
        reserved[1 << 40] = 1
        sampler.track([me, toucher.process])
        reads = 0
        while not sampler.scans:
            sampler.read()
            reads += 1
    finally:
        reserved.close()
    assert sum(sampler.scanned) < 4 << 18
    assert reads <= 8


def test_page_scan_covers_all_processes(toucher: Toucher) -> None:
    sampler, own = EveryPage(1 << 18), identify(os.getpid())
    assert own is not None
    sampler.track([toucher.process, own])
    while not sampler.scans:
        sampler.read()
    sampler.track([own, toucher.process])
    found: set[int] = set()
    while sampler.scans == 1:
        found.update(sampler.read().process.tolist())
    assert found == {0, 1}


def test_idle_bitmap_is_words_of_64_frames(tmp_path: Path) -> None:
    path = tmp_path / BITMAP
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(64))
    bitmap = KernelBitmap(path)
    bitmap.mark(2, np.array([1 << 63, 5], np.uint64))
    assert bitmap.read(1, 4).tolist() == [0, 1 << 63, 5, 0]
    assert len(bitmap.read(7, 4)) == 1
    bitmap.close()
    assert path.read_bytes()[16:32] == (1 << 63).to_bytes(8, "little") + bytes([5, *[0] * 7])


def test_idle_pages_without_kernel_support_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="CONFIG_IDLE_PAGE_TRACKING"):
        open_idle_pages(sysfs=tmp_path)


def test_idle_pages_without_page_frames_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sys" / BITMAP
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("CapEff:\t0000000000000000\n")
    with pytest.raises(NotPermittedError, match="CAP_SYS_ADMIN"):
        open_idle_pages(proc=tmp_path / "proc", sysfs=tmp_path / "sys")


def test_page_scan_period_is_rounded_to_the_nearest(toucher: Toucher) -> None:
    sampler = EveryPage(1, period=10**6)
    assert sampler.period == PERIODS[-1]
