# SPDX-License-Identifier: MIT
"""Scans of the processes of this host."""

import os
import signal
import subprocess
import sys
import time

from hmd.linux.processes import ProcessWatcher
from hmd.linux.procfs import ProcessId, identify
from hmd.linux.targets import TargetSpec


def test_scan_during_many_forks_and_exits_keeps_the_root() -> None:
    storm = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, time\n"
            "end = time.monotonic() + 20\n"
            "while time.monotonic() < end:\n"
            "    for i in range(20):\n"
            "        if not os.fork():\n"
            # Some live longer than a scan takes on one busy CPU.
            "            time.sleep(0.002 * i)\n"
            "            os._exit(0)\n"
            "    for _ in range(20):\n"
            "        os.wait()\n",
        ]
    )
    try:
        root = identify(storm.pid)
        watch = ProcessWatcher(
            [
                TargetSpec("storm", pids=(storm.pid,)),
                TargetSpec("all", exe="*", cmdline=".", user=0, cgroup="/"),
            ],
            reread_s=0,
        )
        children: set[ProcessId] = set()
        scans, give_up = 0, time.monotonic() + 15
        while scans < 100 or (len(children) < 2 and time.monotonic() < give_up):
            found = watch.scan()
            assert root in found["storm"]
            children.update(found["storm"])
            scans += 1
        assert len(children) > 1
    finally:
        storm.kill()
        storm.wait()


def test_child_of_ended_parent_stays_in_its_target() -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    child = identify(child_pid)
    try:
        watch = ProcessWatcher([TargetSpec("t", pids=(parent.pid,))])
        assert child in watch.scan()["t"]
        parent.stdin.close()
        parent.wait()
        assert watch.scan()["t"] == (child,)
    finally:
        os.kill(child_pid, signal.SIGKILL)
        parent.stdout.close()
    deadline = time.monotonic() + 30
    while watch.scan()["t"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watch.scan()["t"] == ()
