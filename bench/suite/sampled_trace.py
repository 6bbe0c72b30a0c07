# SPDX-License-Identifier: MIT
"""Traces of replayed runs, as ``hmd record`` makes them, by a modelled PMU.

Takes a miss recording and the cost of its misses with all pages in one tier; returns a trace. As
with PEBS, each CPU has two counters of different periods that sample loads and one that samples
stores, each from a random start; records have time, instructions and latency. Records are lost in
bursts, as from a full ring, and the trace reports the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.emulate.recordings.replay import tiers_of
from hmd.sample.access_batch import SAMPLE_COLUMNS, Kind, Samples
from hmd.trace.trace import Ending, InstructionProgress, Losses, Trace, TracedProcess

_BURST = 200  # records that a full ring loses at once
_PROGRESS_POINTS = 64  # times at which progress is recorded


@dataclass(frozen=True, slots=True)
class TraceSampling:
    """Sampling of a run: one per ``period`` misses, per ``pair_period`` by the second counter.

    ``loss`` is the share of lost records.
    """

    period: int = 199
    pair_period: int = 211
    seed: int = 1
    loss: float = 0.0


def sampled_run(
    stream: MissStream,
    outcomes: MissOutcomes,
    busy_ps: int,
    preset: Preset,
    sampling: TraceSampling,
) -> Trace:
    """Return the trace of a run of ``busy_ps``."""
    rng = np.random.default_rng(sampling.seed)
    counted = np.flatnonzero(stream.sampled() & (stream.page < stream.user_pages))
    store = (stream.flags[counted] & np.uint8(MissFlag.STORE)) != 0
    both = 1 / (1 / sampling.period + 1 / sampling.pair_period)
    drawn = []
    for cpu in range(stream.cpus):
        own = slice(*np.searchsorted(counted, stream.rows_of(cpu).indices(len(stream))[:2]))
        loads, stores = counted[own][~store[own]], counted[own][store[own]]
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
    time_ns, instructions = _progress(stream, outcomes, busy_ps)
    fast, slow = (preset.nodes[node] for node in tiers_of(preset))
    return Trace(
        about={
            "clock": "modelled",
            "tiers": [
                {
                    "read_latency_ns": node.read_latency_ns,
                    "read_bandwidth_mbps": node.read_bandwidth_gbps * 1000,
                    "write_bandwidth_mbps": node.write_bandwidth_gbps * 1000,
                }
                for node in (fast, slow)
            ],
        },
        processes=(TracedProcess(1, "program"),),
        samples=Samples(**columns),
        progress=InstructionProgress(
            time_ns, np.zeros(len(time_ns), np.uint16), time_ns, instructions
        ),
        losses=Losses(lost=len(order) - len(rows)),
        ending=Ending(0, busy_ps // 1000, 0),
    )


def _cpu_of(stream: MissStream, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    ends = np.array([stream.rows_of(cpu).stop for cpu in range(stream.cpus)])
    return np.searchsorted(ends, rows, side="right").astype(np.uint16)


def _progress(
    stream: MissStream, outcomes: MissOutcomes, busy_ps: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return times in ns, and the instructions of all CPUs by then."""
    points = np.linspace(0, len(stream) - 1, _PROGRESS_POINTS).astype(np.int64)
    at_ps = np.append(np.sort(outcomes.clock_ps[points]), np.uint64(busy_ps))
    executed = np.zeros(len(at_ps))
    for cpu in range(stream.cpus):
        rows = stream.rows_of(cpu)
        executed += np.interp(at_ps, outcomes.clock_ps[rows], stream.instructions[rows])
    return at_ps // np.uint64(1000), executed.astype(np.uint64)


def _every(
    rows: npt.NDArray[np.int64], period: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    return rows[int(rng.integers(0, period)) :: period]


def _survivors(count: int, loss: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    bursts = rng.random(count // _BURST + 1) >= loss
    return np.asarray(bursts[np.arange(count) // _BURST])
