# SPDX-License-Identifier: MIT
"""Attribution of samples to processes by this host's page tables."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from hmd.linux.procfs import ProcessId, identify
from hmd.sample.attribution import READS_AFTER_LOSS, PageTableAttribution
from tests.fakes.sample_columns import columns_of
from tests.fakes.toucher import Toucher

PAGE = 4096


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


SamplesOf = Callable[[int, int, range], list[tuple[int, int, int]]]


@pytest.fixture
def samples_of(physical: Callable[[int, int], int]) -> SamplesOf:
    """Samples of a root at these pages of a process, where they really are."""

    def samples(root: int, pid: int, pages: range) -> list[tuple[int, int, int]]:
        return [(root, page + 8, physical(pid, page + 8)) for page in pages]

    return samples


def test_root_of_known_pages_is_their_process(toucher: Toucher, samples_of: SamplesOf) -> None:
    pages = toucher.touch(32)
    me = identify(os.getpid())
    assert me is not None
    spaces = PageTableAttribution(clock=Clock())
    spaces.track([me, toucher.process])
    mine = mmap.mmap(-1, PAGE)
    mine[0] = 1
    here = np.frombuffer(mine, np.uint8).ctypes.data
    of_me = samples_of(77, os.getpid(), range(here, here + PAGE, PAGE))
    samples = [*of_me, *samples_of(99, toucher.process.pid, pages)]
    assert spaces.find_processes(columns_of(samples)).tolist() == [0, *[1] * 32]


@contextmanager
def forked() -> Iterator[ProcessId]:
    """A child that shares every page with us."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        process = identify(child)
        assert process is not None
        yield process
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_forked_child_is_distinguished_after_copy_on_write(samples_of: SamplesOf) -> None:
    area = mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(8):
        area[page * PAGE] = 1
    start = np.frombuffer(area, np.uint8).ctypes.data
    pages = range(start, start + 8 * PAGE, PAGE)
    me = identify(os.getpid())
    assert me is not None
    clock = Clock()
    spaces = PageTableAttribution(clock=clock)
    with forked() as child:
        shared = samples_of(5, os.getpid(), pages)
        assert shared == samples_of(5, child.pid, pages)
        spaces.track([me, child])
        # Both have these pages there: they cannot be distinguished.
        assert set(spaces.find_processes(columns_of(shared)).tolist()) == {-1}
        area[0] = 2  # copy on write: now it is ours alone
        clock.now += 1
        own_samples = samples_of(5, os.getpid(), pages)
        assert set(spaces.find_processes(columns_of(own_samples)).tolist()) == {0}
        of_child = samples_of(6, child.pid, pages[1:])
        assert set(spaces.find_processes(columns_of(of_child)).tolist()) == {1}


def test_ended_process_keeps_its_root_for_its_last_samples(
    toucher: Toucher, samples_of: SamplesOf
) -> None:
    samples = samples_of(9, toucher.process.pid, toucher.touch(4))
    spaces = PageTableAttribution(clock=Clock())
    spaces.track([toucher.process])
    assert set(spaces.find_processes(columns_of(samples)).tolist()) == {0}
    toucher.end()
    for _ in range(READS_AFTER_LOSS):
        assert set(spaces.find_processes(columns_of(samples)).tolist()) == {0}
    assert set(spaces.find_processes(columns_of(samples)).tolist()) == {-1}
