# SPDX-License-Identifier: MIT
"""A fast node whose free memory is page cache, as memory is on a machine that has run for long.

The cache is of a file that is not read again.
"""

from __future__ import annotations

import os

from hmd.base.errors import HmdError
from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES
from hmd.emulate.assets import WORKLOADS, cache_folder, compile_static
from hmd.emulate.demo.measure import MAX_TRIES, NEAR_BYTES, FastNode
from hmd.linux.node_memory import Watermark, parse_meminfo, reclaimable_bytes

CLEAR_BYTES = 512 << 10
_CACHE_FILE_BYTES = 4 << 30
_DEMOTION = "/sys/kernel/mm/numa/demotion_enabled"


class FilledNode(FastNode):
    """A fast node that can be filled with page cache, and cleared of what is not the program's."""

    _cached_pages = 0

    def page_cache_bytes(self) -> int:
        """Return the node's page cache that can be reclaimed (hmd.linux.node_memory)."""
        return reclaimable_bytes(parse_meminfo(self._read(self._meminfo_path).encode()))

    def fill_with_cache(self) -> None:
        """Fill the node's free memory with clean page cache; raises HmdError where some stays free.

        The node is full where kswapd, which keeps some of it free, would reclaim what is added. A
        part of a file without blocks is read, by a process that may allocate on this node only.
        """
        self._cached_pages = 0
        for _ in range(MAX_TRIES):
            if self.for_programs_bytes(Watermark.HIGH) <= NEAR_BYTES:
                return
            pages = max(0, self.for_programs_bytes()) // PAGE_BYTES
            self._read_file(self._cached_pages, pages)
            self._cached_pages += pages
        raise HmdError(f"node {self._node} of the guest does not fill up with page cache")

    def read_cache(self) -> None:
        """Read the page cache of ``fill_with_cache`` once more, as a program in use would."""
        self._read_file(0, self._cached_pages)

    def _read_file(self, skip: int, pages: int) -> None:
        placed = str(compile_static(WORKLOADS / "placed.c"))
        read = [f"if={_cache_file()}", "of=/dev/null", "bs=4k", f"skip={skip}", f"count={pages}"]
        self._machine.run([placed, "0", "bind", str(1 << self._node), "dd", *read], check=True)

    def drop_cache(self) -> None:
        """Drop the page cache of ``fill_with_cache``, on whatever node it is now.

        posix_fadvise(2), POSIX_FADV_DONTNEED, which dd does for a count of 0.
        """
        self._machine.run(["dd", f"if={_cache_file()}", "iflag=nocache", "count=0"], check=True)

    def clear(self) -> None:
        """Demote page cache and other processes' memory off the node, as far as the kernel can.

        Raises HmdError where more than ``CLEAR_BYTES`` stay.
        """
        stays = self.demote_all()
        if stays > CLEAR_BYTES:
            raise HmdError(f"{stays >> 10} KiB cannot be moved off node {self._node} of the guest")

    def demote_all(self) -> int:
        """Demote what is on the node as far as the kernel can; returns the bytes that stay.

        The kernel is asked for more huge pages than the node has, and demotes the pages in their
        variant; unlike an allocation by a process, that triggers no OOM kill.
        """
        self.release()
        before = self._read(_DEMOTION).strip()
        self._write(_DEMOTION, "true")
        try:
            for _ in range(MAX_TRIES):
                found = self._meminfo()
                stays = found["Active"] + found["Inactive"]
                if stays <= CLEAR_BYTES:
                    break
                self._set_huge_pages(found["MemTotal"] // HUGE_PAGE_BYTES)
                self._set_huge_pages(0)
        finally:
            self._write(_DEMOTION, before)
        return stays


def _cache_file() -> str:
    """Return a file of the host, without blocks, that is larger than any fast node."""
    path = cache_folder() / "page-cache"
    if not path.exists():
        path.touch()
        os.truncate(path, _CACHE_FILE_BYTES)
    return str(path)
