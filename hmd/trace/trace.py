"""A trace in memory: samples as columns, and what was known beside them.

This is what readers and importers give and what the estimator takes. Addresses are virtual, of
the process of the row; times are nanoseconds of the trace's clock: CLOCK_MONOTONIC of the machine
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
    ``thread`` is 0 and ``weight_ns`` (latency) 0 where the source does not know them; ``period``
    is how many accesses a row stands for. ``instructions`` is what the row's CPU, whoever ran
    there, had executed by then; 0 where nobody counts.
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
        """Return these rows, by a slice, a mask or their numbers."""
        return Samples(*(getattr(self, name)[rows] for name in SAMPLE_COLUMNS))

    @classmethod
    def empty(cls) -> Samples:
        """Return no samples."""
        return cls(*(np.empty(0, dtype) for dtype in SAMPLE_COLUMNS.values()))

    @classmethod
    def joined(cls, parts: list[Samples]) -> Samples:
        """Return all samples of parts, in order of time; those of equal time as they came."""
        gathered = cls.gathered(parts)
        time_ns = gathered.time_ns
        if np.any(time_ns[1:] < time_ns[:-1]):
            gathered = gathered.take(np.argsort(time_ns, kind="stable"))
        return gathered

    @classmethod
    def gathered(cls, parts: list[Samples]) -> Samples:
        """Return all samples of parts as they came."""
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
    """A process of a trace, by its place in ``Trace.processes``."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class MappingSnapshot:
    """The mappings of a process at a moment; columns have shape ``(n,)``, in order of address."""

    time_ns: int
    process: int
    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint8]
    access: npt.NDArray[np.uint8]
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Runs of pages and the node that they were found on at a moment; columns of shape ``(n,)``.

    ``start`` is the address of the first page of a run, ``pages`` how many (4 KiB each),
    ``node`` -1 for pages that have gone. Pages that are not told are where they were before.
    """

    time_ns: int
    process: int
    start: npt.NDArray[np.uint64]
    pages: npt.NDArray[np.uint32]
    node: npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class InstructionProgress:
    """How far each process had come at moments; columns have shape ``(n,)``.

    ``cpu_ns`` is the time that its threads have run since it began, by the kernel's clock
    (schedstat); ``instructions`` what it has executed since the recording began, 0 where nobody
    counts or where its parent's count has it: ``about["instructions"]`` says who counted.
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
    """Samples that were lost and events that were throttled, summed up from the start."""

    lost: int = 0
    throttled: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a recording ended; ``exit_code`` None for a program that was not ours to wait for.

    ``begin_ns`` is when the program was let go, ``runtime_ns`` how long it took from there, both
    by the trace's clock; ``elapsed_ns`` the same by CLOCK_MONOTONIC, None where it was not taken.
    """

    begin_ns: int
    runtime_ns: int
    exit_code: int | None
    elapsed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    ``about`` is what held for all of it: program, machine, sampler, period, tier. ``ending`` is
    None where the recorder was killed; ``damage`` says from where on a damaged file was left out.
    Of an outline (``hmd.trace.streaming``), ``samples`` are every so-manieth: one of ``one_of``.
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
        """How many samples there are to be had of ``batches``."""
        return len(self.samples)

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, at once."""
        yield self.samples

    @property
    def clock(self) -> ClockKind:
        """Whose time all times are: "monotonic", or "modelled" of the emulated machine."""
        return "modelled" if self.about.get("clock") == "modelled" else "monotonic"

    @property
    def begin_ns(self) -> int:
        """When the program began; of a recording that broke off, when that began."""
        if self.ending is not None:
            return self.ending.begin_ns
        told = self.about.get("begin_ns")
        if isinstance(told, int):
            return told
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
