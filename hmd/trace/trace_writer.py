"""Writer of a trace while a program runs; memory is bounded by one block."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hmd.errors import HmdError
from hmd.machine.pages.mappings import Mappings
from hmd.sample.access_batch import AccessBatch
from hmd.trace.blocks import MAX_ROWS, Table, write_block, write_header
from hmd.trace.private_file import create_private
from hmd.trace.trace import (
    PROGRESS_COLUMNS,
    SAMPLE_COLUMNS,
    Ending,
    Losses,
    MappingSnapshot,
    PlacementChange,
    Trace,
    TracedProcess,
)

BLOCK_ROWS = 1 << 16
"""Samples of a full block."""


class TraceWriter:
    """Writes a trace file; a context manager.

    Every ``write`` is a whole block, so that the file of a killed recorder is valid up to there.
    Raises HmdError if the file cannot be written.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Create the file with mode 0600, or replace an old one, with its metadata."""
        self.path = path
        self.samples = 0
        self._pending: list[Table] = []
        self._pending_rows = 0
        self._progress: list[tuple[int, int, int, int]] = []
        try:
            self._file = create_private(path)
            write_header(self._file)
        except OSError as error:
            raise HmdError(f"cannot write the trace {path}: {error.strerror}") from None
        self._block("META", dict(about), {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def process(self, index: int, process: TracedProcess) -> None:
        """Write a process, before its first row."""
        self._block("PROC", {"index": index, "pid": process.pid, "name": process.name}, {})

    def samples_of(self, batch: AccessBatch, index: npt.NDArray[np.uint16]) -> None:
        """Add a batch; ``index`` maps its process column to the trace's processes."""
        if not len(batch):
            return
        columns = {
            name: getattr(batch, name).astype(dtype, copy=False)
            for name, dtype in SAMPLE_COLUMNS.items()
            if name not in ("process", "instructions")
        }
        columns["process"] = index[batch.process]
        counted = batch.instructions
        columns["instructions"] = np.zeros(len(batch), np.uint64) if counted is None else counted
        self.rows(columns)

    def rows(self, columns: Table) -> None:
        """Add samples as columns of the trace."""
        self._pending.append(columns)
        rows = len(columns["time_ns"])
        self._pending_rows += rows
        self.samples += rows
        if self._pending_rows >= BLOCK_ROWS:
            self.flush()

    def mappings(self, time_ns: int, process: int, mappings: Mappings) -> None:
        """Write a process's mappings."""
        m = mappings
        self.snapshot(MappingSnapshot(time_ns, process, m.start, m.end, m.kind, m.access, m.path))

    def snapshot(self, mappings: MappingSnapshot) -> None:
        """Write mappings in the form of a trace."""
        paths = sorted(set(mappings.path))
        place = {path: i for i, path in enumerate(paths)}
        columns = {
            "start": mappings.start.astype("<u8"),
            "end": mappings.end.astype("<u8"),
            "kind": mappings.kind.astype("u1"),
            "access": mappings.access.astype("u1"),
            "path": np.array([place[path] for path in mappings.path], "<u4"),
        }
        # Paths may be many and long: they are a column of bytes, not words of the block.
        text = np.frombuffer(json.dumps(paths).encode(), np.uint8)
        words = {"time_ns": mappings.time_ns, "process": mappings.process}
        self._block("PATH", words, {"text": text})
        self._block("MAPS", words, columns)

    def placement(self, change: PlacementChange) -> None:
        """Write a change of placement."""
        columns = {
            "start": change.start.astype("<u8"),
            "pages": change.pages.astype("<u4"),
            "node": change.node.astype("<i2"),
        }
        self._block("NODE", {"time_ns": change.time_ns, "process": change.process}, columns)

    def progress(self, time_ns: int, process: int, cpu_ns: int, instructions: int) -> None:
        """Write a process's CPU time and instructions."""
        self._progress.append((time_ns, process, cpu_ns, instructions))

    def losses(self, time_ns: int, losses: Losses) -> None:
        """Write the losses until now."""
        words = {"time_ns": time_ns, "lost": losses.lost, "throttled": losses.throttled}
        self._block("LOSS", words, {})

    def end(self, ending: Ending) -> None:
        """Write the end of the run, the last block."""
        self.flush()
        words = {
            "begin_ns": ending.begin_ns,
            "runtime_ns": ending.runtime_ns,
            "exit_code": ending.exit_code,
            "elapsed_ns": ending.elapsed_ns,
            "samples": self.samples,
        }
        self._block("TAIL", words, {})

    def flush(self) -> None:
        """Write pending rows."""
        if self._pending:
            pending, self._pending, self._pending_rows = self._pending, [], 0
            joined = {
                name: np.concatenate([columns[name] for columns in pending])
                for name in SAMPLE_COLUMNS
            }
            # Rings are drained one after the other; sorted by time, differences are small.
            order = np.argsort(joined["time_ns"], kind="stable")
            self._block("SAMP", {}, {name: column[order] for name, column in joined.items()})
        if self._progress:
            rows = np.array(self._progress, np.uint64).reshape(-1, len(PROGRESS_COLUMNS))
            columns = {
                name: rows[:, i].astype(dtype)
                for i, (name, dtype) in enumerate(PROGRESS_COLUMNS.items())
            }
            self._progress = []
            self._block("PROG", {}, columns)

    def close(self) -> None:
        """Write pending rows and close; may be called twice."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _block(self, tag: str, words: Mapping[str, Any], columns: Table) -> None:
        rows = len(next(iter(columns.values()), ()))
        try:
            for first in range(0, max(rows, 1), MAX_ROWS):
                part = {name: c[first : first + MAX_ROWS] for name, c in columns.items()}
                write_block(self._file, tag, words, part)
            self._file.flush()  # to the kernel, which keeps it if hmd is killed
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> HmdError:
        return HmdError(f"cannot write the trace {self.path}: {error.strerror}; make room there")


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace that is in memory, such as an import."""
    with TraceWriter(path, trace.about) as writer:
        for index, process in enumerate(trace.processes):
            writer.process(index, process)
        for snapshot in trace.mappings:
            writer.snapshot(snapshot)
        for change in trace.placement:
            writer.placement(change)
        samples = trace.samples
        for first in range(0, len(samples), BLOCK_ROWS):
            writer.rows(
                {
                    name: getattr(samples, name)[first : first + BLOCK_ROWS]
                    for name in SAMPLE_COLUMNS
                }
            )
        if trace.progress is not None:
            columns = [getattr(trace.progress, name).tolist() for name in PROGRESS_COLUMNS]
            for row in zip(*columns, strict=True):
                writer.progress(*row)
        if trace.losses != Losses():
            writer.losses(trace.begin_ns + trace.runtime_ns, trace.losses)
        if trace.ending is not None:
            writer.end(trace.ending)
