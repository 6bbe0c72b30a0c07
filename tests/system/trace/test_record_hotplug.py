# SPDX-License-Identifier: MIT
"""CPUs that come online while a program is recorded; tests change a sysfs tree.

Needs two CPUs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.linux.procfs import identify
from hmd.linux.targets import TargetSpec
from hmd.linux.topology import read_topology
from hmd.sample.sampler import SampleSettings
from hmd.trace.reader import read_trace
from hmd.trace.recorder import Recorder, Sources
from hmd.trace.session import describe
from hmd.trace.writer import TraceWriter

PAGES = 300
TOUCH = f"""
import mmap, os, sys
for line in sys.stdin:
    m = mmap.mmap(-1, {PAGES} * 4096)
    for i in range({PAGES}):
        m[i * 4096] = 1
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    print(flush=True)
"""


class Program:
    """A program on the second CPU that touches new pages, and forks, when it is asked to."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._in, self._out = process.stdin, process.stdout

    def touch(self) -> None:
        assert self._in is not None and self._out is not None
        self._in.write(b"\n")
        self._in.flush()
        self._out.readline()


@pytest.fixture
def program() -> Iterator[Program]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", TOUCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        os.sched_setaffinity(process.pid, {1})
        made = Program(process)
        made.touch()
        yield made
        process.kill()


def test_record_samples_cpus_that_come_online(program: Program, tmp_path: Path) -> None:
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0\n")
    settings = SampleSettings(sampler="faults", period=1)
    with contextlib.ExitStack() as opened:
        sources = opened.enter_context(Sources(settings, sysfs=tmp_path / "sys"))
        first = sources.sampler, sources.tasks
        assert first[1] is not None
        process = identify(program.pid)
        assert process is not None
        about = describe(["touch"], read_topology(), sources, None)
        writer = opened.enter_context(TraceWriter(tmp_path / "t", about))
        recorder = Recorder(TargetSpec("recorded", pids=(process.pid,)), sources, writer)
        recorder.begin()
        program.touch()
        recorder.poll()
        assert writer.samples == 0
        assert recorder.processes == 1
        online.write_text("0-1\n")
        recorder.poll()
        assert sources.sampler is not first[0]
        assert sources.tasks is not first[1]
        second = sources.sampler
        program.touch()
        recorder.poll()
        assert sources.sampler is second
        online.write_text("0\n")
        recorder.poll()
        assert sources.sampler is not second
        assert second.read().address.size == 0
    trace = read_trace(tmp_path / "t", salvage=True)
    assert len(trace.samples) >= PAGES
    # The child that was forked on the new CPU, and lived between two polls.
    assert len(trace.processes) == 2
