"""Reader of trace files, whole or up to a damaged block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hmd.errors import HmdError
from hmd.trace.block_checks import (
    check_mappings,
    check_placement,
    check_times,
    checked_indices,
    checked_metadata,
    column,
    whole,
)
from hmd.trace.blocks import VERSION, Block, DamageError, read_block, read_header
from hmd.trace.trace import (
    PROGRESS_COLUMNS,
    SAMPLE_COLUMNS,
    Ending,
    InstructionProgress,
    Losses,
    MappingSnapshot,
    PlacementChange,
    Samples,
    Trace,
    TracedProcess,
)

MAX_PROCESSES = 1 << 16
MAPPING_COLUMNS = {"start": "<u8", "end": "<u8", "kind": "u1", "access": "u1", "path": "<u4"}
_SINCE_ADDED = ("instructions",)
"""Columns of samples that the first writers of this version lack; they read as 0."""


class TraceError(HmdError):
    """A file is no trace, or is damaged."""


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a trace file in order, one at a time in memory.

    Raises TraceError if the file cannot be read, is no trace or of a later version; DamageError if
    it is damaged, after the blocks before the damage.
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
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None


def read_trace(path: Path, *, salvage: bool = False) -> Trace:
    """Return a trace file's content.

    With ``salvage`` the content before a damage is returned, and ``Trace.damage`` describes it.
    Raises TraceError if the file is no trace, or is damaged and ``salvage`` is not set.
    """
    gathered = Gathered()
    try:
        for block in blocks(path):
            gathered.take(block)
    except DamageError as error:
        if not salvage:
            raise damaged(path, error) from None
        gathered.damage = str(error)
    return gathered.trace(path)


def damaged(path: Path, error: DamageError) -> TraceError:
    """Return the error of a damaged file."""
    return TraceError(f"the trace {path} is damaged: {error}; '--salvage' reads what comes before")


def samples_of(block: Block, processes: int) -> Samples:
    """Return a block's samples; ValueError or KeyError if it is invalid."""
    columns = {
        name: column(block, name, dtype)
        for name, dtype in SAMPLE_COLUMNS.items()
        if name not in _SINCE_ADDED or name in block.columns
    }
    for name in _SINCE_ADDED:
        columns.setdefault(name, np.zeros(len(block), SAMPLE_COLUMNS[name]))
    checked_indices(columns["process"], processes, "a process")
    check_times(columns["time_ns"])
    return Samples(**columns)


class Gathered:
    """Content of the blocks so far; with ``most``, every n-th sample, at most so many."""

    def __init__(self, most: int | None = None) -> None:
        self.samples_seen = 0
        self._most, self._one_of = most, 1
        self.about: dict[str, Any] | None = None
        self.damage: str | None = None
        self._processes: list[TracedProcess] = []
        self._samples: list[Samples] = []
        self._kept = 0
        self._paths: list[str] = []
        self._mappings: list[MappingSnapshot] = []
        self._placement: list[PlacementChange] = []
        self._progress: list[InstructionProgress] = []
        self._losses = Losses()
        self._ending: Ending | None = None
        self._takers: dict[str, Callable[[Block], None]] = {
            "META": self._take_meta,
            "PROC": self._take_process,
            "SAMP": self._take_samples,
            "PATH": self._take_paths,
            "MAPS": self._take_mappings,
            "NODE": self._take_placement,
            "PROG": self._take_progress,
            "LOSS": self._take_losses,
            "TAIL": self._take_ending,
        }

    def take(self, block: Block) -> None:
        """Add a block; DamageError if it lacks what its tag requires.

        Unknown tags are those of a later minor change, and left out.
        """
        taker = self._takers.get(block.tag)
        if taker is None:
            return
        try:
            taker(block)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise DamageError(f"a block {block.tag} is invalid ({error})") from None

    def trace(self, path: Path) -> Trace:
        """Return the trace; raises TraceError if the file has no metadata."""
        if self.about is None:
            raise TraceError(f"the trace {path} has no metadata: record it again")
        progress = None
        if self._progress:
            progress = InstructionProgress(
                *(
                    np.concatenate([getattr(part, name) for part in self._progress])
                    for name in PROGRESS_COLUMNS
                )
            )
        return Trace(
            about=self.about,
            processes=tuple(self._processes),
            samples=Samples.joined(self._samples),
            mappings=tuple(self._mappings),
            placement=tuple(self._placement),
            progress=progress,
            losses=self._losses,
            ending=self._ending,
            damage=self.damage,
            one_of=self._one_of,
        )

    def _take_meta(self, block: Block) -> None:
        self.about = checked_metadata(block.words)

    def _take_process(self, block: Block) -> None:
        if whole(block.words, "index", MAX_PROCESSES - 1) != len(self._processes):
            raise ValueError("processes out of order")
        self._processes.append(TracedProcess(whole(block.words, "pid"), str(block.words["name"])))

    def _take_samples(self, block: Block) -> None:
        samples = samples_of(block, len(self._processes))
        # Of all rows of the file, those whose index is a multiple of ``_one_of``.
        kept = samples.take(slice(-self.samples_seen % self._one_of, None, self._one_of))
        self.samples_seen += len(samples)
        self._samples.append(kept)
        self._kept += len(kept)
        while self._most is not None and self._kept > self._most:
            self._samples = [Samples.gathered(self._samples).take(slice(None, None, 2))]
            self._kept, self._one_of = len(self._samples[0]), self._one_of * 2

    def _take_paths(self, block: Block) -> None:
        paths = json.loads(column(block, "text", "u1").tobytes())
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise ValueError("paths that are no texts")
        self._paths = paths

    def _take_mappings(self, block: Block) -> None:
        c = {name: column(block, name, dtype) for name, dtype in MAPPING_COLUMNS.items()}
        check_mappings(c)
        paths = checked_indices(c["path"], len(self._paths), "a path").tolist()
        self._mappings.append(
            MappingSnapshot(
                whole(block.words, "time_ns"),
                self._process_of(block),
                c["start"],
                c["end"],
                c["kind"],
                c["access"],
                tuple(self._paths[i] for i in paths),
            )
        )

    def _process_of(self, block: Block) -> int:
        return whole(block.words, "process", len(self._processes) - 1)

    def _take_placement(self, block: Block) -> None:
        start, pages, node = (
            column(block, "start", "<u8"), column(block, "pages", "<u4"),
            column(block, "node", "<i2"),
        )  # fmt: skip
        check_placement(start, pages, node)
        time_ns = whole(block.words, "time_ns")
        self._placement.append(
            PlacementChange(time_ns, self._process_of(block), start, pages, node)
        )

    def _take_progress(self, block: Block) -> None:
        columns = [column(block, name, dtype) for name, dtype in PROGRESS_COLUMNS.items()]
        progress = InstructionProgress(*columns)
        checked_indices(progress.process, len(self._processes), "a process")
        check_times(progress.time_ns)
        self._progress.append(progress)

    def _take_losses(self, block: Block) -> None:
        self._losses = Losses(whole(block.words, "lost"), whole(block.words, "throttled"))

    def _take_ending(self, block: Block) -> None:
        words = block.words
        self._ending = Ending(
            whole(words, "begin_ns"),
            whole(words, "runtime_ns"),
            None if words["exit_code"] is None else whole(words, "exit_code", 255, -255),
            None if words.get("elapsed_ns") is None else whole(words, "elapsed_ns"),
        )
