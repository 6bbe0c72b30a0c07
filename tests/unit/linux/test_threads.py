# SPDX-License-Identifier: MIT
"""CPU time and last CPU of the threads of real processes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from hmd.linux.processes import count_threads, last_cpu, thread_times

SPIN = "import time; end = time.thread_time() + 0.2\nwhile time.thread_time() < end: pass"


def test_thread_times_counted_per_thread() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    before = thread_times(os.getpid())
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    after = thread_times(os.getpid())
    done.set()
    thread.join()
    assert before is not None and after is not None
    own, other = threading.get_native_id(), thread.native_id
    assert other is not None
    assert {own, other} <= set(after)
    assert after[own] - before[own] > 40e6
    assert after[other] - before[other] < 40e6


def test_thread_times_of_zombie_available() -> None:
    cpu = min(os.sched_getaffinity(0))
    argv = [sys.executable, "-c", SPIN]
    with subprocess.Popen(
        argv,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),  # noqa: PLW1509
    ) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        times = thread_times(process.pid)
        assert last_cpu(process.pid) == cpu
        assert times is not None
        assert times[process.pid] > 0.2e9
    assert thread_times(process.pid) is None
    assert last_cpu(process.pid) is None


def test_thread_times_of_malformed_files_empty(tmp_path: Path) -> None:
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/schedstat").write_text("nonsense 1 2\n")
    (tmp_path / "7/task/8").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b) S 1 2\n")
    assert thread_times(7, tmp_path) == {}
    assert last_cpu(7, tmp_path) is None


def test_threads_counted_without_reading_each() -> None:
    stop = threading.Event()
    before = count_threads(os.getpid())
    started = [threading.Thread(target=stop.wait) for _ in range(5)]
    for each in started:
        each.start()
    try:
        assert count_threads(os.getpid()) == before + 5
    finally:
        stop.set()
        for each in started:
            each.join()


def test_threads_of_no_process_are_none() -> None:
    assert count_threads(2**22) == 0
