# SPDX-License-Identifier: MIT
"""Writer of a trace while a program runs; memory is bounded by one block."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hmd.base.atomic_file import create_private
from hmd.base.errors import HmdError, os_error
from hmd.sample.access_batch import FILE_NAMES, SAMPLE_COLUMNS, AccessBatch
from hmd.trace.blocks import MAX_ROWS, Table, write_block, write_header
from hmd.trace.trace import (
    ROW_TABLES,
    Ending,
    Losses,
    MappingSnapshot,
    PlacementChange,
    Trace,
    TracedProcess,
    column_types,
)

BLOCK_ROWS = 1 << 16
"""Samples of a full block."""


class TraceWriter:
    """Writes a trace file; a context manager.

    Each write is a whole block, so that the file of a killed recorder is valid up to there; rows
    are added first, and written with the next ``flush`` or full block.
    Raises HmdError if the file cannot be written.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Create the file with mode 0600, or replace an old one, with its metadata."""
        self.path = path
        self.samples = 0
        self._pending: list[Table] = []
        self._pending_rows = 0
        self._rows: dict[str, list[tuple[int, ...]]] = {tag: [] for tag in ROW_TABLES}
        try:
            self._file = create_private(path)
            write_header(self._file)
        except OSError as error:
            raise os_error(error, f"cannot write the trace {path}: {error.strerror}") from None
        try:
            self._block("META", dict(about), {})
        except HmdError:
            with contextlib.suppress(OSError):  # of what is not written yet
                self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_process(self, index: int, process: TracedProcess) -> None:
        """Write a process, before its first row."""
        self._block("PROC", {"index": index, "pid": process.pid, "name": process.name}, {})

    def add_batch(self, batch: AccessBatch, index: npt.NDArray[np.uint16]) -> None:
        """Add a sampler's batch; ``index`` maps its process column to the trace's processes."""
        columns = {}
        for name, dtype in SAMPLE_COLUMNS.items():
            column = getattr(batch, name)
            missing = column is None
            columns[name] = np.zeros(len(batch), dtype) if missing else column.astype(dtype)
        columns["process"] = index[batch.process]
        self.add_samples(columns)

    def add_samples(self, columns: Table) -> None:
        """Add samples as columns of the trace."""
        rows = len(columns["time_ns"])
        if rows:
            self._pending.append(columns)
        self._pending_rows += rows
        self.samples += rows
        if self._pending_rows >= BLOCK_ROWS:
            self.flush()

    def write_mappings(self, mappings: MappingSnapshot) -> None:
        """Write a process's mappings."""
        paths = sorted(set(mappings.path))
        index = {path: i for i, path in enumerate(paths)}
        columns = {
            "start": mappings.start.astype("<u8"),
            "end": mappings.end.astype("<u8"),
            "kind": mappings.kind.astype("u1"),
            "access": mappings.access.astype("u1"),
            "path": np.array([index[path] for path in mappings.path], "<u4"),
        }
        if mappings.offset is not None:
            columns["offset"] = mappings.offset.astype("<u8")
        # Paths may be many and long: they are a column of bytes, not words of the block.
        text = np.frombuffer(json.dumps(paths).encode(), np.uint8)
        words = {"time_ns": mappings.time_ns, "process": mappings.process}
        self._block("PATH", words, {"text": text})
        self._block("MAPS", words, columns)

    def write_placement(self, change: PlacementChange) -> None:
        """Write a change of placement."""
        columns = {
            "start": change.start.astype("<u8"),
            "pages": change.pages.astype("<u4"),
            "node": change.node.astype("<i2"),
        }
        self._block("NODE", {"time_ns": change.time_ns, "process": change.process}, columns)

    def add_rows(self, tag: str, rows: Iterable[tuple[int, ...]]) -> None:
        """Add rows of the table of this tag (``ROW_TABLES``), columns in its order."""
        self._rows[tag] += rows

    def write_losses(self, time_ns: int, losses: Losses) -> None:
        """Write the losses until now."""
        self._block("LOSS", {"time_ns": time_ns, **asdict(losses)}, {})

    def write_ending(self, ending: Ending) -> None:
        """Write the end of the run, the last block."""
        self.flush()
        self._block("TAIL", {**asdict(ending), "samples": self.samples}, {})

    def flush(self) -> None:
        """Write added samples and other rows."""
        if self._pending:
            joined = {
                name: np.concatenate([columns[name] for columns in self._pending])
                for name in SAMPLE_COLUMNS
            }
            # Rings are drained one after the other; sorted by time, differences are small.
            order = np.argsort(joined["time_ns"], kind="stable")
            self._pending, self._pending_rows = [], 0
            self._block("SAMP", {}, {FILE_NAMES[n]: column[order] for n, column in joined.items()})
        for tag, added in self._rows.items():
            if added:
                rows = np.array(added, np.uint64)
                added.clear()
                types = column_types(ROW_TABLES[tag]).items()
                columns = {name: rows[:, i].astype(dtype) for i, (name, dtype) in enumerate(types)}
                self._block(tag, {}, columns)

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
            line = f"cannot write the trace {self.path}: {error.strerror}; make room there"
            raise os_error(error, line) from None


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace that is in memory, such as an import."""
    with TraceWriter(path, trace.about) as writer:
        for index, process in enumerate(trace.processes):
            writer.write_process(index, process)
        for snapshot in trace.mappings:
            writer.write_mappings(snapshot)
        for change in trace.placement:
            writer.write_placement(change)
        samples = trace.samples
        for first in range(0, len(samples), BLOCK_ROWS):
            writer.add_samples(
                {
                    name: getattr(samples, name)[first : first + BLOCK_ROWS]
                    for name in SAMPLE_COLUMNS
                }
            )
        for tag, table in zip(
            ROW_TABLES, (trace.progress, trace.threads, trace.traffic), strict=True
        ):
            if table is not None:
                columns = [getattr(table, name).tolist() for name in column_types(table)]
                writer.add_rows(tag, zip(*columns, strict=True))
        if trace.losses != Losses():
            writer.write_losses(trace.begin_ns + trace.runtime_ns, trace.losses)
        if trace.ending is not None:
            writer.write_ending(trace.ending)
