"""Recording: a program's sampled accesses, mappings and placement, streamed into a trace file.

Takes open sources, a writer and a process; returns when the process and its children have
ended, when the time is up, or when it is stopped. Memory is bounded by what one poll reads, by the
mappings of processes that run, and by 300 bytes for each of ``MAX_PROCESSES``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hmd.machine.clock import Clock
from hmd.machine.exit_watch import ExitRecord
from hmd.machine.pages.mappings import Mappings, read_mappings
from hmd.machine.process_id import PROC, ProcessId, alive, read_stat
from hmd.machine.processes import ProcessWatcher
from hmd.machine.targets import TargetSpec
from hmd.machine.threads import ThreadTimes, last_cpu, thread_times
from hmd.trace.descendants import DescendantTracker
from hmd.trace.placement_log import PlacementLog, resident
from hmd.trace.record_inputs import ClockPair, SourceRenewal, Sources
from hmd.trace.trace import Losses, TracedProcess
from hmd.trace.trace_writer import TraceWriter

MAX_PROCESSES = 1 << 16
FIRST_LOOK_S = 0.01
"""Time to the first poll; each next one comes after twice the time, up to the interval."""
READ_SHARE = 0.05
"""Most of the time that is spent on reading a process's mappings, or the times of its threads."""
READ_FREE_S = 0.02
"""Readings that take no longer are not put off: some 7,000 mappings, or 2,000 threads."""
FLUSH_S = 1.0
"""Longest time between two writes: a killed recorder loses no more than this."""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Times between polls, in seconds.

    ``interval_s``: rings, mappings and progress are read. ``placement_s``: the nodes of pages are
    queried, for at most ``placement_share`` of the time plus ``placement_credit_s``.
    """

    interval_s: float = 0.2
    placement_s: float = 1.0
    placement_share: float = 0.02
    placement_credit_s: float = 2.0


class PacedReading:
    """Says when something is read again that may take long: within ``READ_SHARE`` of the time.

    What takes ``READ_FREE_S`` of CPU time at most is read each time.
    """

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._begun_cpu_s = 0.0

    def begin(self, now_s: float) -> bool:
        """Return whether it may be read now; ``end`` is then called after it."""
        self._begun_cpu_s = time.thread_time()
        return now_s >= self._due_s

    def end(self, now_s: float) -> None:
        """Note that it has been read."""
        took_s = time.thread_time() - self._begun_cpu_s
        self._due_s = now_s + (took_s / READ_SHARE if took_s > READ_FREE_S else 0.0)


class _Followed:
    """One process of the recording, and what was last written about it."""

    def __init__(self, process: ProcessId, index: int) -> None:
        self.process = process
        self.index = index
        self.placement = PlacementLog(index)
        self._mappings: Mappings | None = None
        self._ran: dict[int, int] = {}
        self._running: list[int] = []
        self._since_s = time.monotonic()
        self._due_s = 0.0
        self._asked_s = 0.0
        self._mapping_reads, self._time_reads = PacedReading(), PacedReading()

    @property
    def mapped(self) -> bool:
        """True once the mappings have been read."""
        return self._mappings is not None

    def write_mappings(self, writer: TraceWriter, now_ns: int, proc: Path) -> None:
        """Write the mappings if they have changed; of many, they are read more rarely."""
        if not self._mapping_reads.begin(time.monotonic()):
            return
        mappings = read_mappings(self.process.pid, proc)
        self._mapping_reads.end(time.monotonic())
        if mappings is None or not len(mappings):
            return
        before = self._mappings
        if (
            before is not None
            and np.array_equal(before.start, mappings.start)
            and np.array_equal(before.end, mappings.end)
            and before.path == mappings.path
        ):
            return
        self._mappings = mappings
        writer.mappings(now_ns, self.index, mappings)

    def write_placement(
        self, writer: TraceWriter, settings: RecordSettings, now: Callable[[], int]
    ) -> None:
        """Write the placement of pages if a query is due and finds changes."""
        began_s = time.monotonic()
        allowed_s = settings.placement_credit_s + settings.placement_share * (
            began_s - self._since_s
        )
        if self._mappings is None or began_s < self._due_s or self._asked_s > allowed_s:
            return
        change = self.placement.query(self.process.pid, self._mappings, now())
        if change is not None:
            writer.placement(change)
        self._due_s = began_s + settings.placement_s
        self._asked_s += time.monotonic() - began_s

    def ran(self, proc: Path) -> ThreadTimes | None:
        """Return the CPU time of each thread, ended ones too; None once the process is gone.

        Of many threads it is read more rarely, and is that of the last reading until then.
        """
        if not self._time_reads.begin(time.monotonic()):
            return self._ran if alive(self.process, proc) else None
        times = thread_times(self.process.pid, proc)
        if times is None:
            return None
        grown = [thread for thread, ran_ns in times.items() if ran_ns > self._ran.get(thread, 0)]
        self._running = grown or self._running
        self._ran.update(times)
        self._time_reads.end(time.monotonic())
        return self._ran

    def now_ns(self, clock: Clock, proc: Path) -> int:
        """Return the time; if each CPU has a clock, the latest of those that its threads ran on.

        The clock of the recorder's own CPU may be far ahead of that.
        """
        if clock.kind == "monotonic":
            return clock.now_ns()
        cpus = {last_cpu(thread, proc) for thread in self._running} - {None}
        return max((clock.now_ns(cpu) for cpu in cpus), default=clock.now_ns())


class Recorder:
    """Records a process and its children."""

    def __init__(
        self,
        root: ProcessId,
        sources: Sources,
        writer: TraceWriter,
        settings: RecordSettings | None = None,
        proc: Path = PROC,
        renewal: SourceRenewal | None = None,
    ) -> None:
        """Record from open sources; the caller closes them.

        With a ``renewal``, they are opened again where CPUs come or go.
        """
        self._root = root
        self._sources, self._writer = sources, writer
        self._clock, self._renewal = sources.clock, renewal
        self._settings = settings or RecordSettings()
        self._proc = proc
        self._watcher = ProcessWatcher([TargetSpec("recorded", pids=(root.pid,))], proc)
        self._followed: dict[ProcessId, _Followed] = {}  # those that may still run
        self._index: dict[ProcessId, int] = {}  # of all, ended ones too
        self._unmapped_ended = 0
        self._tracked: tuple[ProcessId, ...] = ()
        self._family = DescendantTracker(root, sources.tasks, proc)
        self._unnamed: list[_Followed] = []
        self._losses = Losses()
        self._flushed_s = time.monotonic()
        self._stopped = False
        self.since_ns = 0
        """Earlier samples are left out."""
        self.ended: ClockPair | None = None
        """When the last process ended."""

    @property
    def processes(self) -> int:
        """Number of processes that were recorded."""
        return len(self._index)

    @property
    def short_lived(self) -> int:
        """Number of processes that ended before their mappings were read."""
        running = sum(not one.mapped for one in self._followed.values())
        return self._unmapped_ended + running

    def begin(self) -> None:
        """Follow the first process; its accesses are sampled from here on.

        Nothing from before ``since_ns`` is written: until its exec the process is a copy of hmd.
        """
        self._track((self._root,))
        self._family.born()
        # The first call of each function takes long, so it comes before the program's exec.
        members = self._watcher.scan()["recorded"] or (self._root,)
        self._sources.sampler.read()
        mappings = read_mappings(self._root.pid, self._proc)
        if mappings is not None:
            resident(self._root.pid, mappings, self._proc)
        self._sources.counter.start(members)

    def poll(self) -> None:
        """Drain the rings and write all changes."""
        self._follow_cpus()
        born = self._family.born()
        members = self._watcher.scan()["recorded"]
        # Processes that ended since the last poll have samples too.
        self._track(tuple(dict.fromkeys((*self._tracked, *members, *born))))
        self._read()
        listed = set(members)
        living = tuple(p for p in self._tracked if p in listed or alive(p, self._proc))
        if living:
            self._track(living)
        self._forget_ended(born)
        self._write_progress()
        for process in self._tracked:
            one = self._followed[process]
            now = partial(one.now_ns, self._clock, self._proc)
            one.write_mappings(self._writer, now(), self._proc)
            one.write_placement(self._writer, self._settings, now)
        losses = self._sources.losses
        if losses != self._losses:
            self._losses = losses
            self._writer.losses(self._clock.now_ns(), losses)
        if time.monotonic() - self._flushed_s >= FLUSH_S:
            self._flushed_s = time.monotonic()
            self._writer.flush()

    def _follow_cpus(self) -> None:
        """Go on with sources that see the CPUs which are online now."""
        if self._renewal is None:
            return
        sampler, tasks = self._renewal.opened(self._sources)
        if tasks is not None:
            self._family.use(tasks)
            self._sources.use_tasks(tasks)
        if sampler is not None:
            self._read()
            self._sources.use_sampler(sampler)
            sampler.track(self._tracked)

    def _forget_ended(self, born: Iterable[ProcessId]) -> None:
        """Free what was kept of processes that have ended; their samples have been written.

        And of those born beyond ``MAX_PROCESSES``.
        """
        for process in self._followed.keys() - set(self._tracked):
            self._unmapped_ended += not self._followed.pop(process).mapped
            self._family.forget(process)
        for process in born:
            if process not in self._index:
                self._family.forget(process)

    def _write_progress(self) -> None:
        """Write the CPU time and the executed instructions of processes."""
        ran = {p: times for p in self._tracked if (times := self._followed[p].ran(self._proc))}
        counts = self._sources.counter.read(ran)
        for process, times in ran.items():
            one, executed = self._followed[process], counts.get(process, 0)
            now_ns = one.now_ns(self._clock, self._proc)
            self._writer.progress(now_ns, one.index, sum(times.values()), executed)

    def stop(self) -> None:
        """End ``run`` after its next poll; may be called from a signal handler."""
        self._stopped = True

    def run(self, ended: Callable[[float], bool], until_s: float = float("inf")) -> None:
        """Poll at every interval until the process has ended, or the time is up.

        ``ended`` waits up to the given seconds and returns whether it has. Children that outlive
        the first process are recorded until the last has ended. The first process's entry in /proc
        stays until this returns.
        """
        self.ended = None
        began_s = time.monotonic()

        # Where each CPU has a clock, the exit has the time of the CPU that the process ran on last.
        def exit_time() -> ClockPair:
            return self._sources.now(last_cpu(self._root.pid, self._proc))

        with ExitRecord(ended, exit_time) as exit_record:
            first_ended: ClockPair | None = None
            while time.monotonic() < until_s and not self._stopped:
                left_s = min(self._interval_s(began_s), max(0.0, until_s - time.monotonic()))
                if first_ended is None:
                    seen = first_ended = exit_record.wait(left_s)
                else:
                    time.sleep(left_s)
                    seen = self._sources.now()
                self.poll()
                if seen and not any(alive(p, self._proc) for p in self._tracked):
                    self.ended = seen
                    break
        self._read()

    def _interval_s(self, began_s: float) -> float:
        """Return the time to the next poll: short at first, for short programs.

        In the emulated machine, where a poll costs many times more, it is constant.
        """
        if self._clock.kind == "modelled":
            return self._settings.interval_s
        return min(self._settings.interval_s, max(FIRST_LOOK_S, time.monotonic() - began_s))

    def _read(self) -> None:
        self._write_names()
        batch = self._sources.sampler.read()
        batch = batch.take(batch.time_ns >= np.uint64(self.since_ns))
        index = np.array([self._index[p] for p in self._tracked], np.uint16)
        self._writer.samples_of(batch, index)

    def _track(self, processes: tuple[ProcessId, ...]) -> None:
        """Sample these processes; of more than ``MAX_PROCESSES``, the first."""
        for process in processes:
            if process not in self._index and len(self._index) < MAX_PROCESSES:
                index = self._index[process] = len(self._index)
                one = self._followed[process] = _Followed(process, index)
                self._unnamed.append(one)
        tracked = tuple(process for process in processes if process in self._followed)
        if tracked != self._tracked:
            self._tracked = tracked
            self._sources.sampler.track(tracked)

    def _write_names(self) -> None:
        """Write the processes that have no row yet: by then the first has its name by exec."""
        for one in self._unnamed:
            self._writer.process(one.index, TracedProcess(one.process.pid, self._name(one.process)))
        self._unnamed.clear()

    def _name(self, process: ProcessId) -> str:
        stat = read_stat(process.pid, self._proc)
        if stat is not None and stat.process == process:
            return stat.name.decode(errors="replace")
        return self._family.name(process) or "?"
