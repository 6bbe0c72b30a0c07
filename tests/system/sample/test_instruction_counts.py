# SPDX-License-Identifier: MIT
"""Instruction counts: perf's by a software event of every kernel, the emulated by test data."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hmd.linux.emulator_memory import SharedMemory, find_device
from hmd.linux.processes import last_cpu, thread_times
from hmd.linux.procfs import ProcessId, identify
from hmd.sample import instruction_counts
from hmd.sample.instruction_counts import (
    EmulatedInstructions,
    Executed,
    PerfInstructions,
    count_instructions,
    counting,
    instruction_events,
    stall_events,
)
from hmd.sample.perf_events import PerfError, open_event
from tests.fakes.open_descriptors import open_descriptors
from tests.fakes.plugin_memory import EmulatedMemory

SOFTWARE, TASK_CLOCK = 1, 1  # counts nanoseconds that a task ran
CLOCK = counting(SOFTWARE, TASK_CLOCK)
BURN = """
import os, sys, threading, time
def burn(ms):
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass
sys.stdin.readline()
"""
MS = 1_000_000


class Program:
    """A program that waits for a line before it does what its text says."""

    def __init__(self, text: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-S", "-c", BURN + text], stdin=subprocess.PIPE
        )
        process = identify(self.popen.pid)
        assert process is not None
        self.process = process

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(b"\n")
        self.popen.stdin.close()


def counted_ms(text: str) -> float:
    """Return the counted run time of a program after it has ended."""
    program = Program(text)
    time.sleep(0.3)  # it waits
    counter = PerfInstructions([CLOCK])
    counter.start([program.process])
    program.go()
    assert program.popen.wait(30) == 0
    count = counter.read({})[program.process].instructions
    counter.close()
    return count / MS


@pytest.mark.parametrize(
    "text",
    [
        "burn(100)",
        "t = threading.Thread(target=burn, args=(100,)); t.start(); t.join()",
        "os.fork() or (burn(100), os._exit(0)); os.wait()",
        "os.execvp('sh', ['sh', '-c', 'while [ $((i+=1)) -lt 200000 ]; do :; done'])",
    ],
    ids=["itself", "a thread", "a child", "after exec"],
)
def test_instructions_of_threads_children_and_exec_are_counted(text: str) -> None:
    assert 50 < counted_ms(text) < 20_000


def test_instructions_of_waiting_process_are_not_counted() -> None:
    assert counted_ms("time.sleep(0.2)") < 50


def test_instructions_of_threads_started_before_are_counted() -> None:
    late = "threading.Thread(target=lambda: (time.sleep(1), burn(100)))"
    program = Program(f"t = {late}; t.start(); t.join()")
    program.go()
    while len(thread_times(program.process.pid) or {}) < 2:
        time.sleep(0.01)
    counter = PerfInstructions([CLOCK])
    counter.start([program.process])
    assert program.popen.wait(30) == 0
    assert counter.read({})[program.process].instructions > 50 * MS
    counter.close()


def test_instructions_of_ended_process_are_0_and_leak_no_descriptor() -> None:
    before = open_descriptors()
    counter = PerfInstructions([CLOCK])
    me = identify(os.getpid())
    assert me is not None
    gone = ProcessId(2**22 - 1, 1)
    counter.start([gone, me])
    assert open_descriptors() > before
    end_s = time.thread_time() + 0.02
    while time.thread_time() < end_s:
        pass
    counts = counter.read({})
    assert counts[gone] == Executed()
    assert counts[me].instructions > 10 * MS
    counter.close()
    counter.close()
    assert open_descriptors() == before


def test_waits_are_the_share_of_cycles_of_the_time_that_threads_ran() -> None:
    counter = PerfInstructions([CLOCK], stalls=[(CLOCK, CLOCK)])
    assert "waits of loads" in counter.detail
    me = identify(os.getpid())
    assert me is not None
    counter.start([me])
    end_s = time.thread_time() + 0.02
    while time.thread_time() < end_s:
        pass
    found = counter.read({})[me]
    counter.close()
    # Every "cycle" is one of waiting, so that it waited for as long as it ran.
    assert found.stalled_ns == pytest.approx(found.instructions, rel=0.2)
    assert found.ran_ns == pytest.approx(found.stalled_ns, rel=0.2)


def test_waits_that_cannot_be_counted_leave_instructions() -> None:
    counter = PerfInstructions([CLOCK], stalls=[(CLOCK, counting(SOFTWARE, 0xFFFF))])
    assert "waits" not in counter.detail
    me = identify(os.getpid())
    assert me is not None
    counter.start([me])
    assert counter.read({})[me].stalled_ns == 0
    counter.close()


def test_waits_that_no_descriptor_is_left_for_are_given_up(monkeypatch: Any) -> None:
    before = open_descriptors()
    counter = PerfInstructions([CLOCK], stalls=[(CLOCK, CLOCK)])
    calls = []

    def open_three(*args: Any, **words: Any) -> int:
        calls.append(args)
        if len(calls) == 3:
            raise PerfError(errno.EMFILE, "the count of waits")
        return open_event(*args, **words)

    monkeypatch.setattr(instruction_counts, "open_event", open_three)
    me = identify(os.getpid())
    assert me is not None
    counter.start([me])
    found = counter.read({})[me]
    assert found.instructions > 0
    assert found.stalled_ns == 0
    counter.close()
    assert open_descriptors() == before


def test_stall_events_of_skylake_are_cycles_and_waits_for_memory(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 4\n\n"
    )
    assert stall_events(tmp_path, tmp_path) == ()
    folder = tmp_path / "bus/event_source/devices/cpu"
    folder.mkdir(parents=True)
    (folder / "type").write_text("4\n")
    ((cycles, waits),) = stall_events(tmp_path, tmp_path)
    assert (cycles.type, cycles.config) == (0, 0)
    assert (waits.type, waits.config) == (4, 0x60006A3)
    assert cycles.inherit
    assert waits.inherit


def test_multiplexed_event_count_is_extrapolated() -> None:
    read_end, write_end = os.pipe()
    # A third of the time on the PMU; then never yet.
    os.write(write_end, struct.pack("=QQQ", 100, 30, 10))
    assert instruction_counts._read(read_end) == (300, 30)
    os.write(write_end, struct.pack("=QQQ", 0, 30, 0))
    assert instruction_counts._read(read_end) == (0, 30)
    os.close(read_end)
    os.close(write_end)


def test_instruction_events_of_hybrid_cpu_are_one_per_core_type(tmp_path: Path) -> None:
    assert [event.config for event in instruction_events(tmp_path)] == [1]
    for name, number in (("cpu_core", 4), ("cpu_atom", 10)):
        folder = tmp_path / "bus/event_source/devices" / name
        folder.mkdir(parents=True)
        (folder / "type").write_text(f"{number}\n")
    assert [event.config for event in instruction_events(tmp_path)] == [4 << 32 | 1, 10 << 32 | 1]


def test_instructions_on_this_host_are_counted_or_reason_is_one_line() -> None:
    counter = count_instructions()
    me = identify(os.getpid())
    assert me is not None
    counter.start([me])
    if counter.source is None:
        assert counter.source is None
        assert counter.detail.startswith("not counted: ")
        assert "\n" not in counter.detail
        assert counter.read({me: {me.pid: 1}}) == {}
    else:
        assert counter.source == "pmu"
        assert counter.read({})[me].instructions > 0
    counter.close()


class Threads:
    """A fake /proc with threads: run time and last CPU of each."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.ran(os.getpid(), 0, 0)

    def ran(self, pid: int, cpu: int, time_ns: int) -> None:
        task = self.proc / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"{time_ns} 0 0\n")
        fields = ["0"] * 36 + [str(cpu)] + ["0"] * 13
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a b) {' '.join(fields)}\n")

    def times(self, *pids: int) -> dict[ProcessId, Any]:
        return {ProcessId(pid, 1): thread_times(pid, self.proc) for pid in pids}


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path / "proc")


@pytest.fixture
def emulated(emulated_memory: EmulatedMemory, threads: Threads) -> Any:
    device = find_device(emulated_memory.sysfs)
    assert device is not None
    counter = EmulatedInstructions(SharedMemory.open(device), threads.proc)
    yield counter
    counter.close()
    counter.close()


def test_emulated_count_of_program_alone_on_cpu_is_all_of_it(
    emulated: EmulatedInstructions, emulated_memory: EmulatedMemory, threads: Threads
) -> None:
    emulated_memory.execute(1, 5000)
    threads.ran(70, 1, 900)
    assert last_cpu(70, threads.proc) == 1
    emulated.start([ProcessId(70, 1)])
    emulated_memory.execute(0, 999)
    emulated_memory.execute(1, 6000)
    threads.ran(70, 1, 1000)
    threads.ran(os.getpid(), 0, 50)
    assert emulated.read(threads.times(70)) == {ProcessId(70, 1): Executed(1000)}
    # It has moved to the other CPU.
    emulated_memory.execute(0, 1099)
    emulated_memory.execute(1, 6500)
    threads.ran(70, 0, 1100)
    assert emulated.read(threads.times(70)) == {ProcessId(70, 1): Executed(1100)}


def test_emulated_waits_are_shared_out_as_instructions_are(
    emulated: EmulatedInstructions, emulated_memory: EmulatedMemory, threads: Threads
) -> None:
    for pid in (70, 71):
        threads.ran(pid, 1, 0)
    emulated.start([ProcessId(70, 1)])
    emulated_memory.wait(1, 6_000_000, 0)
    emulated_memory.wait(1, 2_000_000, 1)
    emulated_memory.run(1, 12_000_000)
    threads.ran(70, 1, 300)
    threads.ran(71, 1, 100)
    found = emulated.read(threads.times(70, 71))
    first, second = (found[ProcessId(pid, 1)] for pid in (70, 71))
    assert [first.stalled_ns, second.stalled_ns] == [6000, 2000]
    assert [first.ran_ns, second.ran_ns] == [9000, 3000]
    emulated.stop([ProcessId(71, 1)])
    assert emulated.read(threads.times(70)) == {ProcessId(70, 1): first}


def test_emulated_count_of_shared_cpu_is_split_by_run_time(
    emulated: EmulatedInstructions, emulated_memory: EmulatedMemory, threads: Threads
) -> None:
    for pid in (70, 71):
        threads.ran(pid, 1, 0)
    emulated.start([ProcessId(70, 1)])
    emulated_memory.execute(1, 1000)
    threads.ran(70, 1, 300)
    threads.ran(71, 1, 100)
    threads.ran(os.getpid(), 1, 100)
    counts = {ProcessId(70, 1): Executed(600), ProcessId(71, 1): Executed(200)}
    assert emulated.read(threads.times(70, 71)) == counts
    # No thread has run since; one that has ended keeps its count.
    emulated_memory.execute(1, 1500)
    assert emulated.read(threads.times(70)) == counts
