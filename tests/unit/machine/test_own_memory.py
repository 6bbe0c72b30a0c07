"""Pages of this process that are unmapped with the real madvise(2)."""

from __future__ import annotations

import ctypes
import mmap
from errno import EINVAL, ENOMEM

import pytest

from hmd.machine.own_memory import unmap_resident


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_unmap_resident_anonymous_pages_read_as_zero() -> None:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 3 * mmap.PAGESIZE, flags=private) as memory:
        memory[:] = b"x" * len(memory)
        start = address_of(memory)
        unmap_resident(start + mmap.PAGESIZE, start + 2 * mmap.PAGESIZE)
        assert memory[mmap.PAGESIZE : 2 * mmap.PAGESIZE] == bytes(mmap.PAGESIZE)
        assert memory[0:1] == memory[-1:] == b"x"


def test_unmap_resident_inside_a_page_refused() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        start = address_of(memory)
        with pytest.raises(OSError, match="Invalid argument") as refused:
            unmap_resident(start + 1, start + mmap.PAGESIZE)
        assert refused.value.errno == EINVAL


def test_unmap_resident_of_what_is_not_mapped_refused() -> None:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory:
        start = address_of(memory)
    with pytest.raises(OSError, match="Cannot allocate") as refused:
        unmap_resident(start, start + mmap.PAGESIZE)
    assert refused.value.errno == ENOMEM
