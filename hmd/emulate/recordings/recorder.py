# SPDX-License-Identifier: MIT
"""Recorded runs of a command on the emulated machine, and the reading of what its plugin recorded.

``run_in`` runs a command alone on tickless CPUs, under a memory policy; it gives the busy time
and instructions of these CPUs by the modelled clock, and the misses if the machine has room for
them. A command of several threads has a CPU per thread, which share cache and bandwidth, and whose
clocks stay together. The command runs once before the timing model starts, so that its files are in
the page cache in every run. For a server, a client's load is run to its end, which ends the server.

The plugin's records are in the order of the host's time. Those of one CPU are in the order of its
instructions, up to marks, which other CPUs wrote for it (plugin/recording.h).
A CPU that halts waits for another one (a barrier, a lock, the start of a thread). The recording has
its wake-up, and a mark of each other CPU that ran then. A replay keeps this order and not the
times: at each wake-up, all CPUs wait for each other where they were (``ThreadOrder.meets_at``).
That is exact for programs that wait at barriers. Where one hands a lock to another, the order of
the recording is kept too, though another placement might change it.

System calls that give memory back are recorded as they begin (hmd/emulate/plugin/frees.h). A page
is given back by the first call after an access to it; what was not accessed since is not. From then
on its frame is no page's, until another page is accessed in it: the kernel's clearing of a frame
for its next page is an access to that one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.preset import Preset, with_cpus
from hmd.emulate.recordings.misses import (
    MissFlag,
    MissRecording,
    MissStream,
    PageFrees,
    ThreadOrder,
)
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command

_USER_END = np.uint64(1 << 47)
_KERNEL_PAGE = np.uint64(1 << 60)

#: A record of the file that the plugin writes (hmd/emulate/plugin/recording.h).
RECORD = np.dtype(
    [
        ("instructions", "<u8"),
        ("vaddr", "<u8"),
        ("line", "<u4"),
        ("paid_hits", "<u4"),
        ("near_hits", "<u4"),
        ("depends", "<u2"),
        ("flags", "u1"),
        ("cpu", "u1"),
    ]
)

READY_S = 60.0
_LOOK_S = 0.1
PROGRAM_CPU = 1
SERVICE_CPU = 0
FAST_NODE = 0
SLOW_NODE = 1

RECORDED_ON = "dram-pm"
"""The preset whose caches filter a recording: presets that replay it must have the same caches."""

RECORDING_BYTES = 4 << 30
_PLACED = WORKLOADS / "placed.c"
_WEIGHTS = "/sys/kernel/mm/mempolicy/weighted_interleave"
_STEP_NS = 2_000.0  # short compared with the time between two barriers
_TIMEOUT_S = 900


def read_recording(path: Path, count: int) -> MissRecording:
    """Return the plugin's recording of ``count`` misses.

    Raises HmdError where the file has no room for all of them.
    """
    room = path.stat().st_size // RECORD.itemsize
    if count > room:
        raise HmdError(f"{count:,} misses were recorded, with room for {room:,}: give more room")
    raw, ranges = split_frees(np.fromfile(path, RECORD, count))
    count = len(raw)
    frame = (raw["line"] >> np.uint32(6)).astype(np.uint64)
    named = _named(raw)
    at = np.flatnonzero(named)
    freed = freed_pages(ranges, at, raw["vaddr"][at] // np.uint64(PAGE_BYTES))
    key = _page_keys(raw, frame, named, freed)
    # A page's frame is that of an access to it: entries of page tables come last.
    order = np.argsort(_is(raw, MissFlag.TABLE), kind="stable")
    keys, first, sorted_page = np.unique(key[order], return_index=True, return_inverse=True)
    page = np.empty(count, np.uint32)
    page[order] = sorted_page
    user = keys < _KERNEL_PAGE
    address = np.where(user, keys, keys & (_KERNEL_PAGE - np.uint64(1))) * np.uint64(PAGE_BYTES)
    rows, threads = thread_order(raw)
    sorted_raw = raw[rows]
    stream = MissStream(
        instructions=_since_first(sorted_raw),
        paid_hits=_hits(sorted_raw),
        near_hits=_near_hits(sorted_raw),
        page=page[rows],
        line=(sorted_raw["line"] & np.uint32(63)).astype(np.uint8),
        flags=sorted_raw["flags"].copy(),
        depends=np.where(_is(sorted_raw, MissFlag.HALT), 0, sorted_raw["depends"]).astype(
            np.uint16
        ),
        page_address=address,
        user_pages=int(user.sum()),
        threads=threads,
        frees=page_frees(freed, keys[user]),
    )
    return MissRecording(stream, frame[order[first]] * np.uint64(PAGE_BYTES), awake_ps(raw) * 1e-12)


def _is(raw: npt.NDArray[Any], flag: MissFlag) -> npt.NDArray[np.bool_]:
    return np.asarray((raw["flags"] & np.uint8(flag)) != 0)


def _begins(raw: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first row of each CPU, of rows in the order of CPUs."""
    return np.flatnonzero(np.diff(raw["cpu"].astype(np.int64), prepend=-1))


def _since_first(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    begins = _begins(raw)
    rows = np.diff(np.append(begins, len(raw)))
    return np.asarray(raw["instructions"] - np.repeat(raw["instructions"][begins], rows))


def _hits(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the paid hits before each row; a mark gets a share of those before the next miss."""
    hits = raw["paid_hits"].astype(np.int64)
    hits[_begins(raw)] = 0  # of before the recording
    if not np.any(marked := raw["flags"] == MissFlag.MARK):
        return hits.astype(np.uint32)
    # Strictly ascending over all CPUs, so that one interpolation serves them.
    at = np.cumsum(np.append(0, np.maximum(np.diff(raw["instructions"].astype(np.int64)), 0)))
    own = np.flatnonzero(~marked)
    passed = np.interp(at, at[own], np.cumsum(hits[own])).astype(np.int64)
    passed[own] = np.cumsum(hits[own])
    return np.diff(np.maximum.accumulate(passed), prepend=0).astype(np.uint32)


def _near_hits(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the hits soon after the row before; unknown after a mark."""
    near = raw["near_hits"].copy()
    near[_begins(raw)] = 0
    near[1:][(raw["flags"] == MissFlag.MARK)[:-1]] = 0
    return np.asarray(near)


def _named(raw: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return the rows that have the virtual address of a page of the program."""
    vaddr = np.where(_is(raw, MissFlag.HALT), np.uint64(0), raw["vaddr"])
    named: npt.NDArray[np.bool_] = (vaddr != 0) & (vaddr < _USER_END)
    return named & ~_is(raw, MissFlag.TABLE)


def _page_keys(
    raw: npt.NDArray[Any],
    frame: npt.NDArray[np.uint64],
    named: npt.NDArray[np.bool_],
    freed: FreedPages,
) -> npt.NDArray[np.uint64]:
    """Return the key of each miss's page: its virtual page number, or its frame with a marker."""
    rows = len(raw)
    key = np.where(_is(raw, MissFlag.HALT), np.uint64(0), raw["vaddr"]) // np.uint64(PAGE_BYTES)
    table = _is(raw, MissFlag.TABLE)
    # Sorted by frame, then time: an access without a virtual address belongs to the virtual page
    # that its frame held last, or, before the first, to the one that it will hold. A page that is
    # given back holds it no longer; its row here comes before that of the next miss. What is
    # written back to the frame from then on is of no page, since the next is not there yet.
    frame = np.concatenate((frame, frame[freed.accessed]))
    times = np.concatenate((np.arange(rows) * 2 + 1, freed.row * 2))
    order = np.lexsort((times, frame))
    is_free = order >= rows
    sorted_frame = frame[order]
    sorted_named = np.append(named, np.zeros(len(freed.row), np.bool_))[order]
    place = np.arange(len(order))
    before = np.maximum.accumulate(np.where(sorted_named | is_free, place, -1))
    last = np.maximum(before, 0)
    given_back = is_free[last] & (sorted_frame[last] == sorted_frame)
    before = np.where(is_free[last], -1, before)
    after = np.minimum.accumulate(np.where(sorted_named, place, len(order))[::-1])[::-1]
    has_before = (before >= 0) & (sorted_frame[np.maximum(before, 0)] == sorted_frame)
    has_after = (after < len(order)) & (
        sorted_frame[np.minimum(after, len(order) - 1)] == sorted_frame
    )
    written = np.append(_is(raw, MissFlag.WRITE_BACK), np.zeros(len(freed.row), np.bool_))[order]
    has_after &= ~(written & given_back)
    owner = np.where(has_before, before, np.where(has_after, after, 0))
    keys = np.append(key, freed.page)[order]
    sorted_key = np.where(has_before | has_after, keys[owner], sorted_frame | _KERNEL_PAGE)
    result = np.empty(len(order), np.uint64)
    result[order] = sorted_key
    result = result[:rows]
    result[table] = key[table]  # with the page that it maps
    result[_is(raw, MissFlag.HALT)] = _KERNEL_PAGE
    return result


def serve(machine: Machine, command: Command, prefix: Sequence[str], timeout_s: float) -> bytes:
    """Run the load of a started server, at most ``timeout_s``; returns the load's output.

    Raises HmdError where the server is not ready within ``READY_S``, or its load fails.
    """
    deadline = time.monotonic() + READY_S
    while machine.run([*prefix, *command.ready], env=BASE_ENVIRONMENT).returncode:
        if time.monotonic() > deadline:
            raise HmdError(f"{command.argv[0]} did not become ready within {READY_S:.0f} s")
        time.sleep(_LOOK_S)
    done = machine.run([*prefix, *command.load], env=BASE_ENVIRONMENT, timeout=timeout_s)
    if done.returncode:
        raise HmdError(f"{command.load[0]} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.encode()


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy of set_mempolicy(2) over nodes.

    ``weights`` are the pages per turn of each node under ``weighted``.
    """

    policy: Literal["bind", "interleave", "weighted"]
    nodes: tuple[int, ...]
    weights: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the policy, its nodes and weights in one line."""
        where = "+".join(str(node) for node in self.nodes)
        return f"{self.policy} {where}" + "".join(f" {weight}" for weight in self.weights)


ALL_FAST = Placement("bind", (FAST_NODE,))
ALL_SLOW = Placement("bind", (SLOW_NODE,))


@dataclass(frozen=True, slots=True)
class GuestRun:
    """One run: busy seconds and instructions; ``host_s`` is the time to emulate it.

    Of several CPUs: the seconds during which at least one was busy, and all their instructions.
    """

    busy_s: float
    instructions: int
    host_s: float
    recording: MissRecording


def widest_core(preset: Preset) -> Preset:
    """Return a preset with the largest reorder window and the most line fill buffers.

    A recording by it holds the dependences that any other core may meet.
    """
    core = preset.core.model_copy(update={"reorder_window": 1024, "line_fill_buffers": 64})
    return preset.model_copy(update={"core": core})


@contextmanager
def guest(preset: Preset, command: Command) -> Iterator[Machine]:
    """Boot a machine, run the command once without the timing model, then start the model.

    For a command of several threads, the machine has a CPU for each and one for services.
    """
    threads, cpus = command.threads, program_cpus(command)
    # The guest's clock is the host's: timer ticks come fifty times too often for modelled time.
    tickless = ("nohz_full", "isolcpus", "rcu_nocbs")
    with Machine(
        with_cpus(preset, threads + 1) if threads > 1 else preset,
        dilation=0,
        recording_bytes=RECORDING_BYTES,
        append=[f"{parameter}={cpus[0]}-{cpus[-1]}" for parameter in tickless],
        step_ns=_STEP_NS if threads > 1 else 0,
    ) as machine:
        # A layout places pages of 4 KiB.
        _set(machine, "/sys/kernel/mm/transparent_hugepage/enabled", "never")
        _execute(machine, command, ALL_SLOW)
        machine.shared.running = True
        machine.run(["true"])  # an event: without ticks both CPUs may be idle
        machine.start_model()
        yield machine


def run_in(machine: Machine, command: Command, placement: Placement) -> GuestRun:
    """Run a command; raises HmdError where its exit status or its output is not as expected."""
    for node, weight in zip(placement.nodes, placement.weights, strict=False):
        _set(machine, f"{_WEIGHTS}/node{node}", str(weight))
    cpus = program_cpus(command)
    before, began = [machine.shared.counters(cpu) for cpu in cpus], time.monotonic()
    with machine.record_misses(*cpus) as path:
        _execute(machine, command, placement)
        took = time.monotonic() - began
        after = [machine.shared.counters(cpu) for cpu in cpus]
        count = machine.shared.recorded
    recording = read_recording(path, count)
    busy_s = (after[0].busy_ps - before[0].busy_ps) * 1e-12
    executed = [b.instructions - a.instructions for a, b in zip(before, after, strict=True)]
    return GuestRun(
        busy_s=busy_s if len(cpus) == 1 else recording.awake_s,
        instructions=sum(executed),
        host_s=took,
        recording=recording,
    )


def program_cpus(command: Command) -> range:
    """Return the CPUs that a command runs on; CPU 0 is for services."""
    return range(PROGRAM_CPU, PROGRAM_CPU + command.threads)


def _execute(machine: Machine, command: Command, placement: Placement) -> None:
    mask = sum(1 << node for node in placement.nodes)
    placed, cpus = str(compile_static(_PLACED)), program_cpus(command)
    output, errors = bytearray(), bytearray()
    job = machine.start(
        [placed, f"{cpus[0]}-{cpus[-1]}", placement.policy, str(mask), *command.argv],
        cwd=command.folder,
        env=dict(command.env),
        stdout=output.extend,
        stderr=errors.extend,
    )
    if command.load:
        service = [placed, str(SERVICE_CPU), "bind", str(1 << SLOW_NODE)]
        output.extend(serve(machine, command, service, _TIMEOUT_S))
    code = job.wait(_TIMEOUT_S)
    # Many programs report their work on stderr.
    found = (output + errors).decode(errors="replace")
    if code != command.exit_status or command.expect not in found:
        last = (errors.decode(errors="replace").strip() or "no message").splitlines()[-1]
        raise HmdError(f"{command.argv[0]} exited with {code} and did not do its work: {last}")


def _set(machine: Machine, path: str, text: str) -> None:
    machine.run(["sh", "-c", f"echo {text} > {path}"], check=True)


_INTERRUPT_INSTRUCTIONS: Final = 20_000
"""A CPU that wakes for fewer, all in the kernel, handles an interrupt: no one waits for it."""


def thread_order(raw: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], ThreadOrder | None]:
    """Return the rows of a recording in the order of CPUs and their instructions, and the meetings.

    ``raw`` has the plugin's records in the order of the file, with ``cpu``, ``flags``,
    ``instructions`` and ``depends``. One CPU has no meetings: None.
    """
    cpus = np.unique(raw["cpu"])
    if len(cpus) <= 1:
        return np.arange(len(raw)), None
    parts = [_rows_of(raw, int(cpu)) for cpu in cpus]
    sizes = [len(part) for part in parts]
    meets_at = _meetings(raw, cpus, parts)
    order = ThreadOrder(np.cumsum([0, *sizes], dtype=np.int64), meets_at)
    return np.concatenate(parts), order


def awake_ps(raw: npt.NDArray[Any]) -> int:
    """Return for how long at least one CPU was not halted; halts and wake-ups have their times."""
    woke = _is_a(raw, MissFlag.WAKE)
    rows = np.flatnonzero(woke | _is_a(raw, MissFlag.HALT))
    rows = rows[np.lexsort((~woke[rows], raw["vaddr"][rows]))]
    step = np.where(woke[rows], 1, -1)
    # A CPU that ran when the recording began has its halt first.
    _, first = np.unique(raw["cpu"][rows], return_index=True)
    awake = int((step[first] < 0).sum()) + np.cumsum(step)
    if not len(rows):
        return 0
    return int(np.diff(raw["vaddr"][rows].astype(np.int64))[awake[:-1] > 0].sum())


def _is_a(raw: npt.NDArray[Any], kind: MissFlag) -> npt.NDArray[np.bool_]:
    """Return the rows that are halts, wake-ups or marks."""
    return np.asarray(raw["flags"] == kind)


def _rows_of(raw: npt.NDArray[Any], cpu: int) -> npt.NDArray[np.int64]:
    """Return a CPU's rows by instructions, without marks that came just after it halted."""
    rows = np.flatnonzero(raw["cpu"] == cpu)
    rows = rows[np.argsort(raw["instructions"][rows], kind="stable")]
    marked = _is_a(raw[rows], MissFlag.MARK)
    place = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(marked, 0, place))
    late = marked & _is_a(raw[rows[before]], MissFlag.HALT)
    return np.asarray(rows[~late])


def _meetings(
    raw: npt.NDArray[Any], cpus: npt.NDArray[np.uint8], parts: list[npt.NDArray[np.int64]]
) -> npt.NDArray[np.uint64]:
    """Return for each wake-up that another CPU may have caused how far each CPU had come."""
    woken = [part[_meets(raw[part])] for part in parts]
    wakes = np.sort(np.concatenate(woken))
    found = np.empty((len(wakes), len(parts)), np.uint64)
    for column, part in enumerate(parts):
        own = ~_is_a(raw[part], MissFlag.MARK)
        place = np.flatnonzero(own)
        # Halted, or waking now: behind it are the rows that the file has before.
        before = np.append(0, place + 1)
        found[:, column] = before[np.searchsorted(part[place], wakes)]
        marks = np.flatnonzero(~own)
        meeting = _meeting_of(raw, cpus, woken, wakes, part[marks])
        known = meeting >= 0
        found[meeting[known], column] = (marks[known] + 1).astype(np.uint64)
    return np.maximum.accumulate(found, axis=0)


def _meeting_of(
    raw: npt.NDArray[Any],
    cpus: npt.NDArray[np.uint8],
    woken: list[npt.NDArray[np.int64]],
    wakes: npt.NDArray[np.int64],
    marks: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the meeting of each mark, which is written just before the wake-up; -1 for none."""
    meeting = np.full(len(marks), -1, np.int64)
    for cpu, own_wakes in zip(cpus, woken, strict=True):
        mine = np.flatnonzero(raw["depends"][marks] == cpu)
        all_wakes = np.flatnonzero((raw["cpu"] == cpu) & _is_a(raw, MissFlag.WAKE))
        following = all_wakes[np.searchsorted(all_wakes, marks[mine])]
        meets = np.isin(following, own_wakes)
        meeting[mine[meets]] = np.searchsorted(wakes, following[meets])
    return meeting


def _meets(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return the wake-ups of one CPU after which it does more than to handle an interrupt."""
    wake = np.flatnonzero(_is_a(rows, MissFlag.WAKE))
    halt = np.append(np.flatnonzero(_is_a(rows, MissFlag.HALT)), len(rows))
    until = halt[np.searchsorted(halt, wake)]
    others = MissFlag.KERNEL | MissFlag.HALT | MissFlag.WRITE_BACK
    in_user = np.append(0, np.cumsum((rows["flags"] & np.uint8(others)) == 0))
    last = np.minimum(until, len(rows) - 1)
    executed = rows["instructions"][last] - rows["instructions"][wake]
    short = (in_user[until] == in_user[wake]) & (executed < _INTERRUPT_INSTRUCTIONS)
    found = np.zeros(len(rows), np.bool_)
    found[wake[~short]] = True
    return found


_HEAP_MOST_PAGES: Final = (1 << 40) // PAGE_BYTES
"""A program break that is further below the last one is another program's."""


@dataclass(frozen=True, slots=True)
class FreedRanges:
    """Ranges of virtual page numbers, ``first`` to ``last`` (exclusive); shape ``(k,)``.

    They are given back before the miss of ``row``, which does not fall.
    """

    row: npt.NDArray[np.int64]
    first: npt.NDArray[np.uint64]
    last: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FreedPages:
    """Pages that are given back, by time: ``page`` is a virtual page number; shape ``(k,)``.

    ``accessed`` is the row of the last access before, which names the page's frame.
    """

    row: npt.NDArray[np.int64]
    page: npt.NDArray[np.uint64]
    accessed: npt.NDArray[np.int64]


def split_frees(raw: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], FreedRanges]:
    """Return the plugin's records without those of freed memory, and these.

    Of several CPUs none are returned: their order to other CPUs' accesses is not kept.
    """
    is_free = raw["flags"] == MissFlag.FREE
    misses, frees = raw[~is_free], raw[is_free]
    if len(np.unique(raw["cpu"])) > 1:
        frees = frees[:0]
    rows = np.cumsum(~is_free)[is_free][: len(frees)]
    first = frees["vaddr"] // np.uint64(PAGE_BYTES)
    pages = frees["paid_hits"].astype(np.uint64) | frees["near_hits"].astype(
        np.uint64
    ) << np.uint64(32)
    last = first + pages
    last[pages == 0] = _heap_ends(first[pages == 0])
    kept = last > first
    return misses, FreedRanges(rows[kept].astype(np.int64), first[kept], last[kept])


def _heap_ends(ends: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the end of the heap before each brk(2) that shrinks it, else the new one."""
    before = np.concatenate((ends[:1], ends[:-1]))
    shrinks = (before > ends) & (before - ends < np.uint64(_HEAP_MOST_PAGES))
    return np.where(shrinks, before, ends)


def freed_pages(
    ranges: FreedRanges, rows: npt.NDArray[np.int64], page: npt.NDArray[np.uint64]
) -> FreedPages:
    """Return the pages that the ranges give back.

    ``rows`` are accesses to the program's pages, ascending, and ``page`` their page numbers.
    """
    # By page, then by row: a page's frees and accesses are neighbours.
    known = np.unique(page)
    begin, end = np.searchsorted(known, ranges.first), np.searchsorted(known, ranges.last)
    counts = end - begin
    event = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
    freed, at = known[begin[event] + within], ranges.row[event]
    order = np.lexsort((rows, page))
    page, rows = page[order], rows[order]
    # An access of the same row comes after the free.
    number = np.searchsorted(known, page).astype(np.int64)
    stride = int(max(rows.max(initial=0), at.max(initial=0))) + 2
    access = number * stride + rows
    place = np.searchsorted(access, (begin[event] + within) * stride + at) - 1
    before = np.maximum(place, 0)
    accessed = (place >= 0) & (page[before] == freed) if len(page) else np.zeros(0, np.bool_)
    found = np.where(accessed, rows[before], -1) if len(page) else np.zeros(0, np.int64)
    kept = np.flatnonzero(accessed)
    # The first free after an access is the one: another of the same access finds nothing.
    keys = (begin[event] + within)[kept] * stride + found[kept]
    _, first = np.unique(keys, return_index=True)
    kept = np.sort(kept[first])
    return FreedPages(at[kept], freed[kept], found[kept])


def page_frees(freed: FreedPages, user_keys: npt.NDArray[np.uint64]) -> PageFrees | None:
    """Return what a stream keeps; ``user_keys`` are its pages' numbers, ascending."""
    if not len(freed.row):
        return None
    page = np.searchsorted(user_keys, freed.page).astype(np.uint32)
    return PageFrees(freed.row, page)
