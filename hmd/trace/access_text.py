# SPDX-License-Identifier: MIT
"""Accesses and cache misses that Pin and DynamoRIO print, one per line, as a recording.

``docs/reference/trace-format.md`` lists the forms of lines. No form has times: accesses follow each
other at equal distances, over a runtime that the user gives. A file may be compressed by gzip.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import Level, RecordColumns
from hmd.trace.perf_recording import PerfAbout, Tasks, clean_name, read_failed
from hmd.trace.reader import TraceError
from hmd.trace.trace import Losses

DISTANCE_NS: Final = 100
"""Time from one access to the next where no runtime is given."""
GZIP: Final = b"\x1f\x8b"

_MAX_LINE: Final = 1 << 10
_BATCH_LINES: Final = 1 << 15
_VIEW: Final = "DynamoRIO's view"
_MISSES: Final = "DynamoRIO's LL_miss_file"
# Groups by name: process, kind, address. The first form that a line fits is that of the file.
_FORMS: Final = {
    "Pin's pinatrace": rb"HEX: (?P<kind>[RW]) ADDRESS",
    _MISSES: rb"(?:(?P<process>\d{1,9}),)?HEX,ADDRESS",
    "DynamoRIO's memtrace": rb"HEX,(?P<kind>[rw]), *\d{1,9},ADDRESS",
    "DynamoRIO's memtrace_simple": rb"ADDRESS: *\d{1,9}, (?P<kind>\w{1,20})",
    _VIEW: rb".*?T?(?P<process>\d{1,9}):? +(?P<kind>read|write) +\d{1,9} byte\(s\) @ ADDRESS .*",
}
_PATTERNS: Final = {
    name: re.compile(
        form.replace(b"HEX", rb"(?:0x)?[0-9a-fA-F]{1,16}").replace(
            b"ADDRESS", rb"(?:0x)?(?P<address>[0-9a-fA-F]{1,16})"
        )
    )
    for name, form in _FORMS.items()
}
_LOADS, _STORES = (b"R", b"r", b"read"), (b"W", b"w", b"write")


def form_of(path: Path) -> str | None:
    """Return the name of a file's form by the first of 64 lines that has one, None where none has.

    Raises TraceError where the file cannot be read, or is a compressed one of another form.
    """
    for _, line in islice(_lines(path), 64):
        for name, pattern in _PATTERNS.items():
            if pattern.fullmatch(line):
                return name
    if _is_compressed(path):
        raise TraceError(f"{path}: no access of Pin or DynamoRIO in its first 64 lines")
    return None


def _is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line; raises TraceError where the file is damaged."""
    number = 0
    try:
        with gzip.open(path) if _is_compressed(path) else path.open("rb") as file:
            while line := file.readline(_MAX_LINE):
                number += 1
                yield number, line.strip()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}:{number}: damaged: {error}") from None
    except OSError as error:
        raise read_failed(path, error) from None


class AccessText:
    """A file of accesses of one form; a ``PerfRecording``."""

    def __init__(self, path: Path, form: str, runtime_s: float | None = None) -> None:
        """``runtime_s``: how long the program ran; without it ``DISTANCE_NS`` per access."""
        self.path, self._form, self._runtime_s = path, form, runtime_s
        self.about, self.tasks, self.losses, self.span_ns = PerfAbout(), Tasks(), Losses(), (0, 0)
        self._distance_ns = float(DISTANCE_NS)

    def batches(self) -> Iterator[RecordColumns]:
        """Yield all accesses; the first reading counts them, and the second one has their times."""
        self.about, self.tasks = PerfAbout(events={self._form: None}), Tasks()
        columns, rows, count = RecordColumns(_BATCH_LINES, levels=True), [], 0
        columns.period[:], columns.level[:] = 1, Level.UNKNOWN
        for row in self._rows():
            rows.append(row)
            if len(rows) == _BATCH_LINES:
                count = self._fill(columns, rows, count)
                yield columns
                rows.clear()
        if rows:
            count = self._fill(columns, rows, count)
            yield columns
        if self._runtime_s is not None:
            self._distance_ns = self._runtime_s * 1e9 / max(count, 1)
        else:
            self.about.notes.append(
                f"the file has no times: {DISTANCE_NS} ns from one access to the next are assumed;"
                " give the program's runtime with --seconds"
            )
        if self._form != _MISSES:
            self.about.notes.append(
                "these are all accesses, also those that caches answer: traces of misses are made"
                " by drcachesim -LL_miss_file"
            )
        self.span_ns = 1, 1 + round(count * self._distance_ns)

    def _fill(self, columns: RecordColumns, rows: list[tuple[int, int, int]], before: int) -> int:
        n = len(rows)
        columns.clear()
        columns.address[:n], columns.kind[:n], columns.pid[:n] = zip(*rows, strict=True)
        columns.thread[:n] = columns.pid[:n]
        columns.time_ns[:n] = [1 + round((before + i) * self._distance_ns) for i in range(n)]
        columns.c.count = n
        return before + n

    def _rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield address, kind and process of each access."""
        pattern, named = _PATTERNS[self._form], set[int]()
        for number, line in _lines(self.path):
            found = pattern.fullmatch(line)
            if found is None:
                # Of a view, other records; elsewhere remarks alone.
                if line and self._form != _VIEW and not line.startswith((b"#", b"Format:")):
                    raise TraceError(f"{self.path}:{number}: no access as {self._form} prints it")
                continue
            words = found.groupdict()
            kind = words.get("kind", b"r")
            if kind not in _LOADS + _STORES:  # an instruction, by its opcode
                continue
            process = int(words.get("process") or 1) or 1
            if process not in named:
                named.add(process)
                self.tasks.add_name(0, process, clean_name(self.path.stem))
            stored = Kind.STORE if kind in _STORES else Kind.LOAD
            yield int(words["address"], 16), stored, process
