"""Traces of replayed runs, as ``hmd record`` makes them, by a modelled PMU.

Takes a miss recording and the cost of its misses with all pages in one tier; returns a trace. As
with PEBS, two counters of different periods sample loads and one samples stores, each from a random
start; records have time, instructions and latency. Records are lost in bursts, as from a full ring,
and the trace reports the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.emulate.layout_replay import tiers_of
from hmd.emulate.miss_stream import MissFlag, MissOutcomes, MissStream
from hmd.emulate.preset import Preset
from hmd.sample.access_batch import Kind
from hmd.trace.trace import (
    SAMPLE_COLUMNS,
    Ending,
    InstructionProgress,
    Losses,
    Samples,
    Trace,
    TracedProcess,
)

_BURST = 200  # records that a full ring loses at once
_LOOKS = 64  # times at which progress is recorded


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
    drawn = [
        (_every(counted[~store], sampling.period, rng), Kind.LOAD, both),
        (_every(counted[~store], sampling.pair_period, rng), Kind.LOAD, both),
        (_every(counted[store], sampling.period, rng), Kind.STORE, sampling.period),
    ]
    rows = np.concatenate([rows for rows, _, _ in drawn])
    kind = np.concatenate([np.full(len(rows), kind, np.uint8) for rows, kind, _ in drawn])
    stands_for = np.concatenate([np.full(len(rows), round(each)) for rows, _, each in drawn])
    order = np.argsort(rows, kind="stable")
    kept = order[_survivors(len(order), sampling.loss, rng)]
    rows, kind, stands_for = rows[kept], kind[kept], stands_for[kept]
    columns = {name: np.zeros(len(rows), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    line = stream.line[rows].astype(np.uint64) * np.uint64(64)
    columns["time_ns"] = outcomes.clock_ps[rows] // np.uint64(1000)
    columns["address"] = stream.page_address[stream.page[rows]] + line
    columns["kind"] = kind
    columns["weight_ns"] = outcomes.latency_ps[rows] // np.uint32(1000)
    columns["period"] = stands_for.astype(np.uint32)
    columns["instructions"] = stream.instructions[rows] + np.uint64(1)
    looks = np.linspace(0, len(stream) - 1, _LOOKS).astype(np.int64)
    time_ns = np.append(outcomes.clock_ps[looks] // np.uint64(1000), np.uint64(busy_ps // 1000))
    instructions = np.append(stream.instructions[looks], stream.instructions[-1])
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


def _every(
    rows: npt.NDArray[np.int64], period: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    return rows[int(rng.integers(0, period)) :: period]


def _survivors(count: int, loss: float, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    bursts = rng.random(count // _BURST + 1) >= loss
    return np.asarray(bursts[np.arange(count) // _BURST])
