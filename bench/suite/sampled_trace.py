# SPDX-License-Identifier: MIT
"""Traces of replayed runs, as ``hmd record`` makes them, by a modelled PMU.

Takes a miss recording and the cost of its misses with all pages in one tier; returns a trace. As
with PEBS, each CPU has two counters of different periods that sample loads and one that samples
stores, each from a random start; records have time, instructions and latency. Records are lost in
bursts, as from a full ring, and the trace reports the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Bools, Uint64s, kernel
from hmd.base.units import LINE_BYTES
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.emulate.recordings.replay import tiers_of
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import (
    Ending,
    InstructionProgress,
    Losses,
    NodeTraffic,
    ThreadProgress,
    Trace,
    TracedProcess,
)

_BURST = 200  # records that a full ring loses at once
_PROGRESS_POINTS = 64  # times at which progress is recorded
_THREAD_POINTS = 256  # the same of threads, and of what memory moved
_SETS, _WAYS = 16, 4  # of blocks that persistent memory keeps


TierBytes: TypeAlias = npt.NDArray[np.float64]
"""Bytes that the memory of each tier, the fastest first, read and wrote; shape ``(tiers, 2)``."""


@dataclass(frozen=True, slots=True)
class TraceSampling:
    """Sampling of a run: one per ``period`` misses, per ``pair_period`` by the second counter.

    ``loss`` is the share of lost records.
    """

    period: int = 199
    pair_period: int = 211
    seed: int = 1
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A replayed run, ready to be sampled in several ways.

    ``bare`` is its trace without samples, of ``busy_ps``. ``loads`` and ``stores`` are the rows
    that counters count, by CPU; ``outcomes`` are of all rows.
    """

    stream: MissStream
    outcomes: MissOutcomes
    busy_ps: int
    bare: Trace
    loads: tuple[npt.NDArray[np.int64], ...]
    stores: tuple[npt.NDArray[np.int64], ...]


def replayed_run(
    stream: MissStream,
    outcomes: MissOutcomes,
    busy_ps: int,
    preset: Preset,
    moved: TierBytes | None = None,
    stalled_ps: int = 0,
) -> ReplayedRun:
    """Return a run of ``busy_ps`` that ``moved`` so many bytes.

    Its CPUs waited for memory for ``stalled_ps`` in sum, if that was counted.
    """
    counted = np.flatnonzero(stream.sampled() & (stream.page < stream.user_pages))
    store = (stream.flags[counted] & np.uint8(MissFlag.STORE)) != 0
    loads, stores = [], []
    for cpu in range(stream.cpus):
        own = slice(*np.searchsorted(counted, stream.rows_of(cpu).indices(len(stream))[:2]))
        loads.append(counted[own][~store[own]])
        stores.append(counted[own][store[own]])
    fast, slow = (preset.nodes[node] for node in tiers_of(preset))
    instruction_ps = preset.core.instruction_ns * 1000
    bare = Trace(
        about={
            "clock": "modelled",
            "instructions": "emulated",
            "tiers": [
                {
                    "nodes": [tier],
                    "read_latency_ns": node.read_latency_ns,
                    "read_bandwidth_mbps": node.read_bandwidth_gbps * 1000,
                    "write_bandwidth_mbps": node.write_bandwidth_gbps * 1000,
                }
                for tier, node in enumerate((fast, slow))
            ],
        },
        processes=(TracedProcess(1, "program"),),
        samples=Samples.empty(),
        progress=_progress(stream, outcomes, busy_ps, instruction_ps, stalled_ps),
        threads=_thread_progress(stream, outcomes, busy_ps),
        traffic=None
        if moved is None
        else _traffic(
            stream,
            outcomes,
            busy_ps,
            moved,
            preset.nodes[tiers_of(preset)[int(np.argmax(moved[:, 0]))]].granularity_bytes,
        ),
        ending=Ending(0, busy_ps // 1000, 0),
    )
    return ReplayedRun(stream, outcomes, busy_ps, bare, tuple(loads), tuple(stores))


def sampled_run(run: ReplayedRun, sampling: TraceSampling) -> Trace:
    """Return the trace of a run with samples."""
    stream, outcomes = run.stream, run.outcomes
    rng = np.random.default_rng(sampling.seed)
    both = 1 / (1 / sampling.period + 1 / sampling.pair_period)
    drawn = []
    for loads, stores in zip(run.loads, run.stores, strict=True):
        drawn += [
            (_every(loads, sampling.period, rng), Kind.LOAD, both),
            (_every(loads, sampling.pair_period, rng), Kind.LOAD, both),
            (_every(stores, sampling.period, rng), Kind.STORE, sampling.period),
        ]
    rows = np.concatenate([rows for rows, _, _ in drawn])
    kind = np.concatenate([np.full(len(rows), kind, np.uint8) for rows, kind, _ in drawn])
    stands_for = np.concatenate([np.full(len(rows), round(each)) for rows, _, each in drawn])
    order = np.lexsort((rows, outcomes.clock_ps[rows]))
    kept = order[_survivors(len(order), sampling.loss, rng)]
    rows, kind, stands_for = rows[kept], kind[kept], stands_for[kept]
    columns = {name: np.zeros(len(rows), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    line = stream.line[rows].astype(np.uint64) * np.uint64(64)
    columns["time_ns"] = outcomes.clock_ps[rows] // np.uint64(1000)
    columns["address"] = stream.page_address[stream.page[rows]] + line
    columns["kind"] = kind
    columns["cpu"] = _cpu_of(stream, rows)
    columns["latency_ns"] = outcomes.latency_ps[rows] // np.uint32(1000)
    columns["period"] = stands_for.astype(np.uint32)
    columns["instructions"] = stream.instructions[rows] + np.uint64(1)
    losses = Losses(lost=len(order) - len(rows))
    return replace(run.bare, samples=Samples(**columns), losses=losses)


def _cpu_of(stream: MissStream, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    ends = np.array([stream.rows_of(cpu).stop for cpu in range(stream.cpus)])
    return np.searchsorted(ends, rows, side="right").astype(np.uint16)


def _progress(
    stream: MissStream,
    outcomes: MissOutcomes,
    busy_ps: int,
    instruction_ps: float,
    stalled_ps: int,
) -> InstructionProgress:
    """Return instructions and waits of all CPUs by time.

    Waits are spread as the time that instructions alone do not take.
    """
    points = np.linspace(0, len(stream) - 1, _PROGRESS_POINTS).astype(np.int64)
    at_ps = np.append(np.sort(outcomes.clock_ps[points]), np.uint64(busy_ps))
    executed, waited = np.zeros((2, len(at_ps)))
    for cpu in range(stream.cpus):
        rows = stream.rows_of(cpu)
        clock_ps, instructions = outcomes.clock_ps[rows], stream.instructions[rows]
        executed += np.interp(at_ps, clock_ps, instructions)
        beyond_ps = np.diff(clock_ps.astype(np.float64)) - instruction_ps * np.diff(
            instructions.astype(np.float64)
        )
        beyond_ps[(stream.flags[rows][:-1] & np.uint8(MissFlag.HALT)) != 0] = 0.0
        waited += np.interp(at_ps, clock_ps, np.append(0.0, np.cumsum(np.maximum(beyond_ps, 0.0))))
    waited *= stalled_ps / max(waited[-1], 1.0)
    time_ns = at_ps // np.uint64(1000)
    return InstructionProgress(
        time_ns,
        np.zeros(len(time_ns), np.uint16),
        time_ns,
        executed.astype(np.uint64),
        (waited / 1000).astype(np.uint64),
    )


@kernel
def find_opened(block: Uint64s, opened: Bools) -> None:
    """Set which accesses open their block: those to none of the last of its set.

    As the timing model's memory keeps blocks (hmd/emulate/timing/bandwidth.h).
    """
    held = np.full((_SETS, _WAYS), np.uint64(0xFFFFFFFFFFFFFFFF))
    for i in range(len(block)):
        own = held[int(block[i] * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(60))]
        opened[i] = True
        for way in range(_WAYS):
            if own[way] == block[i]:
                opened[i] = False
        if opened[i]:
            for way in range(_WAYS - 1, 0, -1):
                own[way] = own[way - 1]
            own[0] = block[i]


def _traffic(
    stream: MissStream,
    outcomes: MissOutcomes,
    busy_ps: int,
    moved: TierBytes,
    granularity_bytes: int,
) -> NodeTraffic:
    """Return the bytes that each tier, a node each, had moved by then.

    In proportion to the blocks of ``granularity_bytes`` that the rows before had to open.
    """
    at_ps = np.linspace(0, busy_ps, _THREAD_POINTS).astype(np.uint64)
    written = (stream.flags & np.uint8(MissFlag.WRITE_BACK)) != 0
    halted = (stream.flags & np.uint8(MissFlag.HALT)) != 0
    by_then = []
    for rows in map(np.flatnonzero, (~written & ~halted, written & ~halted)):
        order = rows if stream.cpus == 1 else rows[np.argsort(outcomes.clock_ps[rows])]
        opened = np.ones(len(order), np.bool_)
        if granularity_bytes > LINE_BYTES:
            line = stream.page[order].astype(np.uint64) << np.uint64(6) | stream.line[order]
            find_opened(line // np.uint64(granularity_bytes // LINE_BYTES), opened)
        clock_ps = np.maximum.accumulate(outcomes.clock_ps[order[opened]])
        by_then.append(np.searchsorted(clock_ps, at_ps, side="right") / max(len(clock_ps), 1))
    reads, writes = (
        np.outer(column, share) for column, share in zip(moved.T, by_then, strict=True)
    )
    tiers, points = reads.shape
    return NodeTraffic(
        np.tile(at_ps // np.uint64(1000), tiers),
        np.repeat(np.arange(tiers), points).astype(np.uint16),
        reads.ravel().astype(np.uint64),
        writes.ravel().astype(np.uint64),
    )


def _thread_progress(
    stream: MissStream, outcomes: MissOutcomes, busy_ps: int
) -> ThreadProgress | None:
    """Return for how long each CPU was not halted by then; None for one CPU."""
    if stream.cpus == 1:
        return None
    at_ps = np.linspace(0, busy_ps, _THREAD_POINTS)
    busy = np.empty((stream.cpus, len(at_ps)))
    for cpu in range(stream.cpus):
        own = stream.rows_of(cpu)
        clock_ps, flags = outcomes.clock_ps[own].astype(np.float64), stream.flags[own]
        halted = flags[:-1] == MissFlag.HALT
        ran_ps = np.append(0.0, np.cumsum(np.where(halted, 0.0, np.diff(clock_ps))))
        busy[cpu] = np.interp(at_ps, clock_ps, ran_ps)
    cpus, points = busy.shape
    return ThreadProgress(
        np.tile(at_ps // 1000, cpus).astype(np.uint64),
        np.zeros(busy.size, np.uint16),
        np.zeros(busy.size, np.uint32),
        np.repeat(np.arange(cpus), points).astype(np.uint16),
        (busy.ravel() // 1000).astype(np.uint64),
    )


def _every(
    rows: npt.NDArray[np.int64], period: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    return rows[int(rng.integers(0, period)) :: period]


def _survivors(count: int, loss: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    bursts = rng.random(count // _BURST + 1) >= loss
    return np.asarray(bursts[np.arange(count) // _BURST])
