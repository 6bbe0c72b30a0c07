# SPDX-License-Identifier: MIT
"""Waiting for the exit of one or many processes, and the record read at exit."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from hmd.linux.exit_watch import ExitRecord, ExitWatch, ProcessExit
from hmd.linux.procfs import ProcessId, alive, identify
from tests.fakes.open_descriptors import open_descriptors

LINE = (
    b"42 (cat) S 7 42 42 0 -1 4194560 1 0 0 0 5 3 0 0 20 0 1 0 900 2363392 300 18446744073709551615"
    b" 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def test_process_exit_wait_ends_at_timeout() -> None:
    running = ProcessExit(os.getpid())
    began_s = time.monotonic()
    assert not running.wait(0.05)
    assert time.monotonic() - began_s >= 0.05
    running.close()
    running.close()


def test_exit_record_with_busy_caller_has_time_of_exit() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process_exit = ProcessExit(child.pid)
    with ExitRecord(process_exit.wait, time.monotonic) as record:
        assert record.wait(0.0) is None
        child.kill()
        killed_s = time.monotonic()
        time.sleep(0.5)
        exited_s = record.wait(10)
    assert exited_s is not None
    assert exited_s - killed_s < 0.4
    process_exit.close()
    child.communicate()


def test_exit_record_of_running_process_ends_with_context() -> None:
    running = ProcessExit(os.getpid())
    with ExitRecord(running.wait, time.monotonic) as record:
        pass
    assert record.wait(0.0) is None
    running.close()


def test_exit_watch_reports_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identify(child.pid)
    assert process is not None
    watch = ExitWatch()
    watch.watch([process])
    try:
        assert watch.exited() == frozenset()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert watch.exited() == {process}
        assert watch.exited() == frozenset()
        assert not alive(process)
    finally:
        child.communicate()
        watch.close()
        watch.close()


def test_exit_watch_reports_reused_pid() -> None:
    me = identify(os.getpid())
    assert me is not None
    former = ProcessId(me.pid, me.start_ticks - 1)
    watch = ExitWatch()
    watch.watch([former, me])
    assert watch.exited() == {former}
    watch.close()


def test_exit_watch_leaks_no_descriptor() -> None:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(8)]
    before = open_descriptors()
    try:
        watch = ExitWatch()
        for _ in range(3):
            watch.watch([p for c in children if (p := identify(c.pid))])
            assert open_descriptors() == before + 8 + 1  # and that of epoll(7)
            watch.watch([])
            assert open_descriptors() == before
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()


def test_exit_watch_leaves_descriptors_for_others() -> None:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(6)]
    processes = [p for child in children if (p := identify(child.pid))]
    before = open_descriptors()
    watch = ExitWatch(descriptors=2)
    try:
        watch.watch(processes)
        assert open_descriptors() == before + 2 + 1  # and that of epoll(7)
        for child in children:
            child.kill()
            child.wait()
        assert watch.exited() == frozenset(processes)
    finally:
        watch.close()


def test_exit_watch_without_a_free_descriptor_reports_exits() -> None:
    """With all descriptors taken, /proc cannot be read: what pidfds say still counts."""
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    processes = [p for child in children if (p := identify(child.pid))]
    watch = ExitWatch(descriptors=2)
    watch.watch(processes)
    for child in children:
        child.kill()
        child.wait()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    try:
        reported = watch.exited()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert len(reported) == 2
    assert reported | watch.exited() == frozenset(processes)
    watch.close()


def test_exit_watch_reads_fixture_tree(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42/stat").write_bytes(LINE)
    watch = ExitWatch(tmp_path)
    watch.watch([ProcessId(42, 900)])
    assert watch.exited() == frozenset()
    (tmp_path / "42/stat").unlink()
    assert watch.exited() == {ProcessId(42, 900)}
