# SPDX-License-Identifier: MIT
"""Recording: a program's sampled accesses, mappings and placement, streamed into a trace file.

``Sources`` are the inputs: access samples, the clock of their times, instruction counts. They
belong together: the emulated machine's samples have modelled time, and its CPUs count instructions;
everywhere else times are CLOCK_MONOTONIC, and the CPU's PMU counts, if there is one.

``Recorder`` takes a target, open sources and a writer. It polls until the target's processes and
their children have ended, the time is up, or it is stopped. Memory is bounded by what one poll
reads, by the mappings of processes that run, and by 300 bytes for each of ``MAX_PROCESSES``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Self

import numpy as np

from hmd.base.errors import HmdError, MissingError, TargetError, UnavailableError
from hmd.base.units import PAGE_BYTES
from hmd.linux.emulator_memory import Clock, SharedMemory, find_device
from hmd.linux.exit_watch import ExitRecord
from hmd.linux.mappings import MappingKind, Mappings, read_mapped_files, read_mappings
from hmd.linux.page_calls import PageIs, query_nodes, scan
from hmd.linux.processes import ProcessWatcher, ThreadTimes, last_cpu, thread_times
from hmd.linux.procfs import PROC, SYSFS, ProcessId, absent, alive, identify, read_stat
from hmd.linux.targets import TargetSpec
from hmd.linux.topology import CpuWatch
from hmd.sample.instruction_counts import (
    EmulatedInstructions,
    Executed,
    InstructionCounter,
    count_instructions,
)
from hmd.sample.perf_events import Forked, TaskEvents, TaskRecord
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import Sampler, SampleSettings
from hmd.sample.selection import open_sampler
from hmd.trace.trace import (
    UNMAPPED,
    Losses,
    MappingSnapshot,
    Nodes,
    Pages,
    PlacementChange,
    TracedProcess,
)
from hmd.trace.writer import TraceWriter

MAX_PROCESSES: Final = 1 << 16
FIRST_POLL_S: Final = 0.01
"""Time to the first poll; each next one comes after twice the time, up to the interval."""
READ_SHARE: Final = 0.05
"""Most of the time that is spent on reading a process's mappings, or the times of its threads."""
READ_FREE_S: Final = 0.02
"""Readings that take no longer are not put off: some 7,000 mappings, or 2,000 threads."""
READ_ALL_SHARE: Final = 0.1
"""Share of an interval in which processes are read in turn, and as much for their progress."""
ALWAYS_READ: Final = 16
"""Processes that every poll reads."""
FLUSH_S: Final = 1.0
"""Longest time between two writes: a killed recorder loses no more than this."""
RETRY_S: Final = 10.0
"""Time between two attempts to open sources again."""
_QUERY_PAGES: Final = 1 << 16
"""Pages of one query of nodes: 13 ms."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


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


@dataclass(frozen=True, slots=True)
class ClockPair:
    """A time by the recording's clock, and the same time by CLOCK_MONOTONIC."""

    ns: int
    monotonic_ns: int


class Sources:
    """Open sources of a recording, a context manager; sample times are those of ``clock``.

    ``tasks`` is None where the kernel does not permit task events, and in the emulated machine,
    whose samples name no process that has ended: children are then those that /proc shows. Samples
    and task events have a ring per CPU that was online when they were opened: ``reopen`` opens
    them again when CPUs come or go.
    """

    def __init__(self, settings: SampleSettings, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        """Open them. Raises MissingError if no sampler works here."""
        self._settings = replace(settings, timestamps=True, code=True)
        self._proc, self._sysfs = proc, sysfs
        self._cpus = CpuWatch(sysfs)
        self._retry_at_s: float | None = None
        self._earlier = Losses()
        self.sampler: Sampler = open_sampler(self._settings, proc, sysfs).sampler
        self.clock = Clock()
        self.counter: InstructionCounter = InstructionCounter("not counted")
        self.tasks: TaskEvents | None = None
        with contextlib.ExitStack() as opened:
            opened.callback(self.close)
            if self.sampler.capabilities.modelled_clock:
                self.clock = Clock(_emulator_memory(sysfs))
                self.counter = EmulatedInstructions(_emulator_memory(sysfs), proc)
            else:
                self.counter = count_instructions(proc, sysfs)
                with contextlib.suppress(UnavailableError):
                    self.tasks = TaskEvents(sysfs)
            opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all; may be called twice."""
        for source in (self.counter, self.clock, self.tasks, self.sampler):
            if source is not None:
                source.close()

    def now(self, cpu: int | None = None) -> ClockPair:
        """Return the present time; by a CPU's clock if each CPU has one."""
        return ClockPair(self.clock.now_ns(cpu), time.monotonic_ns())

    @property
    def losses(self) -> Losses:
        """The losses of the recording so far, also of samplers that were closed."""
        stats, earlier = self.sampler.stats, self._earlier
        return Losses(earlier.lost + stats.lost, earlier.throttled + stats.throttled)

    def reopen(self) -> tuple[Sampler | None, TaskEvents | None]:
        """Open a sampler and task events where CPUs have come or gone; else return None for both.

        The sampler has the name and the period of the last one. Where it cannot be opened, another
        attempt follows in ``RETRY_S``. The caller drains those in use, then replaces them.
        """
        now_s = time.monotonic()
        due = self._retry_at_s is not None and now_s >= self._retry_at_s
        if not (self._cpus.changed() or due):
            return None, None
        self._retry_at_s = None
        sampler: Sampler | None = None
        tasks: TaskEvents | None = None
        try:
            if self.tasks is not None:
                tasks = TaskEvents(self._sysfs)
            before = self.sampler
            if isinstance(before, RingSampler) and not before.capabilities.modelled_clock:
                settings = replace(self._settings, sampler=before.name, period=before.period)
                sampler = open_sampler(settings, self._proc, self._sysfs, before).sampler
        except HmdError:
            self._retry_at_s = now_s + RETRY_S
        return sampler, tasks

    def replace_sampler(self, sampler: Sampler) -> None:
        """Go on with another sampler; the last one is closed."""
        self._earlier = self.losses
        self.sampler.close()
        self.sampler = sampler

    def replace_tasks(self, tasks: TaskEvents) -> None:
        """Go on with other rings of task events; the last ones are closed."""
        if self.tasks is not None:
            self.tasks.close()
        self.tasks = tasks


def _emulator_memory(sysfs: Path) -> SharedMemory:
    device = find_device(sysfs)
    if device is None:
        raise MissingError(
            "the emulated machine's shared memory is not there any more: boot it again"
        )
    return SharedMemory.open(device)


class DescendantTracker:
    """The processes that descend from followed ones, also where they end between reads of /proc.

    Reads task records, in order of time; without ``events`` it finds none. A child inherits its
    parent's name until its exec. Costs 150 bytes per process that may still have children.
    """

    def __init__(self, events: TaskEvents | None, proc: Path = PROC) -> None:
        self._events, self._proc = events, proc
        self._name: dict[int, str] = {}
        self._ended: set[int] = set()
        self._unread: list[TaskRecord] = []

    def follow(self, process: ProcessId) -> None:
        """Find the children of a process."""
        self._name.setdefault(process.pid, "")

    def replace_events(self, events: TaskEvents) -> None:
        """Go on with other rings; records of the last ones are not lost."""
        if self._events is not None:
            self._unread += self._events.read()
        self._events = events

    def read_forked(self) -> tuple[ProcessId, ...]:
        """Return the processes that were forked since the last call, oldest first."""
        if self._events is None:
            return ()
        found: dict[int, ProcessId] = {}
        ended, self._ended = self._ended, set()
        records, self._unread = [*self._unread, *self._events.read()], []
        for record in records:
            if not isinstance(record, Forked):
                if record.pid in self._name:
                    self._name[record.pid] = record.name
            elif record.parent_pid in self._name:
                self._name[record.pid] = self._name[record.parent_pid]
                ended.discard(record.pid)  # the pid has been given to another
                process = identify(record.pid, self._proc)
                found[record.pid] = process or _ended(record)
        for pid in ended:  # their last forks were recorded before they ended
            self._name.pop(pid, None)
        return tuple(found.values())

    def forget_process(self, process: ProcessId) -> None:
        """Drop the state of an exited process, once its fork records have been consumed."""
        self._ended.add(process.pid)

    def name_of(self, process: ProcessId) -> str:
        """Return the last recorded name of a process, empty if none was recorded."""
        return self._name.get(process.pid, "")


def _ended(forked: Forked) -> ProcessId:
    """Return the identity that a process had; its start time includes suspended time."""
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return ProcessId(forked.pid, (forked.time_ns + suspended_ns) * _TICKS_PER_S // 1_000_000_000)


class PlacementLog:
    """Last known placement of one process's pages; gives what changes, as runs of pages."""

    def __init__(self, process: int) -> None:
        """``process`` is its index in the trace."""
        self._process = process
        self._page: Pages = np.empty(0, np.uint64)
        self._node: Nodes = np.empty(0, np.int16)

    def update(self, page: Pages, node: Nodes, time_ns: int) -> PlacementChange | None:
        """Take all present pages, ascending, and their nodes; returns the changes, None if none."""
        known = np.searchsorted(self._page, page)
        inside = known < len(self._page)
        same = np.zeros(len(page), np.bool_)
        rows = known[inside]
        same[inside] = (self._page[rows] == page[inside]) & (self._node[rows] == node[inside])
        unmapped = self._page[~np.isin(self._page, page, assume_unique=True)]
        self._page, self._node = page, node
        changed = np.concatenate([page[~same], unmapped])
        if not len(changed):
            return None
        nodes = np.concatenate([node[~same], np.full(len(unmapped), UNMAPPED)])
        order = np.argsort(changed, kind="stable")
        return PlacementChange.of_pages(time_ns, self._process, changed[order], nodes[order])


def query_placement(pid: int, mappings: Mappings, proc: Path = PROC) -> tuple[Pages, Nodes]:
    """Return the present pages of a process, ascending, and the node of each.

    Costs 0.2 µs per page, by move_pages(2).
    """
    found: list[tuple[Pages, Nodes]] = []
    for first, last in present_ranges(pid, mappings, proc):
        for start in range(first, last, _QUERY_PAGES * PAGE_BYTES):
            end = min(last, start + _QUERY_PAGES * PAGE_BYTES)
            page = np.arange(start, end, PAGE_BYTES, dtype=np.uint64)
            node = query_nodes(pid, page)
            present = node >= 0
            found.append((page[present], node[present]))
    if not found:
        return np.empty(0, np.uint64), np.empty(0, np.int16)
    return np.concatenate([p for p, _ in found]), np.concatenate([n for _, n in found])


def present_ranges(pid: int, mappings: Mappings, proc: Path = PROC) -> list[tuple[int, int]]:
    """Return ranges of addresses outside of which no page is present, ascending.

    Before Linux 6.7, which has no PAGEMAP_SCAN, the mappings.
    """
    some = mappings.kind != MappingKind.SPECIAL
    spans = list(zip(mappings.start[some].tolist(), mappings.end[some].tolist(), strict=True))
    try:
        fd = os.open(proc / str(pid) / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if absent(error):
            return []
        raise
    try:
        ranges = [scan(fd, start, end, PageIs.PRESENT) for start, end in spans]
    except OSError as error:
        return [] if error.errno == errno.ESRCH else spans
    finally:
        os.close(fd)
    return [(start, end) for part in ranges for start, end in part.tolist()]


class PacedReading:
    """Paces readings that may take long: each takes at most ``READ_SHARE`` of the time.

    Readings of ``READ_FREE_S`` of CPU time at most are not put off.
    """

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._begun_cpu_s = 0.0

    def begin(self, now_s: float) -> bool:
        """Return whether a reading is due; ``end`` is then called after it."""
        self._begun_cpu_s = time.thread_time()
        return now_s >= self._due_s

    def end(self, now_s: float) -> None:
        """Note the end of a reading."""
        took_s = time.thread_time() - self._begun_cpu_s
        self._due_s = now_s + (took_s / READ_SHARE if took_s > READ_FREE_S else 0.0)


class _RecordedProcess:
    """One process of the recording, and what was last written about it."""

    def __init__(self, process: ProcessId, index: int) -> None:
        self.process = process
        self.index = index
        self.mappings: Mappings | None = None
        self._placement = PlacementLog(index)
        self._cpu_ns: dict[int, int] = {}
        self._running: list[int] = []
        self._since_s = time.monotonic()
        self._placement_due_s = self._placement_took_s = 0.0
        self._mapping_reads, self._time_reads = PacedReading(), PacedReading()
        self.read_s = 0.0
        """When it was last read, by time.monotonic()."""

    def write_mappings(self, writer: TraceWriter, now_ns: int, proc: Path) -> None:
        """Write the mappings if they have changed; of many, they are read more rarely."""
        if not self._mapping_reads.begin(time.monotonic()):
            return
        found, offset = read_mapped_files(self.process.pid, proc)
        self._mapping_reads.end(time.monotonic())
        if found is None or not len(found):
            return
        before, self.mappings = self.mappings, found
        if (
            before is None
            or not np.array_equal(before.start, found.start)
            or not np.array_equal(before.end, found.end)
            or before.path != found.path
        ):
            columns = found.start, found.end, found.kind, found.access, found.path, offset
            writer.write_mappings(MappingSnapshot(now_ns, self.index, *columns))

    def write_placement(
        self, writer: TraceWriter, settings: RecordSettings, now_ns: Callable[[], int]
    ) -> None:
        """Write the placement of pages if a query is due and finds changes.

        Of a process that has ended, the last placement stays.
        """
        began_s = time.monotonic()
        passed_s = began_s - self._since_s
        allowed_s = settings.placement_credit_s + settings.placement_share * passed_s
        if self.mappings is None or began_s < self._placement_due_s:
            return
        if self._placement_took_s > allowed_s:
            return
        page, node = query_placement(self.process.pid, self.mappings)
        if len(page):
            change = self._placement.update(page, node, now_ns())
            if change is not None:
                writer.write_placement(change)
        self._placement_due_s = began_s + settings.placement_s
        self._placement_took_s += time.monotonic() - began_s

    def read_cpu_times(self, proc: Path) -> ThreadTimes | None:
        """Return the CPU time of each thread, ended ones too; None once the process is gone.

        Of many threads it is read more rarely, and is that of the last reading until then.
        """
        if not self._time_reads.begin(time.monotonic()):
            return self._cpu_ns if alive(self.process, proc) else None
        times = thread_times(self.process.pid, proc)
        if times is None:
            return None
        grown = [thread for thread, ns in times.items() if ns > self._cpu_ns.get(thread, 0)]
        self._running = grown or self._running
        self._cpu_ns.update(times)
        self._time_reads.end(time.monotonic())
        return self._cpu_ns

    def write_threads(
        self, writer: TraceWriter, counter: InstructionCounter, now_ns: int, proc: Path
    ) -> None:
        """Write how long threads have run, or their CPUs in the emulated machine.

        Of a process that has had one thread only, that is all its time.
        """
        if len(self._cpu_ns) < 2:
            return
        cpus = {last_cpu(thread, proc) for thread in self._running} - {None}
        busy_ns = {cpu: counter.cpu_busy_ns(cpu) for cpu in cpus if cpu is not None}
        for cpu, ns in busy_ns.items():
            if ns is not None:
                writer.add_rows("THRD", [(now_ns, self.index, 0, cpu, ns)])
        if None in busy_ns.values() or not busy_ns:
            rows = [(now_ns, self.index, each, 0, self._cpu_ns[each]) for each in self._running]
            writer.add_rows("THRD", rows)

    def now_ns(self, clock: Clock, proc: Path) -> int:
        """Return the time; if each CPU has a clock, the latest of those that its threads ran on.

        The clock of the recorder's own CPU may be far ahead of that.
        """
        if clock.kind == "monotonic":
            return clock.now_ns()
        cpus = {last_cpu(thread, proc) for thread in self._running} - {None}
        return max((clock.now_ns(cpu) for cpu in cpus), default=clock.now_ns())


class Recorder:
    """Records the processes of a target, and their children.

    Of more than ``ALWAYS_READ`` processes, mappings, placement and progress are read in turn, in a
    bounded share of the time.
    """

    def __init__(
        self,
        target: TargetSpec,
        sources: Sources,
        writer: TraceWriter,
        settings: RecordSettings | None = None,
        proc: Path = PROC,
    ) -> None:
        """Record from open sources; the caller closes them."""
        self._target = target
        self._sources, self._writer = sources, writer
        self._clock = sources.clock
        self._settings = settings or RecordSettings()
        self._proc = proc
        self._watcher = ProcessWatcher([target], proc)
        self._running: dict[ProcessId, _RecordedProcess] = {}  # may still run
        self._index: dict[ProcessId, int] = {}  # of all, also ended ones
        self._unmapped_ended = 0
        self._tracked: tuple[ProcessId, ...] = ()
        self._descendants = DescendantTracker(sources.tasks, proc)
        self._unnamed: list[_RecordedProcess] = []
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
        return self._unmapped_ended + len(self._unmapped) - self.unread

    @property
    def unread(self) -> int:
        """Number of processes that run, and whose turn has not come before the end."""
        return sum(alive(process, self._proc) for process in self._unmapped)

    @property
    def _unmapped(self) -> list[ProcessId]:
        return [process for process, one in self._running.items() if one.mappings is None]

    def begin(self) -> None:
        """Follow the processes; their accesses are sampled from here on.

        Nothing from before ``since_ns`` is written: until its exec a program is a copy of hmd.
        Raises TargetError where the target has none.
        """
        members = self._members()
        if not members:
            raise TargetError("nothing to record: all processes have exited")
        self._track(members)
        self._descendants.read_forked()
        # The first call of each function takes long, so it comes before the program's exec.
        self._members()
        self._sources.sampler.read()
        mappings = read_mappings(members[0].pid, self._proc)
        if mappings is not None:
            query_placement(members[0].pid, mappings, self._proc)
        self._sources.counter.start(members)

    def _members(self) -> tuple[ProcessId, ...]:
        return self._watcher.scan()[self._target.name]

    def _in_turn(self) -> Iterator[_RecordedProcess]:
        """Yield the processes that are read now: the longest unread, of these the largest."""
        end_s = time.monotonic() + READ_ALL_SHARE * self._settings.interval_s
        found = [self._running[process] for process in self._tracked]
        if len(found) > ALWAYS_READ:
            sizes = self._watcher.resident_bytes
            found.sort(key=lambda one: (one.read_s, -sizes(one.process)))
        for number, one in enumerate(found):
            if number >= ALWAYS_READ and time.monotonic() > end_s:
                return
            yield one

    def poll(self) -> None:
        """Drain the rings and write all changes."""
        self._follow_cpus()
        forked = self._descendants.read_forked()
        members = self._members()
        # Processes that ended since the last poll have samples too.
        self._track(tuple(dict.fromkeys((*self._tracked, *members, *forked))))
        self._read_samples()
        listed = set(members)
        living = tuple(p for p in self._tracked if p in listed or alive(p, self._proc))
        if living:
            self._track(living)
        self._forget_ended(forked)
        self._write_progress()
        for one in self._in_turn():
            one.read_s = time.monotonic()
            now = partial(one.now_ns, self._clock, self._proc)
            one.write_mappings(self._writer, now(), self._proc)
            one.write_placement(self._writer, self._settings, now)
        losses = self._sources.losses
        if losses != self._losses:
            self._losses = losses
            self._writer.write_losses(self._clock.now_ns(), losses)
        if time.monotonic() - self._flushed_s >= FLUSH_S:
            self._flushed_s = time.monotonic()
            self._writer.flush()

    def _follow_cpus(self) -> None:
        """Go on with sources that see the CPUs which are online now."""
        sampler, tasks = self._sources.reopen()
        if tasks is not None:
            self._descendants.replace_events(tasks)
            self._sources.replace_tasks(tasks)
        if sampler is not None:
            self._read_samples()
            self._sources.replace_sampler(sampler)
            sampler.track(self._tracked)

    def _forget_ended(self, forked: Iterable[ProcessId]) -> None:
        """Drop the state of exited processes, whose samples have been written.

        And of those that were forked beyond ``MAX_PROCESSES``.
        """
        for process in self._running.keys() - set(self._tracked):
            self._unmapped_ended += self._running.pop(process).mappings is None
            self._descendants.forget_process(process)
        for process in forked:
            if process not in self._index:
                self._descendants.forget_process(process)

    def _write_progress(self) -> None:
        ran = {
            one.process: times
            for one in self._in_turn()
            if (times := one.read_cpu_times(self._proc))
        }
        counts = self._sources.counter.read(ran)
        for process, times in ran.items():
            one, executed = self._running[process], counts.get(process, Executed())
            now_ns = one.now_ns(self._clock, self._proc)
            self._writer.add_rows("PROG", [(now_ns, one.index, sum(times.values()), *executed)])
            one.write_threads(self._writer, self._sources.counter, now_ns, self._proc)
        for node, moved in enumerate(self._sources.counter.moved_bytes()):
            self._writer.add_rows("TRAF", [(self._clock.now_ns(), node, *moved)])

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
            first = self._target.pids[:1]
            return self._sources.now(last_cpu(first[0], self._proc) if first else None)

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
        self._read_samples()

    def _interval_s(self, began_s: float) -> float:
        """Return the time to the next poll: short at first, for short programs.

        In the emulated machine, where a poll costs many times more, it is constant.
        """
        if self._clock.kind == "modelled":
            return self._settings.interval_s
        return min(self._settings.interval_s, max(FIRST_POLL_S, time.monotonic() - began_s))

    def _read_samples(self) -> None:
        self._write_names()
        batch = self._sources.sampler.read()
        batch = batch.take(batch.time_ns >= np.uint64(self.since_ns))
        index = np.array([self._index[p] for p in self._tracked], np.uint16)
        self._writer.add_batch(batch, index)

    def _track(self, processes: tuple[ProcessId, ...]) -> None:
        """Sample these processes; of more than ``MAX_PROCESSES``, the first."""
        for process in processes:
            if process not in self._index and len(self._index) < MAX_PROCESSES:
                index = self._index[process] = len(self._index)
                one = self._running[process] = _RecordedProcess(process, index)
                self._unnamed.append(one)
                self._descendants.follow(process)
        tracked = tuple(process for process in processes if process in self._running)
        if tracked != self._tracked:
            self._tracked = tracked
            self._sources.sampler.track(tracked)

    def _write_names(self) -> None:
        """Write the processes that have no row yet: by then the first has its name by exec.

        A child that is read between its fork and its exec keeps its parent's name.
        """
        for one in self._unnamed:
            self._writer.write_process(
                one.index, TracedProcess(one.process.pid, self._name(one.process))
            )
        self._unnamed.clear()

    def _name(self, process: ProcessId) -> str:
        stat = read_stat(process.pid, self._proc)
        if stat is not None and stat.process == process:
            return stat.name.decode(errors="replace")
        return self._descendants.name_of(process) or "?"
