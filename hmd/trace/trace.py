"""A trace in memory: samples as columns, mappings, placement, progress and metadata.

Readers and importers return it, the estimator takes it. Addresses are virtual addresses of the
row's process; times are nanoseconds of the trace's clock: CLOCK_MONOTONIC of the machine
that ran it, or modelled time of the emulated machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hmd.machine.clock import ClockKind


@dataclass(frozen=True, slots=True)
class Samples:
    """Sampled accesses in order of time; all columns have shape ``(n,)``.

    ``process`` indexes the trace's processes. ``kind`` holds ``hmd.sample.access_batch.Kind``.
    ``thread`` is 0 and ``weight_ns`` (latency) 0 if the source does not have them; ``period``
    is the number of accesses that a row stands for. ``instructions`` counts those that the row's
    CPU had executed by then, in any process; 0 if they are not counted.
    """

    time_ns: npt.NDArray[np.uint64]
    address: npt.NDArray[np.uint64]
    process: npt.NDArray[np.uint16]
    thread: npt.NDArray[np.uint32]
    cpu: npt.NDArray[np.uint16]
    kind: npt.NDArray[np.uint8]
    weight_ns: npt.NDArray[np.uint32]
    period: npt.NDArray[np.uint32]
    instructions: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.time_ns)

    def take(self, rows: slice | npt.NDArray[Any]) -> Samples:
        """Return rows, selected by a slice, a mask or indices."""
        return Samples(*(getattr(self, name)[rows] for name in SAMPLE_COLUMNS))

    @classmethod
    def empty(cls) -> Samples:
        """Return no samples."""
        return cls(*(np.empty(0, dtype) for dtype in SAMPLE_COLUMNS.values()))

    @classmethod
    def joined(cls, parts: list[Samples]) -> Samples:
        """Return all samples of parts, in order of time; the sort is stable."""
        gathered = cls.gathered(parts)
        time_ns = gathered.time_ns
        if np.any(time_ns[1:] < time_ns[:-1]):
            gathered = gathered.take(np.argsort(time_ns, kind="stable"))
        return gathered

    @classmethod
    def gathered(cls, parts: list[Samples]) -> Samples:
        """Return all samples of parts, in the order of the parts."""
        if not parts:
            return cls.empty()
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in SAMPLE_COLUMNS))


SAMPLE_COLUMNS: Mapping[str, np.dtype[Any]] = {
    "time_ns": np.dtype("<u8"),
    "address": np.dtype("<u8"),
    "process": np.dtype("<u2"),
    "thread": np.dtype("<u4"),
    "cpu": np.dtype("<u2"),
    "kind": np.dtype("u1"),
    "weight_ns": np.dtype("<u4"),
    "period": np.dtype("<u4"),
    "instructions": np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """A process of a trace; rows name it by its index in ``Trace.processes``."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class MappingSnapshot:
    """The mappings of a process at one time; columns have shape ``(n,)``, in order of address."""

    time_ns: int
    process: int
    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    access: npt.NDArray[np.uint8]
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Runs of pages and their node at one time; columns of shape ``(n,)``.

    ``start`` is the address of the first page of a run, ``pages`` their number (4 KiB each),
    ``node`` -1 for unmapped pages. Pages of no run are where they were before.
    """

    time_ns: int
    process: int
    start: npt.NDArray[np.uint64]
    pages: npt.NDArray[np.uint32]
    node: npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class InstructionProgress:
    """Progress of each process over time; columns have shape ``(n,)``.

    ``cpu_ns`` is the CPU time of its threads since it started, by the kernel's clock (schedstat);
    ``instructions`` counts those executed since the recording began, 0 if they are not counted or
    are part of the parent's count: ``about["instructions"]`` names the counter.
    """

    time_ns: npt.NDArray[np.uint64]
    process: npt.NDArray[np.uint16]
    cpu_ns: npt.NDArray[np.uint64]
    instructions: npt.NDArray[np.uint64]


PROGRESS_COLUMNS: Mapping[str, np.dtype[Any]] = {
    "time_ns": np.dtype("<u8"),
    "process": np.dtype("<u2"),
    "cpu_ns": np.dtype("<u8"),
    "instructions": np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True)
class Losses:
    """Lost samples and throttled events since the start."""

    lost: int = 0
    throttled: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a recording; ``exit_code`` is None for a program that hmd did not start.

    ``begin_ns`` is the start of the program, ``runtime_ns`` its runtime, both by the trace's clock;
    ``elapsed_ns`` is the runtime by CLOCK_MONOTONIC, None if it was not recorded.
    """

    begin_ns: int
    runtime_ns: int
    exit_code: int | None
    elapsed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    ``about`` is the metadata: program, machine, sampler, period, tier. ``ending`` is None if the
    recorder was killed; ``damage`` says from where on a damaged file was not read. An outline
    (``hmd.trace.streaming``) has one of ``one_of`` samples.
    """

    about: Mapping[str, Any]
    processes: tuple[TracedProcess, ...]
    samples: Samples
    mappings: tuple[MappingSnapshot, ...] = ()
    placement: tuple[PlacementChange, ...] = ()
    progress: InstructionProgress | None = None
    losses: Losses = field(default_factory=Losses)
    ending: Ending | None = None
    damage: str | None = None
    one_of: int = 1

    @property
    def outline(self) -> Trace:
        """The trace itself, as :class:`hmd.trace.streaming.TraceSource` asks."""
        return self

    @property
    def recorded(self) -> int:
        """Number of samples that ``batches`` yields."""
        return len(self.samples)

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, at once."""
        yield self.samples

    @property
    def clock(self) -> ClockKind:
        """Clock of all times: "monotonic", or "modelled" of the emulated machine."""
        return "modelled" if self.about.get("clock") == "modelled" else "monotonic"

    @property
    def begin_ns(self) -> int:
        """Start of the program; of a recording without an end, start of the recording."""
        if self.ending is not None:
            return self.ending.begin_ns
        begin_ns = self.about.get("begin_ns")
        if isinstance(begin_ns, int):
            return begin_ns
        return int(self.samples.time_ns[0]) if len(self.samples) else 0

    @property
    def runtime_ns(self) -> int:
        """Runtime of the program; of a recording without an end, up to its last row."""
        if self.ending is not None:
            return self.ending.runtime_ns
        seen = [self.samples.time_ns, *([] if self.progress is None else [self.progress.time_ns])]
        last = [int(time_ns.max()) for time_ns in seen if len(time_ns)]
        last += [snapshot.time_ns for snapshot in self.mappings]
        last += [change.time_ns for change in self.placement]
        return max(0, max(last) - self.begin_ns) if last else 0
