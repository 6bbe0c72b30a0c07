# SPDX-License-Identifier: MIT
"""Profiles in the daemon: real processes are learned, known again, and never waited for."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hmd.daemon import profile_keeper
from hmd.daemon.profile_keeper import MAX_STALLED, FileWorker, ProfileKeeper
from hmd.linux.procfs import ProcessId, identify
from hmd.metrics.tick_record import TickRecord
from hmd.policy.plan import Plan
from hmd.profiles.learning import RunLearner
from hmd.profiles.store import ProfileStore
from hmd.sample.access_batch import AccessBatch

PROGRAM = """
import ctypes, mmap, os, sys
memory = mmap.mmap(-1, 8 << 20)
memory[:] = bytes(len(memory))
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
if sys.stdin.read(1) == "x":
    os.execv("/bin/sleep", ["sleep", "60"])
"""
LOG = logging.getLogger("test_profile_keeper")


def wait_for(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[bytes], ProcessId, int]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        address = int(child.stdout.readline())
        process = identify(child.pid)
        assert process is not None
        yield child, process, address
        child.send_signal(signal.SIGKILL)


def record(process: ProcessId, address: int, now_s: float) -> TickRecord:
    """A tick with samples of the first MiB of the memory at ``address``."""
    batch = AccessBatch.of(address + 4096 * (np.arange(400) % 256))
    node = np.zeros(len(batch), np.int16)
    return TickRecord(now_s, (process,), ("t",), batch, node, Plan.empty((process,)), None)


class Ticks:
    """A keeper whose ticks are a second apart."""

    def __init__(self, folder: Path, save_s: float = 600.0) -> None:
        self.keeper, self.store = ProfileKeeper(LOG), ProfileStore(folder)
        self.keeper.configure(self.store, save_s, cpu_share=0.01)
        self.now_s = 0.0

    def run(self, process: ProcessId, address: int, ticks: int = 4) -> None:
        for _ in range(ticks):
            self.now_s += 1.0
            self.keeper.follow({process: "t"}, self.now_s)
            self.keeper.observe(record(process, address, self.now_s))
            self.settle()

    def settle(self) -> None:
        assert self.keeper._worker.wait(30)

    def end_all(self) -> None:
        self.keeper.follow({}, self.now_s)
        self.settle()


@pytest.fixture
def ticks(tmp_path: Path) -> Ticks:
    return Ticks(tmp_path / "profiles")


def test_second_run_is_known_from_the_first(ticks: Ticks) -> None:
    with running() as (_, process, address):
        ticks.run(process, address)
        assert not ticks.keeper.priors
        assert ticks.keeper.describe(process) is None
    ticks.end_all()
    (stored,) = ticks.store.entries()
    assert stored.key.startswith("python")
    with running() as (_, process, address):
        ticks.run(process, address)
        prior = ticks.keeper.priors[process]
        hot, cold = np.array([[address + (1 << 18)], [address + (6 << 20)]], np.uint64)
        counts = prior.profile.counts.sum(axis=0)
        assert counts[prior.blocks_at(hot)] > 0
        assert counts[prior.blocks_at(cold)] == 0
        known = ticks.keeper.describe(process)
        assert known is not None
        assert known["program"] == stored.key
        assert known["runs"] == 1.0
        assert 0 <= known["trust"] <= 1
        prior.saved_s = 0.25  # as moves by the profile would have
        assert ticks.keeper.status.saved_s == 0.25
        status = ticks.keeper.status
        assert (status.count, status.processes, status.refused) == (1, 1, 0)
        assert status.bytes == stored.size_bytes
    ticks.end_all()
    loaded = ticks.store.load(stored.key)
    assert loaded is not None
    assert loaded.runs > 1.0
    assert loaded.saved_s == ticks.keeper.status.saved_s == 0.25


def test_running_process_is_saved_at_intervals_as_one_run(tmp_path: Path) -> None:
    ticks = Ticks(tmp_path / "profiles", save_s=2.0)
    with running() as (_, process, address):
        ticks.run(process, address, ticks=10)
        (stored,) = ticks.store.entries()
        loaded = ticks.store.load(stored.key)
        assert loaded is not None
        assert loaded.runs == 1.0


def test_what_was_learned_is_written_when_the_daemon_stops(ticks: Ticks) -> None:
    with running() as (_, process, address):
        ticks.run(process, address)
        ticks.keeper.close()
    assert len(ticks.store.entries()) == 1


def test_another_program_by_exec_is_learned_for_itself(ticks: Ticks) -> None:
    with running() as (child, process, address):
        ticks.run(process, address)
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.close()
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        ticks.run(process, address, ticks=8)
        assert [one.key[:6] for one in ticks.store.entries()] == ["python"]
        assert ticks.keeper._runs[process].key.startswith("sleep-")


def test_damaged_profile_is_refused_once_and_learned_anew(
    ticks: Ticks, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as (_, process, address):
        ticks.run(process, address)
    ticks.end_all()
    (stored,) = ticks.store.entries()
    ticks.store.path_of(stored.key).write_bytes(b"damaged")
    with running() as (_, process, address):
        ticks.run(process, address)
        assert not ticks.keeper.priors
        assert ticks.keeper.status.refused == 1
    ticks.end_all()
    assert ticks.store.load(stored.key) is not None
    assert caplog.text.count("kept as") == 1


def test_processes_beyond_the_bound_wait(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_keeper, "MAX_RUNS", 1)
    with running() as (_, first, address), running() as (_, second, _):
        ticks.keeper.follow({first: "t", second: "t"}, 0.0)
        assert list(ticks.keeper._runs) == [first]
        ticks.keeper.follow({second: "t"}, 1.0)
        ticks.keeper.follow({second: "t"}, 2.0)
        assert list(ticks.keeper._runs) == [second]
        ticks.run(second, address)


def test_profiles_beyond_the_bound_are_not_used(
    ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as (_, process, address):
        ticks.run(process, address)
    ticks.end_all()
    monkeypatch.setattr(profile_keeper, "MAX_PRIORS", 0)
    with running() as (_, process, address):
        ticks.run(process, address)
        assert not ticks.keeper.priors
    ticks.end_all()
    (stored,) = ticks.store.entries()
    merged = ticks.store.load(stored.key)
    assert merged is not None and merged.runs > 1.0


def test_mappings_of_what_neither_learns_nor_is_known_are_not_read(ticks: Ticks) -> None:
    with running() as (_, process, address):
        ticks.run(process, address, ticks=1)
        run = ticks.keeper._runs[process]
        run.learner, run.mapped_due_s = None, 0.0
        ticks.run(process, address, ticks=1)
        assert run.mapped_due_s == 0.0
        run.learner = RunLearner()
        ticks.run(process, address, ticks=1)
        assert run.mapped_due_s > 0.0


def test_without_a_folder_nothing_is_followed(ticks: Ticks) -> None:
    ticks.keeper.configure(None, 600.0, cpu_share=0.01)
    with running() as (_, process, address):
        ticks.keeper.follow({process: "t"}, 0.0)
        ticks.keeper.observe(record(process, address, 0.0))
        assert not ticks.keeper._runs


def test_folder_that_cannot_be_made_is_named_and_nothing_else_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = Ticks(tmp_path / "missing" / "profiles")
    with running() as (_, process, address):
        ticks.run(process, address)
    ticks.end_all()
    assert ticks.keeper.status.refused > 0
    assert str(tmp_path / "missing" / "profiles") in caplog.text


def stall_until(release: threading.Event) -> Callable[[], None]:
    """Return a job that returns when it is released."""

    def job() -> None:
        release.wait()

    return job


def test_job_that_does_not_return_holds_nothing_up() -> None:
    worker, release, done = FileWorker(stall_s=0.05), threading.Event(), threading.Event()
    worker.submit(stall_until(release))
    worker.check()
    worker.submit(done.set)

    def goes_on() -> bool:
        worker.check()
        return done.is_set()

    wait_for(goes_on)
    assert not worker.stopped
    release.set()


def test_too_many_that_do_not_return_stop_it_until_one_does() -> None:
    worker, release = FileWorker(stall_s=0.01), threading.Event()
    for _ in range(MAX_STALLED + 1):
        worker.submit(stall_until(release))
    done = threading.Event()
    worker.submit(done.set)

    def stopped() -> bool:
        worker.check()
        return worker.stopped

    wait_for(stopped)
    assert not worker.wait(0.05)
    release.set()
    wait_for(done.is_set)
    wait_for(lambda: not stopped())


def test_mappings_are_read_as_often_as_the_quota_permits(ticks: Ticks) -> None:
    wait_s = []
    with running() as (_, process, _):
        for share in (0.01, 1.0):
            ticks.keeper.configure(ticks.store, 600.0, cpu_share=share)
            ticks.keeper.follow({process: "t"}, 1.0)
            run = ticks.keeper._runs[process]
            ticks.keeper._read_mappings(process, run, run.begun_s)
            wait_s.append(run.mapped_due_s - run.begun_s)
    assert wait_s[0] > 10 * wait_s[1] > 0
