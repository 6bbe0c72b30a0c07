# SPDX-License-Identifier: MIT
"""A recording that perf made, as a trace: what is kept of its samples, and what is known of it.

``PerfData`` (``hmd.trace.perf_data``) and those of ``hmd.trace.text_recordings`` are such
recordings. A recording is read twice: first for its processes, its times and its sums, then to
write the trace, so that memory is bounded by what is known of processes, not by its length.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

import hmd
from hmd.base.errors import HmdError, UsageError
from hmd.linux.mappings import kind_of
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind
from hmd.sample.cpu_models import CpuModel, find_core
from hmd.sample.perf_ring import Level, RecordColumns
from hmd.trace.blocks import MAX_ROWS
from hmd.trace.reader import MAX_INT64, MAX_PROCESSES, TraceError
from hmd.trace.trace import Ending, Losses, MappingSnapshot, TracedProcess
from hmd.trace.writer import TraceWriter

USER_END: Final = np.uint64(1 << 56)
CACHES: Final = (Level.L1, Level.L2, Level.L3)
"""Levels whose answers tell nothing of where a page lies."""
MAX_TASK_EVENTS: Final = 1 << 20
"""Mappings, forks and names of a recording at most, and 64 letters each; about 300 bytes."""
MAX_MAPPINGS: Final = 1 << 16
"""Mappings of a process at most, the newest (vm.max_map_count is 65530)."""
_MAX_MAPPINGS_OF_ALL: Final = 1 << 22
RECORD_WITH: Final = "'perf mem record -o perf.data -- PROGRAM'"

_LEVEL_NAMES: Final = [
    level.name if level in CACHES else level.name.lower().replace("_", " ") for level in Level
]
_TAGGED_LOADS: Final = re.compile(r"ldlat|mem-loads|load.latency|config 0x1cd", re.IGNORECASE)
_MAX_NAME: Final = 1024
_MAX_ANCESTORS: Final = 64
_MAX_WORD, _MAX_WORDS = 128, 64
_MAX_PATHS: Final = MAX_ROWS // 8
"""Letters of a process's paths, which are one block of the trace; JSON makes 6 bytes of some."""
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\xa1-\ufffd]")
_GHZ: Final = re.compile(r"@\s*(\d+(?:\.\d+)?)\s*GHz")


@dataclass(slots=True)
class PerfAbout:
    """What a recording says of itself; empty or 0 where it does not.

    ``events`` are those with addresses, by name, with their period (0: by frequency, None: not
    known); ``other_events`` have none. ``ns_per_tick`` is the time-stamp counter's.
    """

    command: list[str] = field(default_factory=list)
    kernel: str = ""
    machine: str = ""
    cpuid: str = ""
    cpus: int = 0
    events: dict[str, int | None] = field(default_factory=dict)
    other_events: list[str] = field(default_factory=list)
    ns_per_tick: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def ns_per_cycle(self) -> float:
        """Nanoseconds per cycle of the nominal clock, in which latencies are; 0 if unknown."""
        found = _GHZ.search(self.machine)
        return 1 / float(found[1]) if found and float(found[1]) else self.ns_per_tick


class _Mapped(NamedTuple):
    time_ns: int
    start: int
    end: int
    access: int
    path: str
    offset: int


class Tasks:
    """Names, forks and mappings of a recording's processes.

    Mappings that a program gave back are not known: perf records none of it.
    """

    def __init__(self) -> None:
        self._events, self._mappings_left = 0, _MAX_MAPPINGS_OF_ALL
        self.process_of_thread: dict[int, int] = {}
        self._names: dict[int, list[tuple[int, str]]] = {}
        self._execs: dict[int, list[int]] = {}
        self._forks: dict[int, tuple[int, int]] = {}
        self._mapped: dict[int, list[_Mapped]] = {}

    def _count(self, text: str = "") -> None:
        self._events += 1 + len(text) // 64
        if self._events > MAX_TASK_EVENTS:
            raise ValueError(f"more than {MAX_TASK_EVENTS} mappings and names: record fewer tasks")

    def add_name(self, time_ns: int, pid: int, name: str, *, executed: bool = False) -> None:
        """Add a process's name; ``executed``: of a new program, whose mappings begin anew."""
        self._count(name)
        self._names.setdefault(pid, []).append((time_ns, clean_name(name)))
        if executed:
            self._execs.setdefault(pid, []).append(time_ns)

    def add_thread(self, thread: int, pid: int) -> None:
        """Add a thread of a process."""
        self._count()
        self.process_of_thread[thread] = pid

    def add_fork(self, time_ns: int, pid: int, parent: int) -> None:
        """Add a new process, a copy of its parent."""
        self._count()
        self._forks[pid] = time_ns, parent

    def add_mapping(
        self, time_ns: int, pid: int, where: tuple[int, int, int], access: int, path: str
    ) -> None:
        """Add a mapping, by start, length, offset; those at no user address are left out."""
        start, length, offset = where
        if length > 0 and start + length <= int(USER_END):
            self._count(path)
            path = "" if path == "//anon" else clean_name(path)
            one = _Mapped(time_ns, start, start + length, access & 15, path, offset)
            self._mapped.setdefault(pid, []).append(one)

    def name(self, pid: int) -> str:
        """Return a process's last name, or that of the nearest ancestor that has one."""
        for _ in range(_MAX_ANCESTORS):
            if names := self._names.get(pid):
                return max(names, key=lambda each: each[0])[1]
            if pid not in self._forks:
                break
            pid = self._forks[pid][1]
        return f"process {pid}"

    def _visible(self, pid: int, until_ns: int, depth: int = 0) -> list[_Mapped]:
        """Return the mappings of a process at a time, oldest first; later ones cover earlier."""
        since_ns = max((t for t in self._execs.get(pid, ()) if t <= until_ns), default=-1)
        found = [m for m in self._mapped.get(pid, ()) if since_ns <= m.time_ns <= until_ns]
        found.sort(key=lambda each: each.time_ns)
        if since_ns < 0 and pid in self._forks and depth < _MAX_ANCESTORS:
            forked_ns, parent = self._forks[pid]
            return self._visible(parent, forked_ns, depth + 1) + found
        return found

    def mappings(self, pid: int, process: int, time_ns: int) -> MappingSnapshot | None:
        """Return the mappings of a process at the end of a recording, None without any.

        None also where the mappings of all processes that were asked for are too many.
        """
        seen = self._visible(pid, MAX_INT64)[-MAX_MAPPINGS:] if self._mappings_left > 0 else []
        self._mappings_left -= len(seen)
        if not seen:
            return None
        edges = sorted({edge for one in seen for edge in (one.start, one.end)})
        owner = np.full(len(edges), -1)
        for number, one in enumerate(seen):
            owner[bisect_left(edges, one.start) : bisect_left(edges, one.end)] = number
        first = np.flatnonzero((np.diff(owner, prepend=-1) != 0) & (owner >= 0))
        changes = np.append(np.flatnonzero(np.diff(owner)) + 1, len(owner) - 1)
        last = changes[np.searchsorted(changes, first, side="right")]
        edge = np.array(edges, np.uint64)
        rows = [seen[number] for number in owner[first].tolist()]
        named, letters = dict[str, str](), 0
        for one in rows:
            if one.path not in named:
                letters += len(one.path) + 4
                named[one.path] = one.path if letters <= _MAX_PATHS else ""
        return MappingSnapshot(
            time_ns,
            process,
            edge[first],
            edge[last],
            np.array([kind_of(one.path) for one in rows], np.uint8),
            np.array([one.access for one in rows], np.uint8),
            tuple(named[one.path] for one in rows),
            edge[first] + np.array([(one.offset - one.start) % 2**64 for one in rows], np.uint64),
        )


def clean_name(text: str) -> str:
    """Return a name from a file without what a terminal would obey."""
    return _UNPRINTABLE.sub("?", text[:_MAX_NAME])


class PerfRecording(ABC):
    """A recording of perf; ``about``, ``tasks`` and the sums are complete after ``batches``.

    ``span_ns`` are the first and the last time of any record; (0, 0) without any.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    @abstractmethod
    def batches(self) -> Iterator[RecordColumns]:
        """Yield all samples; the columns are reused. Raises TraceError, which names the offset."""

    def _forget(self) -> None:
        """Forget all, before a reading."""
        self.about, self.tasks, self.losses, self.span_ns = PerfAbout(), Tasks(), Losses(), (0, 0)

    def _widen(self, first_ns: int, last_ns: int) -> None:
        if last_ns:
            begin_ns, end_ns = self.span_ns
            first_ns = first_ns or last_ns
            self.span_ns = min(begin_ns or first_ns, first_ns), max(end_ns, last_ns)


@dataclass(slots=True)
class Import:
    """What became of a recording's samples, in numbers; ``notes`` are for the user."""

    kept: int = 0
    no_user_address: int = 0
    cached: int = 0
    stores: int = 0
    accesses: int = 0
    has_latencies: bool = False
    runtime_ns: int = 0
    levels: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def import_recording(
    recording: PerfRecording,
    source: Path,
    output: Path,
    *,
    cached: bool = False,
    ghz: float | None = None,
) -> Import:
    """Write a recording as a trace.

    Kept are samples of user addresses that no cache answered, as far as the data source tells;
    with ``cached``, all. ``ghz`` is the clock in whose cycles latencies are; without it, that of
    the recording. Raises TraceError where nothing can be kept, and what to record instead;
    UsageError where the trace would replace the recording.
    """
    if output.exists() and source.exists() and output.samefile(source):
        raise UsageError(f"{output} is the recording itself: name another file for the trace")
    result, pids = Import(), dict[int, int]()
    for columns in recording.batches():
        _count(columns, _kept_rows(columns, cached, result), result, pids)
    about, (begin_ns, end_ns) = recording.about, recording.span_ns
    if not result.kept:
        raise TraceError(f"{source}: {_why_none(about, result)}")
    ns_per_cycle = 1 / ghz if ghz else about.ns_per_cycle
    result.runtime_ns = end_ns - begin_ns
    result.notes += about.notes
    if result.has_latencies and not ns_per_cycle:
        result.notes.append("latencies are left out: name the CPU's nominal clock with --ghz")
    if any(map(_TAGGED_LOADS.search, about.events)):
        result.notes.append(
            "samples of load latency stand for an unknown number of loads: compare them with one "
            "another, not with stores"
        )
    words = _metadata(about, result, begin_ns, source)
    with TraceWriter(output, words) as writer:
        for pid, index in pids.items():
            writer.write_process(index, TracedProcess(pid, recording.tasks.name(pid)))
            if (mapped := recording.tasks.mappings(pid, index, end_ns)) is not None:
                writer.write_mappings(mapped)
        for columns in recording.batches():
            rows = _kept_rows(columns, cached, Import())
            writer.add_samples(_trace_columns(columns, rows, pids, ns_per_cycle))
        if recording.losses != Losses():
            writer.write_losses(end_ns, recording.losses)
        writer.write_ending(Ending(begin_ns, end_ns - begin_ns, None))
    return result


def _kept_rows(columns: RecordColumns, cached: bool, result: Import) -> npt.NDArray[np.int64]:
    """Return the rows that become the trace's, and count the others."""
    n = columns.count
    address, pid, level = columns.address[:n], columns.pid[:n], columns.level[:n]
    user = (address > 0) & (address < USER_END) & (pid > 0) & (pid < np.uint32(1 << 31))
    by_cache = user & np.isin(level, CACHES)
    result.no_user_address += int(n - user.sum())
    for number, count in enumerate(np.bincount(level[user], minlength=len(Level)).tolist()):
        if count:
            result.levels[_LEVEL_NAMES[number]] += count
    if not cached:
        result.cached += int(by_cache.sum())
        user &= ~by_cache
    return np.flatnonzero(user)


def _count(
    columns: RecordColumns, rows: npt.NDArray[np.int64], result: Import, pids: dict[int, int]
) -> None:
    result.kept += len(rows)
    result.accesses += int(columns.period[rows].sum(dtype=np.uint64))
    result.stores += int((columns.kind[rows] == Kind.STORE).sum())
    result.has_latencies |= bool(columns.latency[rows].any())
    for pid in np.unique(columns.pid[rows]).tolist():
        pids.setdefault(pid, len(pids))
    if len(pids) > MAX_PROCESSES:
        raise TraceError(f"samples of more than {MAX_PROCESSES} processes: record fewer")


def _trace_columns(
    columns: RecordColumns,
    rows: npt.NDArray[np.int64],
    pids: Mapping[int, int],
    ns_per_cycle: float,
) -> dict[str, npt.NDArray[Any]]:
    found, index = np.unique(columns.pid[rows], return_inverse=True)
    processes = [pids.get(pid) for pid in found.tolist()]
    if None in processes:
        raise TraceError("the recording has changed while it was read: import it again")
    own: dict[str, npt.NDArray[Any]] = {
        "process": np.array(processes, np.uint16)[index],
        "latency_ns": np.minimum(columns.latency[rows] * ns_per_cycle, 2**32 - 1),
        "instructions": np.zeros(len(rows)),
    }
    own |= {name: getattr(columns, name)[rows] for name in SAMPLE_COLUMNS if name not in own}
    return {name: own[name].astype(dtype) for name, dtype in SAMPLE_COLUMNS.items()}


def _metadata(about: PerfAbout, result: Import, begin_ns: int, source: Path) -> dict[str, Any]:
    period = max(1, round(result.accesses / result.kept))
    periods = {0: " (by frequency)", None: ""}
    events = ", ".join(
        name[:200] + (periods.get(each, f" (one in {each})") if len(about.events) > 1 else "")
        for name, each in list(about.events.items())[:16]
    )
    vendor, family, model = [*about.cpuid.split(","), "", "", ""][:3]
    numbers = [int(text) if text.isdigit() else 0 for text in (family, model)]
    core = find_core(CpuModel(vendor, numbers[0], numbers[1], 0.0))
    return {
        "begin_ns": begin_ns,
        "clock": "monotonic",
        "hmd": hmd.__version__,
        "command": [clean_name(word)[:_MAX_WORD] for word in about.command[:_MAX_WORDS]],
        "kernel": clean_name(about.kernel),
        "machine": clean_name(about.machine),
        "cpus": about.cpus,
        "sampler": "pmu",
        "source": clean_name(source.name),
        "detail": clean_name(events),
        "period": period,
        "pairs": False,
        "pair_period": None,
        "reorder_window": core.reorder_window if core else None,
        "fill_buffers": core.fill_buffers if core else None,
        "levels": dict(result.levels),
        "tier": None,
    }


def _why_none(about: PerfAbout, result: Import) -> str:
    """Return why no sample can be kept, and what to do."""
    if about.notes and not result.no_user_address:
        return about.notes[0]
    if result.cached:
        return (
            f"caches answered all {result.cached:,} samples of user memory, so that they tell "
            "nothing of memory: import them with --cached, or record longer"
        )
    if not about.events and not about.other_events:
        return f"it has no samples, or nothing at all: record a program, with {RECORD_WITH}"
    if not about.events:
        others = ", ".join(about.other_events[:4])
        return f"no event has addresses (events: {others[:200]}): record with {RECORD_WITH}"
    return (
        f"none of its {result.no_user_address:,} samples has an address of user memory: record a "
        f"program, with {RECORD_WITH}"
    )


def read_failed(path: Path, error: OSError) -> HmdError:
    """Return the error of a file that cannot be read."""
    return TraceError(f"cannot read {path}: {error.strerror or error}")
