# SPDX-License-Identifier: MIT
"""Used pages, by idle page tracking: exact per page, if the kernel has it.

A page that is marked idle in /sys/kernel/mm/page_idle/bitmap loses the mark on an access
(Documentation/admin-guide/mm/idle_page_tracking.rst, CONFIG_IDLE_PAGE_TRACKING, which Debian's
kernels lack). The bitmap is by page frame; pagemap shows frames to CAP_SYS_ADMIN only. Kinds are
all LOAD: an accessed bit does not distinguish loads from stores.

A page that does not accept the mark cannot be tracked: the kernel marks whole folios by their first
page, so a huge page is one row at its start. Checking a page costs the kernel a walk of its
mappings, about 1 µs, and a system call per run of 64 frames.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.errors import MissingError, NotPermittedError, os_error
from hmd.linux.checks import Capability, read_privileges
from hmd.linux.procfs import PROC, SYSFS
from hmd.sample.access_batch import Kind
from hmd.sample.page_scan import PRESENT, PageBits, PageScanSampler
from hmd.sample.sampler import DEFAULTS, SampleSettings

BITMAP = "kernel/mm/page_idle/bitmap"
MAX_PAGES = 1 << 15

_FRAME = np.uint64((1 << 55) - 1)
_WORD_BYTES = 8
Words = npt.NDArray[np.uint64]


class Bitmap(Protocol):
    """One bit per page frame, 64 per word: set while the page is idle; see ``KernelBitmap``."""

    def read(self, word: int, count: int) -> Words:
        """Return words."""

    def mark(self, word: int, words: Words) -> None:
        """Mark pages as idle."""

    def close(self) -> None:
        """Free it."""


def open_idle_pages(
    settings: SampleSettings = DEFAULTS, proc: Path = PROC, sysfs: Path = SYSFS
) -> PageScanSampler:
    """Return a sampler of used pages; its period (1) divides the pages that a read checks.

    Raises MissingError where the kernel has no idle page tracking, NotPermittedError without
    CAP_SYS_ADMIN.
    """
    path = sysfs / BITMAP
    try:
        bitmap = KernelBitmap(path)
    except FileNotFoundError:
        raise MissingError(
            "this kernel has no idle page tracking: use one with CONFIG_IDLE_PAGE_TRACKING"
        ) from None
    except OSError as error:
        raise os_error(error, f"{path}: {error.strerror}: run hmd as root") from None
    if not read_privileges(proc).has(Capability.SYS_ADMIN):
        bitmap.close()
        raise NotPermittedError(
            "idle page tracking is by page frame; only CAP_SYS_ADMIN may look frames up: run hmd "
            "as root, or grant it in the unit"
        )
    return PageScanSampler(IdlePageBits(bitmap), settings.period, proc)


class KernelBitmap:
    """The kernel's bitmap. OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def read(self, word: int, count: int) -> Words:
        """Return ``count`` words from ``word`` on; none past the last frame."""
        return np.frombuffer(os.pread(self._fd, count * _WORD_BYTES, word * _WORD_BYTES), np.uint64)

    def mark(self, word: int, words: Words) -> None:
        """Mark the pages whose bits are set as idle; others stay as they are."""
        os.pwrite(self._fd, words.tobytes(), word * _WORD_BYTES)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


class IdlePageBits(PageBits):
    """The ``PageBits`` of pages used; owns the bitmap."""

    name = "idle"
    detail = "pages used, by idle page tracking"
    kind = Kind.LOAD
    max_pages = MAX_PAGES

    def __init__(self, bitmap: Bitmap) -> None:
        self._bitmap = bitmap

    def find_used(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which pages have lost the mark, and mark them again."""
        frame = np.where(entries & PRESENT, entries & _FRAME, np.uint64(0))
        present = np.flatnonzero(frame)
        frame = frame[present]
        word, bit = frame >> np.uint64(6), np.uint64(1) << (frame & np.uint64(63))
        lost = (self._words(word) & bit) == 0
        self._mark(word[lost], bit[lost])
        # Pages that still have no mark do not accept one.
        marked = (self._words(word[lost]) & bit[lost]) != 0
        found = np.zeros(len(entries), np.bool_)
        found[present[lost][marked]] = True
        return found

    def close(self) -> None:
        """Close the bitmap; marks stay until the pages are used."""
        self._bitmap.close()

    def _words(self, word: Words) -> Words:
        """Return the bitmap's word at each index; shape as ``word``."""
        numbers, which = np.unique(word, return_inverse=True)
        found = np.zeros(len(numbers), np.uint64)
        for first, after in _runs(numbers):
            part = self._bitmap.read(int(numbers[first]), after - first)
            found[first : first + len(part)] = part
        return found[which]

    def _mark(self, word: Words, bit: Words) -> None:
        numbers, which = np.unique(word, return_inverse=True)
        bits = np.zeros(len(numbers), np.uint64)
        np.bitwise_or.at(bits, which, bit)
        for first, after in _runs(numbers):
            self._bitmap.mark(int(numbers[first]), bits[first:after])


def _runs(numbers: Words) -> list[tuple[int, int]]:
    """Return the ranges of rows with consecutive numbers; ``numbers`` ascend."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    edges = [0, *breaks.tolist(), len(numbers)]
    return list(itertools.pairwise(edges))
