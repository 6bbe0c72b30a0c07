# SPDX-License-Identifier: MIT
"""Reader of trace files: whole in memory, or with the samples left in the file.

``read_trace`` returns all of a file, or what precedes a damage. ``TraceFile`` is for recordings
larger than memory: the file is read once for a thinned trace, and once more per pass over all
samples, one block at a time (docs/reference/trace-format.md).

A checksum shows that a block is as it was written, not who wrote it: the words and columns of a
file from elsewhere may be anything, and are checked before they serve as an index or a size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError, PageSizeError, os_error
from hmd.base.units import PAGE_BYTES, PAGE_SIZES
from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import COLUMNS, FILE_NAMES, SAMPLE_COLUMNS, Samples
from hmd.trace.blocks import VERSION, Block, DamageError, Table, read_block, read_header
from hmd.trace.trace import (
    LATER_COLUMNS,
    ROW_TABLES,
    Ending,
    Losses,
    MappingSnapshot,
    PlacementChange,
    Trace,
    TracedProcess,
    column_types,
)

MAX_PROCESSES = 1 << 16
MAPPING_COLUMNS = {"start": "<u8", "end": "<u8", "kind": "u1", "access": "u1", "path": "<u4"}
MAX_THINNED_SAMPLES = 1 << 20
"""Samples of a thinned trace at most, 40 bytes each."""
MAX_INT64: Final = 2**63 - 1
MAX_PAGES: Final = 1 << 28
"""Pages of one change of placement: 1 TiB."""
_MAX_NODE: Final = 1023
_MAX_ADDRESS: Final = np.uint64(1 << 57)

_TEXTS: Final = ("hmd", "clock", "date", "kernel", "machine", "tier_source", "sampler", "detail",
                 "instructions", "instructions_detail", "source", "tier")  # fmt: skip
_NUMBERS: Final = {"begin_ns": MAX_INT64, "cpus": 1 << 20, "page_bytes": 1 << 30, "period": 1 << 40,
                   "pair_period": 1 << 40, "record_ns": 1 << 40, "reorder_window": 1 << 16,
                   "fill_buffers": 1 << 16}  # fmt: skip
_NEVER_NULL: Final = ("begin_ns", "command", "period", "tiers")
_LISTS: Final = ("command", "nodes", "tiers")


class TraceError(HmdError):
    """A file is no trace, or is damaged."""


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a trace file in order, one at a time in memory.

    Raises TraceError if the file cannot be read, is no trace or of a later version, and
    NotPermittedError if it may not be read; DamageError if it is damaged, after the blocks before.
    """
    try:
        with path.open("rb") as file:
            try:
                version = read_header(file)
            except DamageError as error:
                raise TraceError(
                    f"{path} is no trace: {error}; 'hmd record -o FILE' makes one"
                ) from None
            if version > VERSION:
                raise TraceError(
                    f"{path} is a trace of version {version}, this hmd reads {VERSION}: update hmd"
                )
            while (block := read_block(file)) is not None:
                yield block
    except OSError as error:
        line = f"cannot read the trace {path}: {error.strerror}"
        raise os_error(error, line, TraceError) from None


def read_trace(path: Path, *, salvage: bool = False) -> Trace:
    """Return a trace file's content.

    With ``salvage`` the content before a damage is returned, and ``Trace.damage`` describes it.
    Raises TraceError if the file is no trace, or is damaged and ``salvage`` is not set.
    """
    return _build(path, salvage=salvage).trace(path)


def _build(path: Path, max_samples: int | None = None, *, salvage: bool = False) -> TraceBuilder:
    builder = TraceBuilder(max_samples)
    try:
        for block in blocks(path):
            builder.add_block(block)
    except DamageError as error:
        if not salvage:
            raise damaged(path, error) from None
        builder.damage = str(error)
    return builder


def damaged(path: Path, error: DamageError) -> TraceError:
    """Return the error of a damaged file."""
    return TraceError(f"the trace {path} is damaged: {error}; '--salvage' reads what comes before")


def samples_of(block: Block, processes: int) -> Samples:
    """Return a block's samples; ValueError or KeyError if it is invalid."""
    columns = {
        name: np.zeros(len(block), dtype)
        if COLUMNS[name].optional and FILE_NAMES[name] not in block.columns
        else checked_column(block, FILE_NAMES[name], dtype)
        for name, dtype in SAMPLE_COLUMNS.items()
    }
    checked_indices(columns["process"], processes, "a process")
    check_times(columns["time_ns"])
    return Samples(**columns)


class TraceBuilder:
    """Builds a trace from its blocks; of more than ``max_samples``, every n-th sample."""

    def __init__(self, max_samples: int | None = None) -> None:
        self.recorded_samples = 0
        self._max_samples, self._stride = max_samples, 1
        self.about: dict[str, Any] | None = None
        self.damage: str | None = None
        self._processes: list[TracedProcess] = []
        self._samples: list[Samples] = []
        self._kept = 0
        self._paths: list[str] = []
        self._mappings: list[MappingSnapshot] = []
        self._placement: list[PlacementChange] = []
        self._rows: dict[str, list[Table]] = {tag: [] for tag in ROW_TABLES}
        self._losses = Losses()
        self._ending: Ending | None = None
        self._handlers: dict[str, Callable[[Block], None]] = {
            "META": self._add_meta,
            "PROC": self._add_process,
            "SAMP": self._add_samples,
            "PATH": self._add_paths,
            "MAPS": self._add_mappings,
            "NODE": self._add_placement,
            "LOSS": self._add_losses,
            "TAIL": self._add_ending,
            **dict.fromkeys(ROW_TABLES, self._add_rows),
        }

    def add_block(self, block: Block) -> None:
        """Add a block; DamageError if it lacks what its tag requires.

        Unknown tags are those of a later minor change, and left out.
        """
        handler = self._handlers.get(block.tag)
        if handler is None:
            return
        try:
            handler(block)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise DamageError(f"a block {block.tag} is invalid ({error})") from None

    def trace(self, path: Path) -> Trace:
        """Return the trace; raises TraceError if the file has no metadata."""
        if self.about is None:
            raise TraceError(f"the trace {path} has no metadata: record it again")
        return Trace(
            about=self.about,
            processes=tuple(self._processes),
            samples=Samples.concatenated(self._samples or [Samples.empty()]).in_order_of_time(),
            mappings=tuple(self._mappings),
            placement=tuple(self._placement),
            progress=self._table("PROG"),
            threads=self._table("THRD"),
            traffic=self._table("TRAF"),
            losses=self._losses,
            ending=self._ending,
            damage=self.damage,
            stride=self._stride,
        )

    def _add_meta(self, block: Block) -> None:
        self.about = checked_metadata(block.words)

    def _add_process(self, block: Block) -> None:
        if checked_int(block.words, "index", MAX_PROCESSES - 1) != len(self._processes):
            raise ValueError("processes out of order")
        self._processes.append(
            TracedProcess(checked_int(block.words, "pid"), str(block.words["name"]))
        )

    def _add_samples(self, block: Block) -> None:
        samples = samples_of(block, len(self._processes))
        # Of all rows of the file, those whose index is a multiple of ``_stride``.
        kept = samples.take(slice(-self.recorded_samples % self._stride, None, self._stride))
        self.recorded_samples += len(samples)
        self._samples.append(kept)
        self._kept += len(kept)
        while self._max_samples is not None and self._kept > self._max_samples:
            self._samples = [Samples.concatenated(self._samples).take(slice(None, None, 2))]
            self._kept, self._stride = len(self._samples[0]), self._stride * 2

    def _add_paths(self, block: Block) -> None:
        paths = json.loads(checked_column(block, "text", "u1").tobytes())
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise ValueError("paths that are no texts")
        self._paths = paths

    def _add_mappings(self, block: Block) -> None:
        c = {name: checked_column(block, name, dtype) for name, dtype in MAPPING_COLUMNS.items()}
        check_mappings(c)
        paths = checked_indices(c["path"], len(self._paths), "a path").tolist()
        self._mappings.append(
            MappingSnapshot(
                checked_int(block.words, "time_ns"),
                self._process_of(block),
                c["start"],
                c["end"],
                c["kind"],
                c["access"],
                tuple(self._paths[i] for i in paths),
                checked_column(block, "offset", "<u8") if "offset" in block.columns else None,
            )
        )

    def _process_of(self, block: Block) -> int:
        return checked_int(block.words, "process", len(self._processes) - 1)

    def _add_placement(self, block: Block) -> None:
        start = checked_column(block, "start", "<u8")
        pages = checked_column(block, "pages", "<u4")
        node = checked_column(block, "node", "<i2")
        check_placement(start, pages, node)
        time_ns, process = checked_int(block.words, "time_ns"), self._process_of(block)
        self._placement.append(PlacementChange(time_ns, process, start, pages, node))

    def _add_rows(self, block: Block) -> None:
        types = column_types(ROW_TABLES[block.tag])
        columns = {
            name: np.zeros(len(block), dtype)
            if name in LATER_COLUMNS and name not in block.columns
            else checked_column(block, name, dtype)
            for name, dtype in types.items()
        }
        if "process" in columns:
            checked_indices(columns["process"], len(self._processes), "a process")
        for name in columns.keys() & {"time_ns", "busy_ns", "stalled_ns"}:
            check_times(columns[name])
        self._rows[block.tag].append(columns)

    def _table(self, tag: str) -> Any:
        """Return the rows of all blocks of this tag as their table; None without any."""
        parts, table = self._rows[tag], ROW_TABLES[tag]
        names = column_types(table)
        return table(*(np.concatenate([p[n] for p in parts]) for n in names)) if parts else None

    def _add_losses(self, block: Block) -> None:
        self._losses = Losses(
            checked_int(block.words, "lost"), checked_int(block.words, "throttled")
        )

    def _add_ending(self, block: Block) -> None:
        words = block.words
        self._ending = Ending(
            checked_int(words, "begin_ns"),
            checked_int(words, "runtime_ns"),
            None if words["exit_code"] is None else checked_int(words, "exit_code", 255, -255),
            None if words.get("elapsed_ns") is None else checked_int(words, "elapsed_ns"),
        )


class TraceSource(Protocol):
    """Input of the estimator: a trace in memory, or one in its file."""

    @property
    def thinned(self) -> Trace:
        """The trace with every n-th sample (n is its ``stride``), in order of time."""
        ...

    @property
    def recorded(self) -> int:
        """Number of samples in all."""
        ...

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, each batch in order of time."""
        ...


class TraceFile:
    """A trace in its file, with a thinned one in memory."""

    def __init__(self, path: Path, max_samples: int = MAX_THINNED_SAMPLES) -> None:
        """Read the thinned trace; raises TraceError if the file is no trace, or is damaged."""
        self.path = path
        builder = _build(path, max_samples)
        self.thinned = builder.trace(path)
        self.recorded = builder.recorded_samples

    def batches(self) -> Iterator[Samples]:
        """Yield all samples, one block at a time; raises as the constructor does."""
        if self.thinned.stride == 1:
            yield self.thinned.samples
            return
        try:
            for block in blocks(self.path):
                if block.tag == "SAMP":
                    yield samples_of(block, len(self.thinned.processes))
        except (DamageError, KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, DamageError(str(error))) from None


def checked_int(
    words: Mapping[str, Any], name: str, max_value: int = MAX_INT64, min_value: int = 0
) -> int:
    """Return a whole number within bounds."""
    value = words[name]
    if type(value) is not int or not min_value <= value <= max_value:
        raise ValueError(f"{name} is no whole number from {min_value} to {max_value}")
    return value


def checked_metadata(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a trace's first block; what has no check is for people to read.

    Raises ValueError, or PageSizeError for the trace of a machine with other pages.
    """
    if any(words.get(name, 0) is None for name in _NEVER_NULL):
        raise ValueError(f"one of {', '.join(_NEVER_NULL)} is null")
    for name in _TEXTS:
        if not isinstance(words.get(name), str | None):
            raise ValueError(f"{name} is no text")
    for name, max_value in _NUMBERS.items():
        if words.get(name) is not None:
            checked_int(words, name, max_value)
    for name in _LISTS:
        if not isinstance(words.get(name), list | None):
            raise ValueError(f"{name} is no list")
    for tier in words.get("tiers") or ():
        _check_tier(tier)
    page_bytes = words.get("page_bytes") or PAGE_BYTES
    if page_bytes not in PAGE_SIZES:
        raise ValueError(f"pages of {page_bytes} bytes")
    if page_bytes != PAGE_BYTES:
        raise PageSizeError("the trace", page_bytes)
    return dict(words)


def _check_tier(tier: object) -> None:
    """Check the nodes and the speed of a tier; a speed may be None, where firmware has none."""
    if not isinstance(tier, dict) or not isinstance(tier.get("nodes"), list):
        raise ValueError("a tier without nodes")
    if any(type(node) is not int or not 0 <= node <= _MAX_NODE for node in tier["nodes"]):
        raise ValueError("a tier of nodes that are none")
    for name, value in tier.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name != "nodes" and value is not None and not (number and 0 <= value < MAX_INT64):
            raise ValueError(f"{name} of a tier is no number")


def checked_column(block: Block, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a column, of exactly this type."""
    found = block.columns[name]
    if found.dtype != np.dtype(dtype):
        raise ValueError(f"{name} is {found.dtype}, not {np.dtype(dtype)}")
    return found


def checked_indices(index: npt.NDArray[Any], count: int, what: str) -> npt.NDArray[Any]:
    """Return indices into ``count`` things."""
    if len(index) and int(index.max()) >= count:
        raise ValueError(f"a row of {what} that the file does not have")
    return index


def check_times(time_ns: npt.NDArray[np.uint64]) -> None:
    """Check that times are not above what a clock of 64 bits shows."""
    if len(time_ns) and int(time_ns.max()) > MAX_INT64:
        raise ValueError("a time after the year 2262")


def check_mappings(columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check that mappings are ascending, and of known kinds."""
    start, end = columns["start"], columns["end"]
    if (start >= end).any() or (start[1:] < end[:-1]).any():
        raise ValueError("mappings out of order")
    if (columns["kind"] > max(MappingKind)).any() or (columns["access"] > 15).any():
        raise ValueError("mappings of no known kind")


def check_placement(
    start: npt.NDArray[np.uint64], pages: npt.NDArray[np.uint32], node: npt.NDArray[np.int16]
) -> None:
    """Check that runs of pages lie in an address space, on nodes, and are not too many."""
    if int(pages.sum(dtype=np.uint64)) > MAX_PAGES:
        raise ValueError(f"a placement of more than {MAX_PAGES} pages")
    end = start + pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
    if (start % np.uint64(PAGE_BYTES)).any() or (end > _MAX_ADDRESS).any() or (end < start).any():
        raise ValueError("pages at no address")
    if ((node < -1) | (node > _MAX_NODE)).any():
        raise ValueError("pages on no node")
