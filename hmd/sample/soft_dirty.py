# SPDX-License-Identifier: MIT
"""Written pages, by soft-dirty bits: for machines without PMU, DAMON and idle page tracking.

Writing 4 to /proc/PID/clear_refs makes all pages of a process read-only and clears the bits; the
first write to a page faults and sets its bit (Documentation/admin-guide/mm/soft-dirty.rst,
CONFIG_MEM_SOFT_DIRTY). It observes writes only: a page that is only read looks cold.

The bits have a single user. Checkpointing tools (CRIU's incremental dumps, some garbage collectors
and live migration) miss pages whose bits hmd has cleared, so hmd uses this sampler only if the
configuration names it. A scan costs the program a fault (about 1 µs) per page that it writes, and
its mmap lock while the kernel walks its pages (about 10 ns each).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.base.errors import MissingError, NotPermittedError
from hmd.base.units import PAGE_BYTES
from hmd.linux.checks import Capability, read_privileges
from hmd.linux.procfs import PROC, SYSFS, absent, write_text
from hmd.sample.access_batch import Kind
from hmd.sample.page_scan import PRESENT, PageBits, PageScanSampler
from hmd.sample.sampler import DEFAULTS, SampleSettings

SOFT_DIRTY = np.uint64(1 << 55)
MAX_PAGES = 1 << 18
"""Pages per read: the entries of 1 GiB, about 5 ms."""

_CLEAR_SOFT_DIRTY = "4"


def open_soft_dirty(
    settings: SampleSettings = DEFAULTS, proc: Path = PROC, sysfs: Path = SYSFS
) -> PageScanSampler:
    """Return a sampler of written pages; its period (1) divides the pages that a read checks.

    Raises MissingError if the kernel has no soft-dirty bits, NotPermittedError without
    CAP_DAC_OVERRIDE.
    """
    if not _has_soft_dirty_bits(proc):
        raise MissingError("this kernel has no soft-dirty bits: use one with CONFIG_MEM_SOFT_DIRTY")
    if not read_privileges(proc).has(Capability.DAC_OVERRIDE):
        raise NotPermittedError(
            "only CAP_DAC_OVERRIDE may clear soft-dirty bits of other users' processes: "
            "run hmd as root, or grant it in the unit"
        )
    return PageScanSampler(SoftDirtyBits(proc), settings.period, proc)


class SoftDirtyBits(PageBits):
    """The ``PageBits`` of pages written."""

    name = "softdirty"
    detail = "pages written, by soft-dirty bits"
    kind = Kind.STORE
    max_pages = MAX_PAGES
    counts_first_check = True

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def start_process(self, pid: int) -> None:
        """Clear the bits of a process."""
        self.end_scan(pid)

    def find_used(self, entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which pages were written since the bits were cleared."""
        both = PRESENT | SOFT_DIRTY
        written: npt.NDArray[np.bool_] = (entries & both) == both
        return written

    def end_scan(self, pid: int) -> None:
        """Clear the bits of a process, if it still exists and hmd may access it."""
        try:
            write_text(self._proc / str(pid) / "clear_refs", _CLEAR_SOFT_DIRTY)
        except OSError as error:
            if not absent(error):
                raise


def _has_soft_dirty_bits(proc: Path) -> bool:
    """Return whether a page that this process has just written has its bit."""
    page = mmap.mmap(-1, PAGE_BYTES)
    page[0] = 1
    held = ctypes.c_char.from_buffer(page)
    number = ctypes.addressof(held) // PAGE_BYTES
    try:
        fd = os.open(proc / "self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            entry = int.from_bytes(os.pread(fd, 8, number * 8), "little")
        finally:
            os.close(fd)
    except OSError as error:
        if absent(error):
            return False
        raise
    finally:
        del held
        page.close()
    return bool(entry & int(SOFT_DIRTY))
