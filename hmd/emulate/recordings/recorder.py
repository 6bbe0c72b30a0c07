# SPDX-License-Identifier: MIT
"""Recorded runs of a command on the emulated machine, and the reading of what its plugin recorded.

``run_in`` runs a command alone on tickless CPUs, under a memory policy; it gives the busy time
and instructions of these CPUs by the modelled clock, and the misses if the machine has room for
them. A command of several threads has a CPU per thread, which share cache and bandwidth, and whose
clocks stay together. The command runs once before the timing model starts, so that its files are in
the page cache in every run. For a server, a client's load is run to its end, which ends the server.

The plugin's records are in the order of the host's time. Those of one CPU are in the order of its
instructions, up to marks, which other CPUs wrote for it (plugin/recording.h).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.preset import Preset, with_cpus
from hmd.emulate.recordings.frees import FreedPages, freed_pages, page_frees, split_frees
from hmd.emulate.recordings.misses import MissFlag, MissRecording, MissStream
from hmd.emulate.recordings.threads import awake_ps, thread_order
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


def serve(
    machine: Machine,
    command: Command,
    prefix: Sequence[str],
    timeout_s: float,
    ready_s: float = READY_S,
) -> bytes:
    """Run the load of a started server, at most ``timeout_s``; returns the load's output.

    Raises HmdError where the server is not ready within ``ready_s``, or its load fails.
    """
    deadline = time.monotonic() + ready_s
    while machine.run([*prefix, *command.ready], env=BASE_ENVIRONMENT).returncode:
        if time.monotonic() > deadline:
            raise HmdError(f"{command.argv[0]} did not become ready within {ready_s:.0f} s")
        time.sleep(_LOOK_S)
    done = machine.run([*prefix, *command.load], env=BASE_ENVIRONMENT, timeout=timeout_s)
    if done.returncode:
        raise HmdError(f"{command.load[0]} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.encode()


class MemoryPolicy(StrEnum):
    """Memory policies of set_mempolicy(2)."""

    BIND = "bind"
    INTERLEAVE = "interleave"
    WEIGHTED = "weighted"


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy over nodes; ``weights`` are the weighted policy's pages per turn of each node."""

    policy: MemoryPolicy
    nodes: tuple[int, ...]
    weights: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the policy, its nodes and weights in one line."""
        where = "+".join(str(node) for node in self.nodes)
        return f"{self.policy} {where}" + "".join(f" {weight}" for weight in self.weights)


ALL_FAST = Placement(MemoryPolicy.BIND, (FAST_NODE,))
ALL_SLOW = Placement(MemoryPolicy.BIND, (SLOW_NODE,))


@dataclass(frozen=True, slots=True)
class GuestRun:
    """One run: busy seconds and instructions; ``host_s`` is the time to emulate it.

    Of several CPUs: the seconds during which at least one was busy, and all their instructions.
    """

    busy_s: float
    instructions: int
    host_s: float
    recording: MissRecording | None


def widest_core(preset: Preset) -> Preset:
    """Return a preset with the largest reorder window and the most line fill buffers.

    A recording by it holds the dependences that any other core may meet.
    """
    core = preset.core.model_copy(update={"reorder_window": 1024, "line_fill_buffers": 64})
    return preset.model_copy(update={"core": core})


@contextmanager
def guest(preset: Preset, command: Command, *, record: bool = True) -> Iterator[Machine]:
    """Boot a machine, run the command once without the timing model, then start the model.

    For a command of several threads, the machine has a CPU for each and one for services.
    """
    threads = command.threads
    with Machine(
        with_cpus(preset, threads + 1) if threads > 1 else preset,
        dilation=0,
        recording_bytes=RECORDING_BYTES if record else 0,
        append=_without_ticks(program_cpus(command)),
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


def _without_ticks(cpus: range) -> tuple[str, ...]:
    # The guest's clock is the host's: timer ticks come fifty times too often for modelled time.
    listed = f"{cpus[0]}-{cpus[-1]}"
    return (f"nohz_full={listed}", f"isolcpus={listed}", f"rcu_nocbs={listed}")


def _execute(machine: Machine, command: Command, placement: Placement) -> None:
    mask = sum(1 << node for node in placement.nodes)
    placed, cpus = str(compile_static(_PLACED)), program_cpus(command)
    output, errors = bytearray(), bytearray()
    job = machine.start(
        [placed, f"{cpus[0]}-{cpus[-1]}", placement.policy, str(mask), *command.argv],
        cwd="/tmp",
        env=dict(command.env),
        stdout=output.extend,
        stderr=errors.extend,
    )
    if command.load:
        service = [placed, str(SERVICE_CPU), MemoryPolicy.BIND, str(1 << SLOW_NODE)]
        output.extend(serve(machine, command, service, _TIMEOUT_S))
    code = job.wait(_TIMEOUT_S)
    # Many programs report their work on stderr.
    found = (output + errors).decode(errors="replace")
    if code != command.exit_status or command.expect not in found:
        last = (errors.decode(errors="replace").strip() or "no message").splitlines()[-1]
        raise HmdError(f"{command.argv[0]} exited with {code} and did not do its work: {last}")


def _set(machine: Machine, path: str, text: str) -> None:
    machine.run(["sh", "-c", f"echo {text} > {path}"], check=True)
