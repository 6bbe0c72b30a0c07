# SPDX-License-Identifier: MIT
"""Page scans: passes over all memory, bounded reads, idle and soft-dirty bits."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.errors import MissingError, NotPermittedError
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.procfs import identify
from hmd.sample.access_batch import Kind
from hmd.sample.idle_pages import BITMAP, KernelBitmap, open_idle_pages
from hmd.sample.page_scan import PERIODS, PRESENT, PageBits, PageScanSampler
from hmd.sample.soft_dirty import SOFT_DIRTY, SoftDirtyBits
from tests.fakes.toucher import Toucher

MAP_NORESERVE = 0x4000  # include/uapi/asm-generic/mman-common.h


class EveryPage(PageBits):
    """Page bits of a kernel in which all present pages are always used."""

    name, detail, kind = "idle", "every page", Kind.LOAD
    counts_first_check = True

    def __init__(self, max_pages: int) -> None:
        self.max_pages = max_pages
        self.scanned: list[int] = []
        self.rounds = 0
        self.begun: list[int] = []

    def start_process(self, pid: int) -> None:
        self.begun.append(pid)

    def find_used(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        self.scanned.append(len(entries))
        return (entries & PRESENT) != 0

    def end_scan(self, pid: int) -> None:
        self.rounds += 1

    def close(self) -> None: ...


def within(addresses: npt.NDArray[np.uint64], pages: range) -> list[int]:
    inside = (addresses >= pages.start) & (addresses < pages.stop)
    return addresses[inside].tolist()


def test_page_scan_read_is_bounded_by_its_share(toucher: Toucher) -> None:
    toucher.touch(3000)
    bits = EveryPage(1024)
    sampler = PageScanSampler(bits)
    sampler.track([toucher.process])
    for period in (1, 4, 128):
        sampler.set_period(period)
        bits.scanned.clear()
        sampler.read()
        assert sum(bits.scanned) == 1024 // period


def test_page_scan_pass_covers_every_page_once(toucher: Toucher) -> None:
    pages = toucher.touch(3000)
    bits = EveryPage(256)
    sampler = PageScanSampler(bits)
    sampler.track([toucher.process])
    for turn in (1, 2):
        found: list[int] = []
        while bits.rounds < turn:
            found += within(sampler.read().address, pages)
        assert sorted(found) == list(pages)
        first, last = np.mean(found[:500]), np.mean(found[-500:])
        assert (first < last) == (turn == 1)


def test_page_scan_of_reserved_terabytes_asks_for_what_is_resident(toucher: Toucher) -> None:
    if huge_source() is not HugeSource.SCAN:
        pytest.skip("this kernel lacks PAGEMAP_SCAN (Linux 6.7)")
    me, bits = identify(os.getpid()), EveryPage(1 << 18)
    assert me is not None
    reserved = mmap.mmap(-1, 4 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    try:
        reserved[1 << 40] = 1
        sampler = PageScanSampler(bits)
        sampler.track([me, toucher.process])
        reads = 0
        while bits.rounds < 2:
            sampler.read()
            reads += 1
    finally:
        reserved.close()
    assert sum(bits.scanned) < 4 << 18
    assert reads <= 8


def test_page_scan_covers_all_processes(toucher: Toucher) -> None:
    bits = EveryPage(1 << 18)
    sampler = PageScanSampler(bits)

    own = identify(os.getpid())
    assert own is not None
    sampler.track([toucher.process, own])
    assert sorted(bits.begun) == sorted([toucher.process.pid, os.getpid()])
    sampler.track([own, toucher.process])
    assert len(bits.begun) == 2
    while bits.rounds < 2:
        batch = sampler.read()
    assert set(batch.process.tolist()) <= {0, 1}


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


def test_soft_dirty_bits_are_of_present_pages_only() -> None:
    both = PRESENT | SOFT_DIRTY
    entries = np.array([0, PRESENT, SOFT_DIRTY, both, both | np.uint64(77)], np.uint64)
    assert SoftDirtyBits().find_used(entries).tolist() == [False, False, False, True, True]


def test_soft_dirty_bits_are_cleared_after_a_pass(tmp_path: Path) -> None:
    (tmp_path / "17").mkdir()
    refs = tmp_path / "17/clear_refs"
    refs.write_text("")
    bits = SoftDirtyBits(tmp_path)
    bits.start_process(17)
    assert refs.read_text() == "4"
    bits.end_scan(18)  # has gone


def test_page_scan_period_is_rounded_to_the_nearest(toucher: Toucher) -> None:
    sampler = PageScanSampler(EveryPage(1), period=10**6)
    assert sampler.period == PERIODS[-1]
