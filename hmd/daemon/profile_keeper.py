# SPDX-License-Identifier: MIT
"""Learns the programs of targets while they run, and gives policies what former runs tell.

A process whose target learns is identified, and what is known of its program is loaded; its samples
are learned, and added to its program's profile when it exits, when the daemon stops, and at
intervals, so that a kill -9 loses no more. Files are read and written by a thread that ticks do not
wait for: a file system that does not answer costs learning, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from hmd.base.errors import HmdError
from hmd.daemon.log import OnceLogger
from hmd.linux.mappings import Mappings, mapping_pieces
from hmd.linux.procfs import PROC, ProcessId
from hmd.metrics.status import ProfilesStatus
from hmd.metrics.tick_record import TickRecord
from hmd.profiles.learning import RunLearner
from hmd.profiles.prior import ProfilePrior
from hmd.profiles.profile import Profile
from hmd.profiles.programs import program_key, program_path
from hmd.profiles.store import ProfileStore

MAX_RUNS: Final = 64
"""Processes that are followed at a time; later ones wait."""
MAX_LEARNERS: Final = 16
"""Processes that are learned, of 1 MiB at most each; and of one program ``MAX_ALIKE``: many
processes of it tell no more."""
MAX_PRIORS: Final = 16
"""Processes that are planned for with a profile, which takes at most 3 MiB each."""
MAX_ALIKE: Final = 4
MAX_PIECES: Final = 4
"""Parts of 1,024 mappings that are read of a process: objects are large, and few."""
MAPPING_PART: Final = 0.2
"""Part of a helper's CPU time for reading mappings, of all processes, at the begin of runs."""
MAPPING_AGE: Final = 0.1
"""Later they are read whenever a run is older by this share: by then most objects are there."""
LOOK_S: Final = 1.0
"""Time between two looks at what a process runs: execve(2) changes it."""

STALL_S: Final = 10.0
MAX_WAITING: Final = 256
"""Jobs that wait; targets may start processes faster than files are read."""
MAX_STALLED: Final = 4
"""Threads that are left waiting for a file system, each after ``STALL_S``, until one returns."""
CLOSE_S: Final = 3.0
"""Time that the last profiles may take to be written when the daemon stops."""
STOPPED: Final = "the file system of profiles or programs does not answer"

Job = Callable[[], None]


class FileWorker:
    """Runs jobs in order in a thread, and goes on in another one where a job does not return."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self.cpu_s = 0.0
        self._stall_s = stall_s
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._begun_s: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether as many threads wait as may."""
        return len(self._threads) > MAX_STALLED

    def submit(self, job: Job) -> None:
        """Run a job, which must not raise, after those before it; not if too many wait."""
        if self._jobs.qsize() < MAX_WAITING:
            self._jobs.put(job)

    def check(self) -> None:
        """Leave a job behind that does not return; call it now and then."""
        now_s, begun_s = time.monotonic(), self._begun_s
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        late = begun_s is not None and now_s - begun_s > self._stall_s
        if (late or not self._threads) and not self.stopped and not self._jobs.empty():
            self._begun_s = None
            thread = threading.Thread(target=self._work, name="hmd-profiles", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self, limit_s: float) -> bool:
        """Wait until all jobs are done; return whether they are."""
        done = threading.Event()
        self.submit(done.set)
        self.check()
        return done.wait(limit_s)

    def _work(self) -> None:
        mine = threading.current_thread()
        # The last thread works; one that was left behind ends when its job returns.
        while self._threads[-1:] == [mine]:
            job = self._jobs.get()
            self._begun_s, cpu_s = time.monotonic(), time.thread_time()
            job()
            if self._threads[-1:] == [mine]:
                self._begun_s = None
            self.cpu_s += time.thread_time() - cpu_s


@dataclass(slots=True)
class _Run:
    """A process from when it was first seen: what is known of it, and what was written of it."""

    target: str
    path: str
    begun_s: float
    saved_s: float
    looked_s: float
    learner: RunLearner | None = None
    key: str = ""
    former: Profile | None = None
    prior: ProfilePrior | None = None
    written: bytes | None = None
    mapped_due_s: float = field(default=float("-inf"))


class ProfileKeeper:
    """Follows the processes of targets that learn; for the loop's thread."""

    def __init__(self, log: logging.Logger, proc: Path = PROC) -> None:
        self._log, self._proc = OnceLogger(log), proc
        self._store: ProfileStore | None = None
        self._save_s, self._cpu_share = float("inf"), 0.01
        self._worker = FileWorker()
        self._runs: dict[ProcessId, _Run] = {}
        self._found: deque[tuple[ProcessId, _Run, str | None, Profile | None]] = deque()
        self._refused = self._kept = self._kept_bytes = 0
        self._saved_s = 0.0

    def configure(self, store: ProfileStore | None, save_s: float, cpu_share: float) -> None:
        """Use a folder, None to learn nothing; ``cpu_share`` of a CPU is for what helps ticks."""
        same = store is not None and self._store is not None and store.folder == self._store.folder
        if not same:
            self._forget_all()
        self._store, self._save_s, self._cpu_share = store, save_s, cpu_share
        if store is not None and not same:
            self._worker.submit(lambda: self._guard(lambda: self._count(store)))

    @property
    def cpu_s(self) -> float:
        """CPU time of the thread that reads and writes."""
        return self._worker.cpu_s

    @property
    def priors(self) -> dict[ProcessId, ProfilePrior]:
        """What former runs tell of the processes whose programs have a profile."""
        return {process: run.prior for process, run in self._runs.items() if run.prior is not None}

    @property
    def status(self) -> ProfilesStatus:
        """What the daemon publishes."""
        return ProfilesStatus(
            count=self._kept,
            bytes=self._kept_bytes,
            processes=len(self.priors),
            saved_s=self._saved_s + sum(prior.saved_s for prior in self.priors.values()),
            refused=self._refused,
            stopped=STOPPED if self._worker.stopped else "",
        )

    def follow(self, learning: Mapping[ProcessId, str], now_s: float) -> None:
        """Follow the processes that learn, with the target of each, before a tick."""
        if self._store is None:
            return
        self._worker.check()
        for process in self._runs.keys() - learning.keys():
            self._end(process)
        while self._found:
            self._adopt(*self._found.popleft())
        for process, target in learning.items():
            run = self._runs.get(process)
            if run is not None and now_s - run.looked_s >= LOOK_S:
                run.looked_s = now_s
                if run.target != target or program_path(process, self._proc) != run.path:
                    self._end(process)
                    run = None
            if run is None and len(self._runs) < MAX_RUNS and not self._worker.stopped:
                self._begin(process, target, now_s)
        for process, run in self._runs.items():
            if now_s >= run.mapped_due_s and (run.learner or run.prior):
                self._read_mappings(process, run, now_s)
        due = [run for run in self._runs.values() if now_s - run.saved_s >= self._save_s]
        for run in due[:1]:
            run.saved_s = now_s
            self._save(run)

    def observe(self, record: TickRecord) -> None:
        """Learn the samples of a tick."""
        if not self._runs:
            return
        batch = record.batch
        order = np.argsort(batch.process, kind="stable")
        sorted_slots = batch.process[order]
        for slot, process in enumerate(record.processes):
            if process not in self._runs or (learner := self._runs[process].learner) is None:
                continue
            first, end = np.searchsorted(sorted_slots, (slot, slot + 1))
            mine = order[first:end]
            weight = batch.period[mine].astype(np.float64)
            learner.observe(batch.address[mine], weight, record.now_s)

    def describe(self, process: ProcessId) -> dict[str, Any] | None:
        """Return what is known of a process from former runs, as plain values; None: nothing."""
        run = self._runs.get(process)
        if run is None or run.prior is None:
            return None
        profile = run.prior.profile
        return {
            "program": run.key,
            "runs": profile.runs,
            "run_s": profile.seconds,
            "objects": len(profile.objects),
            "trust": run.prior.trust,
            "saved_s": run.prior.saved_s,
        }

    def close(self) -> None:
        """Write what was learned, as far as the file system answers in time."""
        self._forget_all()
        if self._store is not None and not self._worker.wait(CLOSE_S):
            self._log.warn(f"{STOPPED}: what was learned since the last time is lost")

    def _forget_all(self) -> None:
        for process in list(self._runs):
            self._end(process)

    def _end(self, process: ProcessId) -> None:
        run = self._runs.pop(process)
        self._saved_s += run.prior.saved_s if run.prior is not None else 0.0
        self._save(run)

    def _begin(self, process: ProcessId, target: str, now_s: float) -> None:
        path, store = program_path(process, self._proc), self._store
        if path is None or store is None:
            return
        run = self._runs[process] = _Run(target, path, now_s, now_s, now_s)
        if sum(one.learner is not None for one in self._runs.values()) < MAX_LEARNERS:
            run.learner = RunLearner()

        def identify() -> None:
            if key := program_key(process, target, self._proc):
                # The learner has what is learned even if nothing can be read.
                self._found.append((process, run, key, None))
                self._found.append((process, run, key, store.load(key)))

        self._worker.submit(lambda: self._guard(identify))

    def _adopt(
        self, process: ProcessId, run: _Run, key: str | None, former: Profile | None
    ) -> None:
        if self._runs.get(process) is not run or key is None:
            return
        run.key = key
        alike = Counter(one.key for one in self._runs.values() if one.learner is not None)
        if alike[key] > MAX_ALIKE:
            run.learner = None
        if run.learner is not None:
            run.former = former
        if former is not None and len(self.priors) < MAX_PRIORS:
            run.prior, run.mapped_due_s = ProfilePrior(former), float("-inf")

    def _read_mappings(self, process: ProcessId, run: _Run, now_s: float) -> None:
        """Read where a process's objects are, as often as all processes' mappings may be read."""
        begun_s = time.thread_time()
        pieces = list(islice(mapping_pieces(process.pid, self._proc), MAX_PIECES))
        if pieces:
            mappings: Mappings = pieces[0].joined(pieces[1:])
            for learns in (run.learner, run.prior):
                if learns is not None:
                    learns.set_mappings(mappings)
        cost_s = time.thread_time() - begun_s
        shared_s = cost_s * len(self._runs) / (MAPPING_PART * self._cpu_share)
        run.mapped_due_s = now_s + max(shared_s, MAPPING_AGE * (now_s - run.begun_s))

    def _save(self, run: _Run) -> None:
        """Have what was learned of a process merged into its program's profile."""
        store, learner = self._store, run.learner
        learned = learner.finish() if learner is not None and run.key else None
        if store is None or learned is None or self._worker.stopped:
            return
        if run.prior is not None:
            learned = replace(learned, saved_s=run.prior.saved_s)

        def write() -> None:
            run.written = store.add_run(run.key, learned, run.former, run.written)
            self._count(store)

        self._worker.submit(lambda: self._guard(write))

    def _count(self, store: ProfileStore) -> None:
        with suppress(OSError):  # what lists it says why it is not there
            store.folder.mkdir(mode=0o700, exist_ok=True)
        found = store.entries()
        self._kept, self._kept_bytes = len(found), sum(one.size_bytes for one in found)

    def _guard(self, job: Job) -> None:
        """Run a job of the thread; what it refuses is counted, and named once."""
        try:
            job()
        except (HmdError, OSError) as error:
            self._refused += 1
            self._log.warn(str(error))
        except Exception as error:  # a profile never ends the thread
            self._refused += 1
            self._log.warn(f"profiles: {error!r}")
