# SPDX-License-Identifier: MIT
"""Recordings as text: samples that ``perf script`` prints, accesses that Pin and DynamoRIO print.

A line of perf's has the fields that ``perf script -F`` names, in perf's own order
(``process_event`` in tools/perf/builtin-script.c); nothing in it says which they are, so that the
list is an argument. ``FIELDS`` are those of the documented command. Lines become records of perf,
which the reader of perf rings reads: kinds and levels are those of a perf.data file.

``docs/reference/trace-format.md`` lists the forms of accesses. None has times: accesses follow each
other at equal distances, over a runtime that the user gives. A file may be compressed by gzip.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from hmd.base.errors import UsageError
from hmd.linux.mappings import MappingAccess
from hmd.sample.access_batch import Kind
from hmd.sample.perf_ring import (
    OPTIONAL_COLUMNS,
    Level,
    RecordColumns,
    SampleFormat,
    SampleType,
    read_records,
)
from hmd.trace.perf_recording import PerfRecording, clean_name, read_failed
from hmd.trace.reader import MAX_INT64, TraceError

FIELDS: Final = "comm,pid,tid,cpu,time,period,event,addr,data_src,weight"
COMMAND: Final = f"perf script --header --ns --show-mmap-events -F {FIELDS}"

# In the order in which perf prints them; [CPU] and the period are left out where an event has none.
# Runs of spaces are matched from their beginning only, so that no line takes long.
_PATTERNS: Final = {
    "comm": r"(?P<comm>.*?)(?<!\s)\s++",
    "pid": r"(?P<pid>-?\d{1,10})",
    "tid": r"/(?P<tid>-?\d{1,10})\s+",
    "cpu": r"(?:\[(?P<cpu>\d{1,9})\]\s+)?",
    "time": r"(?P<s>\d{1,10})\.(?P<ns>\d{9}|\d{6}):\s+",
    "period": r"(?:(?P<period>\d{1,20})\s+)?",
    "event": r"(?P<event>\S+):\s+",
    "addr": r"(?P<addr>[0-9a-f]{1,16})\b\s*",
    "data_src": r"(?P<data_src>[0-9a-f]{1,16}) \|[^\n]*?(?<!\s)(?=\s{3,}\d|\s*$)\s*",
    "weight": r"(?P<weight>\d{1,20})\b\s*",
    "ip": r"(?P<ip>[0-9a-f]{1,16})\b\s*",
    "phys_addr": r"[0-9a-f]{1,16}\b\s*",
}
_NEEDED: Final = ("comm", "pid", "tid", "time", "event", "addr")
_MAPPED: Final = re.compile(
    r".*?(?P<s>\d{1,10})\.(?P<ns>\d{9}|\d{6}): PERF_RECORD_MMAP2? (?P<pid>-?\d{1,10})/-?\d+: "
    r"\[0x(?P<start>[0-9a-f]{1,16})\(0x(?P<length>[0-9a-f]{1,16})\)"
    r"(?: @ (?:0x)?(?P<offset>[0-9a-f]{1,16}))?[^\]]*\]: "
    r"(?P<access>\S+) (?P<path>.*)"
)
_TEXTS: Final = {"os release": "kernel", "cpudesc": "machine", "cpuid": "cpuid"}
_HEADER: Final = re.compile(r"# (os release|cpudesc|cpuid|cmdline|nrcpus online) : (.*)")
_TYPE: Final = (
    SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.ADDR | SampleType.CPU
    | SampleType.PERIOD | SampleType.WEIGHT | SampleType.DATA_SRC
)  # fmt: skip
_RECORD_WORDS: Final = 9
_SAMPLE_HEADER: Final = 9 | (8 * _RECORD_WORDS) << 48
_BATCH_LINES: Final = 1 << 15
_MAX_LINE: Final = 1 << 12
_U64: Final = 2**64 - 1


def line_pattern(fields: str) -> re.Pattern[str]:
    """Return the pattern of a line with these fields; UsageError where they cannot be imported."""
    named = fields.split(",")
    if wrong := [name for name in named if name not in _PATTERNS]:
        raise UsageError(f"--fields: hmd does not read {wrong[0]!r}; print these: {COMMAND}")
    if missing := [name for name in _NEEDED if name not in named]:
        raise UsageError(f"--fields: {missing[0]} is missing; print these: {COMMAND}")
    return re.compile("".join(text for name, text in _PATTERNS.items() if name in named) + "$")


class PerfScript(PerfRecording):
    """A file of ``perf script``'s output."""

    def __init__(self, path: Path, fields: str = FIELDS) -> None:
        """Read lines of these fields; raises UsageError for others."""
        super().__init__(path)
        self._fields, self._line = fields, line_pattern(fields)

    def batches(self) -> Iterator[RecordColumns]:
        """Yield all samples, in the order of the lines; those of one kind at a time."""
        self._forget()
        self._names: dict[int, str] = {}
        columns = RecordColumns(_BATCH_LINES, optional=OPTIONAL_COLUMNS)
        rows = dict[Kind, list[tuple[int, ...]]]()
        try:
            with self.path.open("rb") as file:
                for kind, row in self._rows(file):
                    batch = rows.setdefault(kind, [])
                    batch.append(row)
                    if len(batch) == _BATCH_LINES:
                        yield self._read(kind, rows.pop(kind), columns)
        except OSError as error:
            raise read_failed(self.path, error) from None
        for kind, batch in rows.items():
            yield self._read(kind, batch, columns)

    def _rows(self, file: BinaryIO) -> Iterator[tuple[Kind, tuple[int, ...]]]:
        """Yield the words of each line's record, and the kind of its event."""
        number = offset = 0
        in_header = False
        while line := file.readline(_MAX_LINE):
            number, offset, begin = number + 1, offset + len(line), offset
            text = line.decode(errors="replace").strip()
            try:
                if text.startswith("# ====="):
                    in_header = not in_header
                elif in_header or text.startswith("#"):  # a command may be of several lines
                    self._add_header(text)
                elif "PERF_RECORD_" in text:
                    self._add_mapping(text)
                elif text:
                    yield self._row(text)
            except ValueError as error:
                raise TraceError(
                    f"{self.path}:{number} (offset {begin}): {error}; print it with: {COMMAND}"
                ) from None

    def _row(self, text: str) -> tuple[Kind, tuple[int, ...]]:
        found = self._line.match(text)
        if found is None:
            raise ValueError(f"no sample of the fields {self._fields}")
        words = found.groupdict("0")
        pid, tid, time_ns = int(words["pid"]), int(words["tid"]), _time_ns(words)
        event, period = words["event"], int(words.get("period", 0)) or 1
        self.about.events.setdefault(clean_name(event), None)
        if len(self.about.events) > 1024:
            raise ValueError("more than 1024 events")
        if self._names.get(pid) != words["comm"] and (pid == tid or pid not in self._names):
            self._names[pid] = words["comm"]
            self.tasks.add_name(time_ns, pid, words["comm"])
        self._widen(time_ns, time_ns)
        fault = "fault" in event
        kind = Kind.FAULT if fault else Kind.STORE if "store" in event.lower() else Kind.LOAD
        return kind, (
            _SAMPLE_HEADER,
            int(words.get("ip", "0"), 16),
            pid & 0xFFFFFFFF | (tid & 0xFFFFFFFF) << 32,
            time_ns,
            int(words["addr"], 16),
            int(words.get("cpu", 0)),
            min(period, _U64),
            min(int(words.get("weight", 0)), _U64),
            int(words.get("data_src", "0"), 16),
        )

    def _add_mapping(self, text: str) -> None:
        found = _MAPPED.match(text)
        if found is not None:
            flags = zip("rwxs", MappingAccess, strict=True)
            access = sum(flag for letter, flag in flags if letter in found["access"])
            offset = int(found["offset"] or "0", 16)
            where = int(found["start"], 16), int(found["length"], 16), offset
            time_ns, pid = _time_ns(found.groupdict()), int(found["pid"])
            if pid > 0:
                self.tasks.add_mapping(time_ns, pid, where, access, found["path"])

    def _add_header(self, text: str) -> None:
        found = _HEADER.match(text)
        if found is None:
            return
        about, what = self.about, found[2].strip()
        if found[1] in _TEXTS:
            setattr(about, _TEXTS[found[1]], what)
        elif found[1] == "cmdline":
            about.command = what.split(" ")
        elif what.isdigit():
            about.cpus = min(int(what[:7]), 1 << 20)

    @staticmethod
    def _read(kind: Kind, rows: list[tuple[int, ...]], columns: RecordColumns) -> RecordColumns:
        """Return the samples of lines of one kind, read as records of perf."""
        data = np.array(rows, np.uint64)
        offset = np.arange(len(rows), dtype=np.uint32) * np.uint32(8 * _RECORD_WORDS)
        columns.clear()
        read_records(SampleFormat(int(_TYPE)), kind, data.tobytes(), offset, columns)
        return columns


def _time_ns(words: dict[str, str]) -> int:
    return min(int(words["s"]) * 10**9 + int(words["ns"].ljust(9, "0")), MAX_INT64)


DISTANCE_NS: Final = 100
"""Time from one access to the next where no runtime is given."""
GZIP: Final = b"\x1f\x8b"

_MAX_ACCESS_LINE: Final = 1 << 10
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
_ACCESSES: Final = {
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
        for name, pattern in _ACCESSES.items():
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
            while line := file.readline(_MAX_ACCESS_LINE):
                number += 1
                yield number, line.strip()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}:{number}: damaged: {error}") from None
    except OSError as error:
        raise read_failed(path, error) from None


class AccessText(PerfRecording):
    """A file of accesses of one form."""

    def __init__(self, path: Path, form: str, runtime_s: float | None = None) -> None:
        """``runtime_s``: how long the program ran; without it ``DISTANCE_NS`` per access."""
        super().__init__(path)
        self._form, self._runtime_s = form, runtime_s
        self._distance_ns = float(DISTANCE_NS)

    def batches(self) -> Iterator[RecordColumns]:
        """Yield all accesses; the first reading counts them, and the second one has their times."""
        self._forget()
        self.about.events[self._form] = None
        columns, rows, count = RecordColumns(_BATCH_LINES, optional=OPTIONAL_COLUMNS), [], 0
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
        pattern, named = _ACCESSES[self._form], set[int]()
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
