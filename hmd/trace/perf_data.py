# SPDX-License-Identifier: MIT
"""perf's own files (perf.data), as ``perf record`` and ``perf mem record`` write them.

The layout is that of tools/perf/Documentation/perf.data-file-format.txt, tools/perf/util/header.c
and tools/lib/perf/include/perf/event.h of Linux; records are those of perf_event_open(2). A file
has its events' attributes in a header, or, where perf wrote into a pipe, in records. Samples are
read by the reader of perf rings (``hmd.sample.perf_ring``); this module finds them.

Nothing in a file is trusted: a size is compared with what is left of the file, and a part that is
not whole is an error that names its offset. Of AUX areas, those of ARM SPE are decoded
(``hmd.sample.spe``), and others (Intel PT) passed over.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import missing_extra
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_models import store_configs
from hmd.sample.perf_ring import (
    OPTIONAL_COLUMNS,
    RecordColumns,
    RecordList,
    RingCounts,
    SampleFormat,
    SampleType,
    read_records,
    split_records,
)
from hmd.sample.spe import Decoding, SpeClock, decode_packets
from hmd.trace.perf_recording import PerfRecording, clean_name, read_failed
from hmd.trace.reader import MAX_INT64, TraceError
from hmd.trace.trace import Losses

MAGIC: Final = b"PERFILE2"
OTHER_MAGICS: Final = {
    b"2ELIFREP": "it is of a machine of the other byte order: import it there",
    b"PERFFILE": "it is of a perf before 3.0: record it again with a newer one",
}
_PIPE_HEADER_BYTES: Final = 16
MAX_EVENTS: Final = 1024
MAX_IDS: Final = 1 << 20
_MAX_FEATURE_BYTES: Final = 8 << 20
_READ_BYTES: Final = 1 << 20
_BATCH_RECORDS: Final = 1 << 16
_MAX_EXPANDED_BYTES: Final = 64 << 20
"""Bytes of one compressed record; perf compresses what one of its buffers holds."""

_MMAP, _COMM, _EXIT, _FORK, _SAMPLE, _MMAP2 = 1, 3, 4, 7, 9, 10
_ATTR, _TRACING_DATA, _AUXTRACE_INFO, _AUXTRACE, _EVENT_UPDATE = 64, 66, 70, 71, 78
_TIME_CONV, _FEATURE, _COMPRESSED, _COMPRESSED2 = 79, 80, 81, 83
_MISC_USER, _MISC_EXEC_OR_DATA = 2, 1 << 13  # PERF_RECORD_MISC_*
_OSRELEASE, _NRCPUS, _CPUDESC, _CPUID, _CMDLINE, _EVENT_DESC = 4, 7, 8, 9, 11, 12
_TEXTS: Final = {_OSRELEASE: "kernel", _CPUDESC: "machine", _CPUID: "cpuid"}
_NAME_UPDATE: Final = 2
_ARM_SPE: Final = 4  # PERF_AUXTRACE_ARM_SPE
_AUX_PIECE: Final = 1 << 20
_SOFTWARE, _RAW = 1, 4
_DUMMY, _FAULTS = 9, (2, 5, 6)
_KNOWN_FIELDS: Final = (1 << 25) - 1
_TIME_FROM_END: Final = (SampleType.ID, SampleType.STREAM_ID, SampleType.CPU, SampleType.IDENTIFIER)
_BEFORE_ID: Final = (SampleType.IP, SampleType.TID, SampleType.TIME, SampleType.ADDR)


@dataclass(slots=True)
class PerfEvent:
    """An event of a file: struct perf_event_attr, as far as samples need it."""

    name: str
    kind: Kind
    type: int
    format: SampleFormat
    period: int
    sample_id_all: bool
    dummy: bool

    @classmethod
    def of(cls, attr: bytes) -> PerfEvent:
        """Return the event of an attribute, which older kernels write shorter."""
        attr = attr[:112].ljust(112, b"\0")
        kind, _, config, period, sample_type, read_format, flags = struct.unpack_from(
            "<IIQQQQQ", attr
        )
        branches, user_regs, _, intr_regs = struct.unpack_from("<4Q", attr, 72)
        if sample_type & ~_KNOWN_FIELDS:
            raise ValueError(f"an event has samples of an unknown type {sample_type:#x}")
        fault = kind == _SOFTWARE and config in _FAULTS
        store = kind >= _RAW and config in store_configs()
        return cls(
            name=f"type {kind} config {config:#x}",
            kind=Kind.FAULT if fault else Kind.STORE if store else Kind.LOAD,
            type=kind,
            format=SampleFormat(
                sample_type, read_format, branches, user_regs.bit_count(), intr_regs.bit_count()
            ),
            period=0 if flags >> 10 & 1 else period,
            sample_id_all=bool(flags >> 18 & 1),
            # The leader of load latency on newer CPUs takes no samples, either.
            dummy=not period or (kind == _SOFTWARE and config == _DUMMY),
        )

    def rename(self, name: str) -> None:
        """Set the name by which perf calls the event; of stores' names, that they are."""
        self.name = clean_name(name)
        if self.kind is Kind.LOAD and "store" in name.lower():
            self.kind = Kind.STORE

    def has(self, field: SampleType) -> bool:
        """Return whether the event's samples have a field."""
        return bool(self.format.sample_type & field)

    @property
    def id_word(self) -> int:
        """The word of a sample with the event's id, 0: none."""
        if self.has(SampleType.IDENTIFIER):
            return 1
        return 1 + sum(map(self.has, _BEFORE_ID)) if self.has(SampleType.ID) else 0

    def time_of(self, record: bytes) -> int:
        """Return the time of a record that is no sample, 0 where the event does not give it."""
        if not self.sample_id_all or not self.has(SampleType.TIME):
            return 0
        at = len(record) - 8 * (1 + sum(map(self.has, _TIME_FROM_END)))
        return int.from_bytes(record[at : at + 8], "little") if at >= 8 else 0


class PerfData(PerfRecording):
    """A perf.data file."""

    def __init__(self, path: Path) -> None:
        """Read the header; raises TraceError for another file."""
        super().__init__(path)
        self._events: list[PerfEvent] = []
        self._event_of_id: dict[int, int] = {}
        self._offset = 0
        # Kept from the first reading to the second: both find the same processes.
        self._process_of_thread: dict[int, int] = {}
        self._handlers: dict[int, Callable[[bytes], None]] = {
            _ATTR: self._add_attr,
            _EVENT_UPDATE: self._update_event,
            _FEATURE: self._add_feature_record,
            _TIME_CONV: self._add_time_conversion,
            _AUXTRACE_INFO: self._add_aux_info,
            _COMM: self._add_name,
            _FORK: self._add_fork,
            _EXIT: lambda record: None,
            _MMAP: self._add_mapping,
            _MMAP2: self._add_mapping,
        }

    def batches(self) -> Iterator[RecordColumns]:
        """Yield all samples in the order of the file."""
        self._forget()
        self._events, self._event_of_id = [], {}
        self._spe_words: tuple[int, ...] | None = None
        self._spe_clock, self._spe_unknown = SpeClock(), 0
        columns = RecordColumns(_BATCH_RECORDS, optional=OPTIONAL_COLUMNS)
        try:
            with self.path.open("rb") as file:
                begin, end = self._read_header(file)
                for data, listed, base in self._records(file, begin, end):
                    if isinstance(listed, RecordList):
                        yield from self._samples(data, listed, base, columns)
                    elif self._spe_words is not None:
                        yield from self._spe_samples(data, listed, columns)
        except OSError as error:
            raise read_failed(self.path, error) from None
        except (ValueError, IndexError, struct.error) as error:
            raise self._damage(str(error)) from None
        self._describe_events()

    def _damage(self, what: str) -> TraceError:
        return TraceError(
            f"{self.path} is damaged at offset {self._offset}: {what}; record it again, or copy "
            "it again"
        )

    def _describe_events(self) -> None:
        for event in self._events:
            if not event.dummy and (event.has(SampleType.ADDR) or event is self._spe_event):
                self.about.events[event.name] = event.period
            elif not event.dummy:
                self.about.other_events.append(event.name)
        if self._spe_unknown:
            self.about.notes.append(
                f"{self._spe_unknown:,} records of ARM SPE have no time or no thread: record with "
                "ts_enable=1 as root, or import what 'perf script --itrace=M' prints"
            )

    # The header, and what it points to

    def _read_header(self, file: BinaryIO) -> tuple[int, int]:
        """Return where the records begin and end."""
        size = os.fstat(file.fileno()).st_size
        head = file.read(104)
        if head[:8] in OTHER_MAGICS:
            raise TraceError(f"{self.path} cannot be read: {OTHER_MAGICS[head[:8]]}")
        if head[:8] != MAGIC or len(head) < _PIPE_HEADER_BYTES:
            raise TraceError(f"{self.path} is no file of perf record: it does not begin as one")
        (header_bytes,) = struct.unpack_from("<Q", head, 8)
        if header_bytes == _PIPE_HEADER_BYTES:
            return _PIPE_HEADER_BYTES, size
        if header_bytes != len(head):
            raise ValueError("its header is not whole")
        attr_bytes, attrs, attrs_bytes, data, data_bytes = struct.unpack_from("<5Q", head, 16)
        features = int.from_bytes(head[72:104], "little")
        if not data_bytes:
            raise TraceError(
                f"{self.path} is unfinished: perf record was killed, or still runs; record it again"
            )
        self._read_attrs(file, size, attr_bytes, attrs, attrs_bytes)
        table = self._part(file, size, data + data_bytes, 16 * features.bit_count())
        numbers = [number for number in range(256) if features >> number & 1]
        for row, number in enumerate(numbers):
            offset, length = struct.unpack_from("<QQ", table, 16 * row)
            if number in (*_TEXTS, _NRCPUS, _CMDLINE, _EVENT_DESC):
                self._add_feature(number, self._part(file, size, offset, length))
        if data + data_bytes > size:
            raise ValueError("it ends within its records")
        return data, data + data_bytes

    def _part(self, file: BinaryIO, size: int, offset: int, length: int) -> bytes:
        """Return a part of the file that its header names."""
        self._offset = offset
        if length > _MAX_FEATURE_BYTES or offset + length > size:
            raise ValueError("a part of its header lies outside of the file")
        file.seek(offset)
        return file.read(length)

    def _read_attrs(
        self, file: BinaryIO, size: int, attr_bytes: int, offset: int, length: int
    ) -> None:
        if not 80 <= attr_bytes <= 4096 or not length or length % attr_bytes:
            raise ValueError("its events are not whole")
        attrs = self._part(file, size, offset, length)
        for at in range(0, length, attr_bytes):
            ids, ids_bytes = struct.unpack_from("<QQ", attrs, at + attr_bytes - 16)
            listed = self._part(file, size, ids, ids_bytes)
            self._add_event(attrs[at : at + attr_bytes - 16], listed)

    def _add_event(self, attr: bytes, ids: bytes) -> None:
        if len(self._events) >= MAX_EVENTS or len(self._event_of_id) > MAX_IDS:
            raise ValueError(f"more than {MAX_EVENTS} events or {MAX_IDS} counters")
        for number in np.frombuffer(ids[: len(ids) // 8 * 8], "<u8").tolist():
            self._event_of_id[number] = len(self._events)
        self._events.append(PerfEvent.of(attr))

    # Features: by number, in the header of a file or as records in a pipe

    def _add_feature_record(self, record: bytes) -> None:
        self._add_feature(int.from_bytes(record[8:16], "little"), record[16:])

    def _add_feature(self, number: int, data: bytes) -> None:
        about = self.about
        if number in _TEXTS:
            setattr(about, _TEXTS[number], _text(data, 0)[0])
        elif number == _NRCPUS:
            about.cpus = min(_number(data, 0), 1 << 20)
        elif number == _CMDLINE:
            at = 4
            for _ in range(min(_number(data, 0), len(data) // 4)):
                word, at = _text(data, at)
                about.command.append(word)
        elif number == _EVENT_DESC:
            self._name_events(data)

    def _name_events(self, data: bytes) -> None:
        attr_bytes, at = _number(data, 4), 8
        for number in range(min(_number(data, 0), len(self._events))):
            at += attr_bytes
            ids = _number(data, at)
            name, at = _text(data, at + 4)
            at += 8 * ids
            self._events[number].rename(name)

    # Records of perf itself

    def _add_attr(self, record: bytes) -> None:
        attr_bytes = _number(record, 12)
        if not 64 <= attr_bytes <= len(record) - 8:
            raise ValueError("an event is not whole")
        self._add_event(record[8 : 8 + attr_bytes], record[8 + attr_bytes :])

    def _update_event(self, record: bytes) -> None:
        what, number = struct.unpack_from("<QQ", record, 8)
        if what == _NAME_UPDATE and number in self._event_of_id:
            self._events[self._event_of_id[number]].rename(_c_text(record, 24))

    def _add_time_conversion(self, record: bytes) -> None:
        shift, multiplier = struct.unpack_from("<QQ", record, 8)
        if shift < 64 and multiplier:
            self.about.ns_per_tick = multiplier / (1 << shift)
            zero_ns = int.from_bytes(record[24:32], "little")
            hz = min(round(1e9 / self.about.ns_per_tick), MAX_INT64)
            self._spe_clock = SpeClock(0, min(zero_ns, MAX_INT64), hz)

    def _add_aux_info(self, record: bytes) -> None:
        if _number(record, 8) == _ARM_SPE:
            self._spe_words = tuple(np.frombuffer(record[16 : 16 + 8 * 16], "<u8").tolist())

    @property
    def _spe_event(self) -> PerfEvent | None:
        """The event of SPE, whose PMU's type one of the words says."""
        words = self._spe_words or ()
        return next((event for event in self._events if event.type in words), None)

    # Records of the kernel that are no samples

    def _time_of(self, record: bytes) -> int:
        return min(self._events[0].time_of(record), MAX_INT64) if self._events else 0

    def _add_name(self, record: bytes) -> None:
        misc, _, pid, tid = struct.unpack_from("<HHII", record, 4)
        executed = bool(misc & _MISC_EXEC_OR_DATA)
        self.tasks.add_thread(tid, pid)
        if pid == tid:
            name = _c_text(record, 16)
            self.tasks.add_name(self._time_of(record), pid, name, executed=executed)

    def _add_fork(self, record: bytes) -> None:
        pid, parent, tid = struct.unpack_from("<III", record, 8)
        self.tasks.add_thread(tid, pid)
        if pid != parent:
            self.tasks.add_fork(self._time_of(record), pid, parent)

    def _add_mapping(self, record: bytes) -> None:
        kind, misc = struct.unpack_from("<IH", record)
        pid, _, *where = struct.unpack_from("<IIQQQ", record, 8)
        if misc & 7 != _MISC_USER:
            return
        if kind == _MMAP2:
            access, flags = struct.unpack_from("<II", record, 64)
            access = access & 7 | (flags & 1) << 3
        else:
            access = 3 if misc & _MISC_EXEC_OR_DATA else 5
        path = _c_text(record, 72 if kind == _MMAP2 else 40)
        self.tasks.add_mapping(self._time_of(record), pid, tuple(where), access, path)

    # The stream of records

    def _records(
        self, file: BinaryIO, begin: int, end: int
    ) -> Iterator[tuple[memoryview, RecordList | bytes, int]]:
        """Yield listed records, the bytes that they lie in, and the offset of these in the file.

        Records of perf itself are handled on the way; a compressed one holds others. Of an AUX
        area, its data in pieces, and the record before it.
        """
        expand: Any = None
        rest = b""
        at, left = begin, memoryview(b"")
        file.seek(begin)
        while True:
            listed = split_records(left, self._id_word)
            if not listed.bytes:
                self._offset = at
                more = file.read(min(_READ_BYTES, end - at - len(left)))
                self._check_whole(left, bool(more))
                if not more:
                    break
                left = memoryview(bytes(left) + more)
                continue
            last = bytes(left[int(listed.offset[-1]) : listed.bytes])
            kind = int(listed.type[-1])
            yield left, listed, at
            at, left = at + listed.bytes, left[listed.bytes :]
            self._offset = at - len(last)
            if kind in (_COMPRESSED, _COMPRESSED2):
                expand = expand or _decompressor()
                data = memoryview(rest + self._expanded(expand, kind, last))
                used = 0
                while (inner := split_records(data[used:], self._id_word)).bytes:
                    yield data[used:], inner, self._offset
                    used += inner.bytes
                rest = bytes(data[used:])
                self._check_whole(memoryview(rest), more=True)
            elif kind in (_AUXTRACE, _TRACING_DATA):
                size = int.from_bytes(last[8 : 16 if kind == _AUXTRACE else 12], "little")
                if size > end - at:
                    raise ValueError("an AUX area ends after the file")
                ends = at + size
                while at < ends and kind == _AUXTRACE:
                    if not left:
                        left = memoryview(file.read(min(_AUX_PIECE, ends - at)))
                    if not left:
                        raise ValueError("it ends within an AUX area")
                    piece = left[: min(_AUX_PIECE, ends - at)]
                    yield piece, last, at
                    at, left = at + len(piece), left[len(piece) :]
                left = left[ends - at :]
                at = ends
                if not left:
                    file.seek(at)
        self._check_whole(memoryview(rest), more=False)

    @property
    def _id_word(self) -> int:
        """The word of the samples' ids; perf gives all events the same one."""
        return self._events[0].id_word if len(self._events) > 1 else 0

    def _check_whole(self, left: memoryview, more: bool) -> None:
        """Raise ValueError where a record can never be whole."""
        if len(left) >= 8 and int.from_bytes(left[6:8], "little") < 8:
            raise ValueError("a record of impossible size")
        if left and not more:
            raise ValueError("it ends within a record")

    def _expanded(self, expand: Any, kind: int, record: bytes) -> bytes:
        data = record[8:]
        if kind == _COMPRESSED2:
            size = int.from_bytes(record[8:16], "little")
            data = record[16 : 16 + size]
        parts, total = [], 0
        # In small steps, each of which can become 128 KiB per 4 bytes at most.
        for first in range(0, len(data), 512):
            try:
                parts.append(expand.decompress(data[first : first + 512]))
            except Exception as error:  # the library's own class, which is not there without it
                raise ValueError(f"compressed records cannot be expanded ({error})") from None
            total += len(parts[-1])
            if total > _MAX_EXPANDED_BYTES:
                raise ValueError("a compressed record is larger than perf makes it")
        return b"".join(parts)

    def _samples(
        self, data: memoryview, listed: RecordList, base: int, columns: RecordColumns
    ) -> Iterator[RecordColumns]:
        """Handle listed records; yield the columns where they have samples."""
        self._offset = base
        is_sample = listed.type == _SAMPLE
        others = np.flatnonzero(~is_sample)
        for row in others[np.isin(listed.type[others], list(self._handlers))].tolist():
            begin = int(listed.offset[row])
            size = int.from_bytes(data[begin + 6 : begin + 8], "little")
            self._offset = base + begin
            record = bytes(data[begin : begin + size])
            self._handlers[int(listed.type[row])](record)
            if int(listed.type[row]) in (_COMM, _EXIT, _FORK):
                time_ns = self._time_of(record)
                self._widen(time_ns, time_ns)
        counts = read_records(SampleFormat(0), Kind.LOAD, data, listed.offset[others], columns)
        self._add_losses(counts)
        self._offset = base
        if counts.corrupt:
            raise ValueError("a record of lost samples is not whole")
        rows = np.flatnonzero(is_sample)
        if not len(rows):
            return
        for number, chosen in self._by_event(listed, rows):
            event = self._events[number]
            columns.clear()
            counts = read_records(event.format, event.kind, data, listed.offset[chosen], columns)
            if counts.corrupt:
                bad = self._first_corrupt(event, data, listed.offset[chosen], columns)
                self._offset = base + bad
                raise ValueError("a sample does not have the fields that its event names")
            if columns.count and event.has(SampleType.ADDR):
                yield self._completed(event, columns)

    def _spe_samples(
        self, data: memoryview, aux: bytes, columns: RecordColumns
    ) -> Iterator[RecordColumns]:
        """Yield the accesses in a piece of ARM SPE's AUX area that missed a cache."""
        event, (thread, cpu) = self._spe_event, struct.unpack_from("<iI", aux, 36)
        columns.clear()
        decoding = Decoding(min(event.period if event else 1, 2**32 - 1) or 1, misses=True)
        clock = self._spe_clock
        counts = decode_packets(bytes(data), decoding, clock, cpu & 0xFFFF, columns)
        self._add_losses(counts)
        self._spe_unknown += counts.corrupt
        count = columns.count
        found_threads, which = np.unique(columns.thread[:count], return_inverse=True)
        # Without a thread of its own, a record is of that of the area; 0 where it is a CPU's.
        threads = [each or max(thread, 0) for each in found_threads.tolist()]
        known, found = self._process_of_thread, self.tasks.process_of_thread
        pids = np.array([known.setdefault(t, found.get(t, t)) for t in threads], np.uint32)
        columns.pid[:count] = pids[which] if count else 0
        timeless = columns.time_ns[:count] == 0
        columns.pid[:count][timeless] = 0
        self._spe_unknown += int((columns.pid[:count] == 0).sum())
        if not timeless.all():
            times = columns.time_ns[:count][~timeless]
            self._widen(int(times.min()), int(times.max()))
        if count:
            yield columns

    def _by_event(
        self, listed: RecordList, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield the samples of each event, by its number."""
        if not self._events:
            raise ValueError("samples of no event")
        if not self._id_word:
            yield 0, rows
            return
        ids, which = np.unique(listed.id[rows], return_inverse=True)
        events = [self._event_of_id.get(each, 0 if each == 0 else -1) for each in ids.tolist()]
        event = np.array(events)[which]
        if (unknown := np.flatnonzero(event < 0)).size:
            self._offset += int(listed.offset[rows[unknown[0]]])
            raise ValueError("a sample of an event that the file does not name")
        for number in np.unique(event).tolist():
            yield number, rows[event == number]

    @staticmethod
    def _first_corrupt(
        event: PerfEvent, data: memoryview, offsets: npt.NDArray[np.uint32], columns: RecordColumns
    ) -> int:
        for row in range(len(offsets)):
            columns.clear()
            one = offsets[row : row + 1]
            if read_records(event.format, event.kind, data, one, columns).corrupt:
                break
        return int(offsets[row])

    def _completed(self, event: PerfEvent, columns: RecordColumns) -> RecordColumns:
        """Return an event's samples with the period that their records do not have."""
        count = columns.count
        if not event.has(SampleType.TIME) or not event.has(SampleType.TID):
            raise TraceError(
                f"{self.path}: samples of {event.name} have no times or no processes: record "
                "with 'perf record -T'"
            )
        if not event.has(SampleType.PERIOD):
            columns.period[:count] = min(event.period or 1, 2**32 - 1)
        times = columns.time_ns[:count]
        if int(times.max()) > MAX_INT64:
            raise ValueError("a sample after the year 2262")
        self._widen(int(times.min()), int(times.max()))
        return columns

    def _add_losses(self, counts: RingCounts) -> None:
        lost = min(self.losses.lost + counts.lost, MAX_INT64)
        self.losses = Losses(lost, self.losses.throttled + counts.throttled)


def _decompressor() -> Any:
    try:
        import zstandard
    except ImportError:
        raise missing_extra(
            "a file of perf record -z", "zstandard", "zstd", "or record without -z"
        ) from None
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()


def _number(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return a text with its length before it, and where it ends."""
    length = _number(data, at)
    if length > len(data) - at - 4:
        raise ValueError("a text is longer than its part")
    return _c_text(data[: at + 4 + length], at + 4), at + 4 + length


def _c_text(data: bytes, at: int) -> str:
    return data[at:].partition(b"\0")[0].decode(errors="replace")
