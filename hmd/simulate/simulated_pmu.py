"""The PMU of a simulated machine: samples of what its program has replayed, as PEBS takes them.

Loads and stores have a counter each, which samples one miss per period from a random start; records
carry the latency of the miss. Records are lost in bursts, as when a ring is full. Costs about 50 ns
per sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hmd.emulate.miss_stream import MissFlag
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.capabilities import CAPABILITIES
from hmd.simulate.simulated_machine import SimulatedMachine
from hmd.units import LINE_BYTES

_BURST = 200  # records that a full ring loses at once


@dataclass(frozen=True, slots=True)
class PmuSettings:
    """One of ``period`` misses is sampled; the share ``loss`` of records is lost."""

    period: int = 199
    loss: float = 0.0
    seed: int = 1


class SimulatedPmu:
    """Samples a machine's program: each ``read`` returns the samples since the last."""

    name = "simulated"
    capabilities = CAPABILITIES["emulated"]

    def __init__(self, machine: SimulatedMachine, sampling: PmuSettings) -> None:
        stream = machine.stream
        counted = np.flatnonzero(stream.sampled() & (stream.page < stream.user_pages))
        store = (stream.flags[counted] & np.uint8(MissFlag.STORE)) != 0
        rng = np.random.default_rng(sampling.seed)
        rows = np.concatenate(
            [
                kind[int(rng.integers(0, sampling.period)) :: sampling.period]
                for kind in (counted[~store], counted[store])
            ]
        )
        rows.sort()
        bursts = rng.random(len(rows) // _BURST + 1) >= sampling.loss
        self._rows: npt.NDArray[np.int64] = rows[bursts[np.arange(len(rows)) // _BURST]]
        self._machine = machine
        self._period = sampling.period
        self._read = 0

    def read(self) -> AccessBatch:
        """Return the samples since the last read."""
        stream, outcomes = self._machine.stream, self._machine.outcomes
        end = int(np.searchsorted(self._rows, self._machine.row))
        rows, self._read = self._rows[self._read : end], end
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
            period=np.full(count, self._period, np.uint32),
            instructions=stream.instructions[rows],
        )
