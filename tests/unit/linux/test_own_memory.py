# SPDX-License-Identifier: MIT
"""Memory of this process, with the real madvise(2) and mallopt(3)."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from errno import EINVAL, ENOMEM

import pytest

from hmd.linux.own_process import unmap_resident


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


def test_keep_freed_memory_of_equal_arrays_faults_no_page() -> None:
    """In a process of its own, as the heap stays so."""
    program = """
import resource
import numpy as np
from hmd.linux.own_process import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(100_000) for _ in range(10)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
given_back = faults()
assert keep_freed_memory()
faults()
print(given_back, faults())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 1000
    assert kept < 20
