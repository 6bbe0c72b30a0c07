"""The PMU of a simulated machine: samples of what its program has replayed, as PEBS takes them.

The counters are those of the emulated machine (:mod:`hmd.sample.emulated_pebs`): loads that miss,
one sample per period; loads of lines that the prefetcher has asked for, and stores, each with a
longer period. Each begins at random. Records carry the latency of the miss, and each takes time of
the program's CPU. Records are lost in bursts, as when a ring is full. Costs about 50 ns per sample.

Stores that hit a cache are not recorded: their samples, which hmd drops, cost nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.emulate.miss_stream import MissFlag
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.sample.emulated_pebs import PREFETCHED_SCALE
from hmd.sample.memory_events import STORE_SCALE
from hmd.simulate.simulated_machine import SimulatedMachine
from hmd.units import LINE_BYTES

_BURST = 200  # records that a full ring loses at once


@dataclass(frozen=True, slots=True)
class PmuSettings:
    """One of ``period`` load misses is sampled; the share ``loss`` of records is lost.

    Records cost the program time unless they are ``free``.
    """

    period: int = 199
    loss: float = 0.0
    seed: int = 1
    free: bool = False


class SimulatedPmu:
    """Samples a machine's program: each ``read`` returns the samples since the last."""

    name = "simulated"
    capabilities = CAPABILITIES["emulated"]

    def __init__(self, machine: SimulatedMachine, sampling: PmuSettings) -> None:
        stream = machine.stream
        counted = stream.sampled() & (stream.page < stream.user_pages)
        store = (stream.flags & np.uint8(MissFlag.STORE)) != 0
        prefetched = (stream.flags & np.uint8(MissFlag.COVERED)) != 0
        rng = np.random.default_rng(sampling.seed)
        found = []
        for of, scale in (
            (~store & ~prefetched, 1),
            (~store & prefetched, PREFETCHED_SCALE),
            (store, STORE_SCALE),
        ):
            period = scale * sampling.period
            rows = np.flatnonzero(counted & of)[int(rng.integers(0, period)) :: period]
            found.append((rows, np.full(len(rows), period, np.uint32)))
        rows = np.concatenate([each for each, _ in found])
        order = np.argsort(rows, kind="stable")
        self._rows: npt.NDArray[np.int64] = rows[order]
        self._periods = np.concatenate([each for _, each in found])[order]
        bursts = rng.random(len(rows) // _BURST + 1) >= sampling.loss
        self._kept = bursts[np.arange(len(rows)) // _BURST]
        self._machine, self._free = machine, sampling.free
        self._read = 0

    def read(self) -> AccessBatch:
        """Return the samples since the last read; the program pays for them and for lost ones."""
        stream, outcomes = self._machine.stream, self._machine.outcomes
        end = int(np.searchsorted(self._rows, self._machine.row))
        taken = slice(self._read, end)
        if not self._free:
            self._machine.charge_samples(end - self._read)
        self._read = end
        kept = self._kept[taken]
        rows = self._rows[taken][kept]
        count = len(rows)
        store = (stream.flags[rows] & np.uint8(MissFlag.STORE)) != 0
        line = stream.line[rows].astype(np.uint64) * np.uint64(LINE_BYTES)
        return AccessBatch(
            process=np.zeros(count, np.int32),
            address=stream.page_address[stream.page[rows]] + line,
            kind=np.where(store, np.uint8(Kind.STORE), np.uint8(Kind.LOAD)),
            cpu=np.zeros(count, np.uint16),
            thread=np.zeros(count, np.uint32),
            time_ns=outcomes.clock_ps[rows] // np.uint64(1000),
            weight_ns=outcomes.latency_ps[rows] // np.uint32(1000),
            period=self._periods[taken][kept],
            instructions=stream.instructions[rows],
        )
