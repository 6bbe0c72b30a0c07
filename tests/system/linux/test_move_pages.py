# SPDX-License-Identifier: MIT
"""move_pages on this very host, which needs no second node to refuse and to answer."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hmd.linux import page_calls
from hmd.linux.page_calls import UNTOUCHED, MoveFlags

PAGE = mmap.PAGESIZE
KERNEL_THREAD = 2  # kthreadd(9): always pid 2


@pytest.fixture
def memory() -> Iterator[np.ndarray]:
    """Addresses of four private pages: written, read only (the zero page), untouched, unmapped."""
    # MADV_NOHUGEPAGE: or the first touch could fill them all.
    area = mmap.mmap(-1, 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        area.madvise(mmap.MADV_NOHUGEPAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    area[0] = 1
    assert area[PAGE] == 0
    yield np.array([base, base + PAGE, base + 2 * PAGE, PAGE], np.uint64)


def here(count: int) -> np.ndarray:
    return np.zeros(count, np.int32)


def test_query_of_absent_pages_reports_errors(memory: Any) -> None:
    answers = page_calls.query_nodes(os.getpid(), memory)
    assert answers.dtype == np.int16
    assert answers[0] == 0
    assert answers[1] in (-errno.EFAULT, -errno.ENOENT)
    assert answers[2] == -errno.ENOENT
    assert answers[3] in (-errno.EFAULT, -errno.ENOENT)


def test_move_to_the_own_node_reports_it(memory: Any) -> None:
    result, status = page_calls.move_pages(os.getpid(), memory, here(4))
    assert result == 0
    assert status[0] == 0
    assert status[1] in (-errno.EFAULT, -errno.ENOENT)
    assert status[2] == -errno.ENOENT
    assert status[3] == -errno.EFAULT


@pytest.mark.parametrize("node", [99, 100_000, -1])
def test_move_to_absent_node_fails_without_status(memory: Any, node: int) -> None:
    result, status = page_calls.move_pages(os.getpid(), memory, np.full(4, node, np.int32))
    assert result == -errno.ENODEV
    assert (status == UNTOUCHED).all()


def test_calls_without_addresses_succeed() -> None:
    none = np.empty(0, np.uint64)
    assert len(page_calls.query_nodes(os.getpid(), none)) == 0
    assert page_calls.move_pages(os.getpid(), none, here(0))[0] == 0


def test_move_with_fewer_nodes_than_addresses_is_refused(memory: Any) -> None:
    with pytest.raises(ValueError, match="4 addresses, but 3 nodes"):
        page_calls.move_pages(os.getpid(), memory, here(3))


def test_query_of_strided_addresses_works(memory: Any) -> None:
    spread = np.zeros(8, np.uint64)
    spread[::2] = memory
    assert page_calls.query_nodes(os.getpid(), spread[::2]).tolist() == (
        page_calls.query_nodes(os.getpid(), memory).tolist()
    )


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_query_of_any_length_answers_each_page(memory: Any, count: int) -> None:
    answers = page_calls.query_nodes(os.getpid(), np.resize(memory, count))
    assert (
        answers.tolist() == np.resize(page_calls.query_nodes(os.getpid(), memory), count).tolist()
    )


def both(pid: int, memory: np.ndarray) -> tuple[set[int], int]:
    """What a query says in its rows, and a move as a whole."""
    result, _ = page_calls.move_pages(pid, memory, here(len(memory)))
    return set(page_calls.query_nodes(pid, memory).tolist()), result


def test_calls_for_an_ended_process_report_esrch(memory: Any) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert both(child.pid, memory) == ({-errno.ESRCH}, -errno.ESRCH)


def test_calls_for_a_zombie_report_einval(memory: Any) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert both(child.pid, memory) == ({-errno.EINVAL}, -errno.EINVAL)
    child.wait()


@pytest.mark.skipif(
    not Path("/proc/2/comm").exists() or Path("/proc/2/comm").read_text() != "kthreadd\n",
    reason="kernel threads are not visible in this pid namespace",
)
def test_calls_for_a_kernel_thread_report_einval(memory: Any) -> None:
    assert both(KERNEL_THREAD, memory) == ({-errno.EINVAL}, -errno.EINVAL)


def test_calls_for_another_users_process_report_eperm(memory: Any) -> None:
    """A child without any asks about its parent."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            code = 0 if both(os.getppid(), memory) == ({-errno.EPERM}, -errno.EPERM) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_move_all_without_capability_reports_eperm(memory: Any) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setgid(65534)
            os.setuid(65534)
            result, _ = page_calls.move_pages(os.getpid(), memory, here(4), MoveFlags.MOVE_ALL)
            code = 0 if result == -errno.EPERM else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_calls_leak_no_memory_or_descriptors(memory: Any) -> None:
    process = psutil.Process()
    many = np.resize(memory, 2000)

    def rounds(count: int) -> None:
        for _ in range(count):
            page_calls.query_nodes(os.getpid(), many)
            page_calls.move_pages(os.getpid(), memory, here(4))
            page_calls.move_pages(os.getpid(), memory, np.full(4, 99, np.int32))

    rounds(300)
    resident, descriptors = process.memory_info().rss, process.num_fds()
    rounds(1000)
    assert process.num_fds() == descriptors
    # One leaked status column a round would be 4 MB.
    assert process.memory_info().rss - resident < 1 << 20


def test_query_releases_the_interpreter_lock(memory: Any) -> None:
    """The interpreter's lock is released: nothing but the query can let the thread step."""
    many = np.resize(memory, 1_000_000)
    count, done = 0, threading.Event()

    def tick() -> None:
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=tick)
    try:
        thread.start()
        before = count
        page_calls.query_nodes(os.getpid(), many)
        after = count
    finally:
        done.set()
        sys.setswitchinterval(interval_s)
        thread.join()
    assert after > before
