# SPDX-License-Identifier: MIT
"""Import of perf.data: real files, made files of every layout, and damaged ones."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hmd.base.errors import Exit, HmdError, UsageError
from hmd.cli.main import main
from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import Kind
from hmd.trace.convert import open_recording
from hmd.trace.functions import heat_by_function
from hmd.trace.perf_recording import Import, import_recording
from hmd.trace.reader import TraceError, read_trace
from hmd.trace.trace import Trace
from tests.fakes import spe_packets
from tests.fakes.two_functions import MISSES, address_of, compiled
from tests.unit.trace.perf_file import (
    AUX,
    AUXTRACE,
    AUXTRACE_INFO,
    BRANCH_STACK,
    CALLCHAIN,
    CGROUP,
    COMM,
    COMPRESSED,
    COMPRESSED2,
    DATA_PAGE_SIZE,
    FINISHED_ROUND,
    GUEST_USER,
    LOAD_FROM_MEMORY,
    LOST,
    PLAIN,
    RAW,
    READ,
    REGS_INTR,
    REGS_USER,
    STACK_USER,
    THROTTLE,
    TIME_CONV,
    WEIGHT_STRUCT,
    Event,
    PerfFile,
    comm,
    fork,
    mmap2,
    padded,
    record,
    sample,
    trailer,
    values,
)

REAL = Path(__file__).resolve().parents[4] / "shared/data/perf"
"""Files of google/perf_data_converter, next to the checkout."""
STORE, CACHED_LOAD = 0x4 | 0xD << 33, 0x2 | 0x1 << 33
ID, IDENTIFIER, WEIGHT = 1 << 6, 1 << 16, 1 << 14
Capture = pytest.CaptureFixture[str]


def real(name: str) -> Path:
    path = REAL / f"perf.data.{name}"
    if not path.exists():
        pytest.skip("no recordings of perf")
    return path


def imported(data: bytes, folder: Path, *, cached: bool = False) -> tuple[Trace, Import]:
    source, output = folder / "perf.data", folder / "out.hmdt"
    source.write_bytes(data)
    recording = open_recording(source)
    assert recording is not None
    found = import_recording(recording, source, output, cached=cached)
    return read_trace(output), found


def test_import_load_latency_of_a_xeon_rows_are_those_that_perf_prints(tmp_path: Path) -> None:
    path = real("weight_struct")
    trace, found = imported(path.read_bytes(), tmp_path, cached=True)
    assert [f"{address:x}" for address in trace.samples.address.tolist()] == [
        "55ffba5cda08", "4a1cba76618", "4e7ca80", "448253ad3300", "4609440bd6d0", "7fc3ada9f408",
    ]  # fmt: skip
    # At 2 GHz: half of 225, 70, 92, 240, 117 and 168 cycles.
    assert trace.samples.latency_ns.tolist() == [112, 35, 46, 120, 58, 84]
    assert trace.samples.period.tolist() == [10009] * 6
    assert {p.pid for p in trace.processes} == {17564, 17575, 17654, 17662, 20132}
    assert found.levels == {"L1": 2, "L3": 2, "fill buffer": 2}
    assert found.no_user_address == 8
    assert (trace.about["reorder_window"], trace.about["cpus"]) == (224, 112)
    assert any("unknown number of loads" in note for note in found.notes)
    _, without_cached = imported(path.read_bytes(), tmp_path)
    assert (without_cached.kept, without_cached.cached) == (2, 4)


@pytest.mark.parametrize(
    ("name", "losses"), [("lost_samples-4.4", (2, 0)), ("throttle-3.8", (0, 68))]
)
def test_import_of_real_files_without_addresses_refused_with_the_command(
    tmp_path: Path, name: str, losses: tuple[int, int]
) -> None:
    recording = open_recording(real(name))
    assert recording is not None
    with pytest.raises(TraceError, match=r"no event has addresses .*cycles.*perf mem record"):
        import_recording(recording, real(name), tmp_path / "out.hmdt")
    assert (recording.losses.lost, recording.losses.throttled) == losses


VARIABLE = (
    READ, CALLCHAIN, RAW, BRANCH_STACK, REGS_USER, STACK_USER, REGS_INTR, AUX, CGROUP,
    DATA_PAGE_SIZE, IDENTIFIER, 1 << 9, 1 << 17, 1 << 19, 1 << 23,
)  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> Event:
    extra = draw(st.sets(st.sampled_from(VARIABLE)))
    weight = draw(st.sampled_from((WEIGHT, WEIGHT_STRUCT)))
    return Event(
        sample_type=PLAIN & ~WEIGHT | weight | sum(extra),
        read_format=draw(st.integers(0, 31)),
        branches=draw(st.sampled_from((0, 1 << 17))),
        attr_bytes=draw(st.sampled_from((112, 128, 136))),
    )


@given(
    event=events(), sizes=st.lists(st.integers(0, 5), min_size=1, max_size=20), pipe=st.booleans()
)
@settings(max_examples=120, deadline=None)
def test_import_finds_fields_behind_others_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, event: Event, sizes: list[int], pipe: bool
) -> None:
    made = PerfFile([event])
    for number, size in enumerate(sizes):
        made.records.append(sample(event, values(0x10000 + 64 * number, time=5 + number), size))
        made.records.append(record(FINISHED_ROUND, b""))
    folder = tmp_path_factory.mktemp("perf")
    trace, _ = imported(made.pipe() if pipe else made.file(), folder)
    rows = trace.samples
    assert rows.address.tolist() == [0x10000 + 64 * n for n in range(len(sizes))]
    assert rows.time_ns.tolist() == [5 + n for n in range(len(sizes))]
    assert set(rows.latency_ns.tolist()) == {150}  # 300 cycles at 2 GHz
    assert set(rows.period.tolist()) == {1009}
    assert (trace.about["command"], trace.about["kernel"]) == (["perf", "mem", "record"], "6.1.0")


@pytest.mark.parametrize("id_field", [ID, IDENTIFIER])
@pytest.mark.parametrize("pipe", [False, True])
def test_import_several_events_told_apart_by_id(tmp_path: Path, id_field: int, pipe: bool) -> None:
    # Without a data source, the event says what an access is; each has its own period.
    fields = PLAIN & ~(1 << 15 | 1 << 8) | id_field
    loads = Event(sample_type=fields, ids=(7, 8), period=1009)
    stores = Event("cpu/mem-stores/P", fields, 5003, (9,), config=0x82D0)
    made = PerfFile([loads, stores])
    for number, event_id in enumerate((7, 9, 8, 9)):
        event = stores if event_id == 9 else loads
        address = 0x1000 * (number + 1)
        made.records.append(sample(event, values(address, event_id=event_id, time=10 + number)))
    trace, found = imported(made.pipe() if pipe else made.file(), tmp_path)
    assert trace.samples.kind.tolist() == [Kind.LOAD, Kind.STORE, Kind.LOAD, Kind.STORE]
    assert trace.samples.period.tolist() == [1009, 5003, 1009, 5003]
    assert found.stores == 2
    assert trace.about["period"] == 3006
    assert "one in 5003" in trace.about["detail"]


def test_import_group_with_a_leader_that_takes_no_samples(tmp_path: Path) -> None:
    # As perf mem record opens load latency from Sapphire Rapids on; the group is read, too.
    fields = PLAIN | IDENTIFIER | READ
    leader = Event("cpu/mem-loads-aux/", fields, 0, (7,), config=0x8203, read_format=0xC)
    loads = Event(sample_type=fields, ids=(8,), read_format=0xC)
    made = PerfFile([leader, loads], [sample(loads, values(4096, event_id=8))])
    trace, _ = imported(made.file(), tmp_path)
    assert trace.samples.address.tolist() == [4096]
    assert trace.about["detail"] == "cpu/mem-loads,ldlat=30/P"


def test_import_sample_of_unknown_event_refused_with_its_offset(tmp_path: Path) -> None:
    event = Event(sample_type=PLAIN | ID)
    made = PerfFile([event, Event(sample_type=PLAIN | ID, ids=(8,))])
    # After a record of another kind, from which the offset does not count.
    made.records = [
        sample(event, values(4096)),
        sample(event, values(4096, event_id=55)),
        comm(event, 100, "prog", 1),
    ]
    data = made.file()
    offset = data.index(made.records[1])
    with pytest.raises(TraceError, match=f"offset {offset}: a sample of an event that the file"):
        imported(data, tmp_path)


def test_import_by_frequency_periods_of_records(tmp_path: Path) -> None:
    event = Event(by_frequency=True, period=4000)
    made = PerfFile([event], [sample(event, values(4096, period=n)) for n in (10, 2**40, 30)])
    trace, _ = imported(made.file(), tmp_path)
    assert trace.samples.period.tolist() == [10, 2**32 - 1, 30]


def test_import_keeps_user_memory_that_no_cache_answered(tmp_path: Path) -> None:
    event = Event()
    made = PerfFile([event])
    made.records = [
        sample(event, values(0x1000)),
        sample(event, values(0)),
        sample(event, values(0xFFFF_8000_0000_0000)),
        sample(event, values(0x2000, source=CACHED_LOAD)),
        sample(event, values(0x3000, pid=0)),
        sample(event, values(0x4000), misc=GUEST_USER),
        sample(event, values(0x5000, source=STORE)),
        # As before Linux 4.14: hits of local and of remote memory, without the newer number.
        sample(event, values(0x6000, source=0x2 | 0x82 << 5)),
        sample(event, values(0x7000, source=0x2 | 0x42 << 5)),
    ]
    trace, found = imported(made.file(), tmp_path)
    assert trace.samples.address.tolist() == [0x1000, 0x5000, 0x6000]
    assert trace.samples.kind.tolist() == [Kind.LOAD, Kind.STORE, Kind.LOAD]
    assert (found.cached, found.no_user_address) == (2, 3)
    assert found.levels == {"memory": 3, "L1": 1, "L3": 1}


def test_import_processes_their_names_and_mappings(tmp_path: Path) -> None:
    event = Event()
    made = PerfFile([event])
    made.records = [
        mmap2(event, 100, 0x9000, 0x1000, "/bin/sh", 1),
        comm(event, 100, "shell", 2),
        mmap2(event, 100, 0x10000, 0x8000, "//anon", 3),
        mmap2(event, 100, 0x12000, 0x2000, "/lib/x.so", 4, prot=5),
        fork(event, 200, 100, 5),
        mmap2(event, 200, 0x13000, 0x1000, "[heap]", 6),
        mmap2(event, 100, 0x50000, 0x1000, "/late", 7),
        sample(event, values(0x10000, pid=100, time=8)),
        sample(event, values(0x13000, pid=200, time=9)),
    ]
    random.Random(1).shuffle(made.records)  # files are ordered by CPU, not by time
    trace, _ = imported(made.file(), tmp_path)
    names = {process.pid: process.name for process in trace.processes}
    assert names == {100: "shell", 200: "shell"}
    rows = {
        trace.processes[each.process].pid: list(
            zip(each.start.tolist(), each.end.tolist(), each.path, each.kind.tolist(), strict=True)
        )
        for each in trace.mappings
    }
    # The program that was executed has none of what was before it; a child has its parent's.
    assert rows[100] == [
        (0x10000, 0x12000, "", MappingKind.ANON),
        (0x12000, 0x14000, "/lib/x.so", MappingKind.FILE),
        (0x14000, 0x18000, "", MappingKind.ANON),
        (0x50000, 0x51000, "/late", MappingKind.FILE),
    ]
    assert [row[2] for row in rows[200]] == ["", "/lib/x.so", "[heap]", ""]
    assert (trace.begin_ns, trace.runtime_ns) == (2, 7)


def test_import_names_the_functions_of_instructions(tmp_path: Path) -> None:
    program, event = compiled(tmp_path), Event()
    # Of a position-independent program, sections have the same offset and address here.
    begin = address_of(program, MISSES)
    code, page = 0x5500_0000_0000, 0x1000
    at = code + begin - begin // page * page
    mapped = mmap2(event, 100, code, 2 * page, str(program), 1, 5, begin // page * page)
    # A later mapping covers its second half.
    covered = mmap2(event, 100, code + page, page, "//anon", 2)
    made = PerfFile([event], [comm(event, 100, "one", 0), mapped, covered])
    made.records += [
        sample(event, values(0x7F0000, time=5) | {1: each}) for each in (at + 4, code + page)
    ]
    found, unnamed = heat_by_function(imported(made.file(), tmp_path)[0])
    assert [each["function"] for each in found] == [MISSES, None]
    assert found[1]["mapping"] == "anonymous memory, as of a JIT compiler"
    assert not unnamed


def test_import_of_long_commands_and_many_long_paths_is_a_trace(tmp_path: Path) -> None:
    event = Event()
    made = PerfFile([event], command=["ä" * 4000] * 300)
    made.records = [
        mmap2(event, 100, 0x1000 * n, 0x1000, f"/{n}{'ä' * 500}", n) for n in range(1, 1500)
    ]
    made.records.append(sample(event, values(4096, time=5000)))
    trace, _ = imported(made.file(), tmp_path)
    assert len(trace.about["command"]) == 64
    (mapped,) = trace.mappings
    assert len(mapped.path) == 1499
    assert mapped.path[0].startswith("/1ä")
    assert mapped.path[-1] == ""


def test_import_over_the_recording_itself_refused(tmp_path: Path) -> None:
    data = PerfFile([Event()], [sample(Event(), values(4096))]).file()
    (tmp_path / "perf.data").write_bytes(data)
    recording = open_recording(tmp_path / "perf.data")
    assert recording is not None
    with pytest.raises(UsageError, match="is the recording itself"):
        import_recording(recording, tmp_path / "perf.data", tmp_path / "perf.data")
    assert (tmp_path / "perf.data").read_bytes() == data


def test_import_losses_and_throttling_counted(tmp_path: Path) -> None:
    event = Event()
    made = PerfFile([event], [sample(event, values(4096))])
    made.records += [record(LOST, struct.pack("<QQ", 7, 40)), record(THROTTLE, bytes(24))] * 2
    trace, _ = imported(made.file(), tmp_path)
    assert (trace.losses.lost, trace.losses.throttled) == (80, 2)


def test_import_latency_by_time_stamp_counter_without_nominal_clock(tmp_path: Path) -> None:
    event = Event()
    made = PerfFile([event], [sample(event, values(4096))], cpu="AMD EPYC 9654")
    trace, found = imported(made.file(), tmp_path)
    assert trace.samples.latency_ns.tolist() == [0]
    assert any("--ghz" in note for note in found.notes)
    made.records.append(record(TIME_CONV, struct.pack("<QQQ", 32, 2**31, 0)))
    trace, found = imported(made.file(), tmp_path)
    assert trace.samples.latency_ns.tolist() == [150]


@pytest.mark.parametrize("kind", [COMPRESSED, COMPRESSED2])
def test_import_compressed_records_that_cut_others(tmp_path: Path, kind: int) -> None:
    event = Event()
    plain = b"".join(sample(event, values(4096 * n, time=n)) for n in range(1, 400))
    compressor = zstandard.ZstdCompressor().compressobj()
    made = PerfFile([event])
    for first in range(0, len(plain), 1001):
        data = compressor.compress(plain[first : first + 1001])
        data += compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if kind == COMPRESSED:
            made.records.append(record(kind, data, padded=False))
        else:
            made.records.append(record(kind, struct.pack("<Q", len(data)) + data))
    for whole in (made.file(), made.pipe()):
        trace, _ = imported(whole, tmp_path)
        assert trace.samples.time_ns.tolist() == list(range(1, 400))


def test_import_compressed_bomb_refused(tmp_path: Path) -> None:
    data = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    made = PerfFile([Event()], [record(COMPRESSED, data, padded=False)])
    with pytest.raises(TraceError, match="larger than perf makes it"):
        imported(made.file(), tmp_path)
    made.records = [record(COMPRESSED, b"no zstd at all", padded=False)]
    with pytest.raises(TraceError, match="cannot be expanded"):
        imported(made.file(), tmp_path)


def aux_area(data: bytes, thread: int = -1, cpu: int = 3) -> bytes:
    return record(AUXTRACE, struct.pack("<QQQIiII", len(data), 0, 0, 0, thread, cpu, 0)) + data


def test_import_aux_areas_of_others_passed_over(tmp_path: Path) -> None:
    event = Event()
    info = record(AUXTRACE_INFO, struct.pack("<II", 1, 0))  # Intel PT
    aux = aux_area(b"\xff" * 3000)
    made = PerfFile([event], [info, aux, sample(event, values(4096)), aux])
    for data in (made.file(), made.pipe()):
        trace, _ = imported(data, tmp_path)
        assert len(trace.samples) == 1
    with pytest.raises(TraceError, match="an AUX area ends after the file"):
        imported(made.pipe()[:-8], tmp_path)


def spe_file(*areas: bytes) -> PerfFile:
    """A recording of ARM SPE, whose PMU has type 9 and whose counter ticks at 1 GHz."""
    event = Event("arm_spe_0/ts_enable=1/", PLAIN & ~(1 << 3), 4096, type=9, config=0)
    info = record(AUXTRACE_INFO, struct.pack("<IIQQ", 4, 0, 9, 0))
    conversion = record(TIME_CONV, struct.pack("<QQQ", 10, 1 << 10, 5000))
    child = record(COMM, struct.pack("<II", 100, 101) + padded("thread") + trailer(event, 100, 2))
    records = [info, conversion, comm(event, 100, "prog", 1), child, *areas]
    return PerfFile([event], records, cpu="ARMv8")


@pytest.mark.parametrize("pipe", [False, True])
def test_import_spe_packets_decoded(tmp_path: Path, pipe: bool) -> None:
    missed = [
        spe_packets.access(0x10000 + 4096 * n, latency=90 + n, thread=101, time=1000 + n)
        for n in range(5)
    ]
    store = spe_packets.access(0x80000, kind=spe_packets.STORE, thread=100, time=2000)
    hit = spe_packets.access(0x90000, thread=100, bits=0x6, time=2001)
    made = spe_file(aux_area(b"".join(missed)), aux_area(store + hit, cpu=7))
    trace, found = imported(made.pipe() if pipe else made.file(), tmp_path)
    rows = trace.samples
    assert rows.address.tolist() == [*(0x10000 + 4096 * n for n in range(5)), 0x80000]
    assert rows.time_ns.tolist() == [*(6000 + n for n in range(5)), 7000]
    assert rows.kind.tolist() == [Kind.LOAD] * 5 + [Kind.STORE]
    # At 1 GHz, that of the counter, as the CPU's is not known.
    assert rows.latency_ns.tolist() == [90, 91, 92, 93, 94, 0]
    assert (set(rows.period.tolist()), rows.cpu.tolist()[-1]) == ({4096}, 7)
    assert [(p.pid, p.name) for p in trace.processes] == [(100, "prog")]
    assert trace.about["detail"] == "arm_spe_0/ts_enable=1/"
    assert found.notes == []


def test_import_spe_of_a_thread_and_of_none(tmp_path: Path) -> None:
    of_area = spe_packets.access(0x10000, time=10)
    made = spe_file(aux_area(of_area, thread=101), aux_area(spe_packets.access(0x20000)))
    trace, found = imported(made.file(), tmp_path)
    assert trace.samples.address.tolist() == [0x10000]
    assert any("1 records of ARM SPE have no time or no thread" in note for note in found.notes)


@given(data=st.binary(max_size=400), times=st.booleans())
@settings(max_examples=100, deadline=None)
def test_import_spe_any_packets_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, times: bool
) -> None:
    made = spe_file(aux_area(spe_packets.access(0x10000, thread=100) + data))
    if not times:
        del made.records[1]
    try:
        imported(made.file(), tmp_path_factory.getbasetemp())
    except HmdError as error:
        assert "\n" not in str(error)


def test_import_other_files_refused_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    whole = PerfFile([Event()], [sample(Event(), values(4096))]).file()
    unfinished = bytearray(whole)
    unfinished[48:56] = bytes(8)
    cases = {
        b"2ELIFREP" + whole[8:]: "of the other byte order",
        b"PERFFILE" + whole[8:]: "of a perf before 3.0",
        bytes(unfinished): "unfinished",
        whole[:90]: "its header is not whole",
        whole[:-700]: "damaged at offset",
        b"\x7fELF\x00\x01": "no file of perf record",
        b"HMDTRACE\0": "a trace already",
        b"": "it has no samples",
    }
    for data, reason in cases.items():
        (tmp_path / "perf.data").write_bytes(data)
        code = main(["trace", "import", str(tmp_path / "perf.data"), "-o", str(tmp_path / "o")])
        error = capsys.readouterr().err
        assert (code, error.count("\n")) == (Exit.FAILURE, 1), data[:8]
        assert reason in error
        assert not (tmp_path / "o").exists()


def test_import_sample_of_wrong_size_refused_with_its_offset(tmp_path: Path) -> None:
    event = Event()
    bad = record(9, bytes(24))
    data = PerfFile([event], [sample(event, values(4096)), bad]).file()
    with pytest.raises(TraceError, match=f"offset {data.index(bad)}: a sample does not have"):
        imported(data, tmp_path)


def test_import_sample_without_time_or_all_cached_refused(tmp_path: Path) -> None:
    event = Event(sample_type=PLAIN & ~(1 << 2))
    with pytest.raises(TraceError, match="perf record -T"):
        imported(PerfFile([event], [sample(event, values(4096))]).file(), tmp_path)
    event = Event()
    data = PerfFile([event], [sample(event, values(4096, source=CACHED_LOAD))]).file()
    with pytest.raises(TraceError, match=r"caches answered all 1 samples.*--cached"):
        imported(data, tmp_path)
    data = PerfFile([event], [sample(event, values(2**63))]).file()
    with pytest.raises(TraceError, match=r"address of user memory.*perf mem record"):
        imported(data, tmp_path)


def whole_file(pipe: bool) -> bytes:
    """A file with a record of each kind."""
    fields = PLAIN | IDENTIFIER | CALLCHAIN | RAW | REGS_USER
    events = [Event(sample_type=fields), Event("cpu/mem-stores/P", fields, 99, (9,))]
    made = PerfFile(events)
    made.records = [
        comm(events[0], 100, "prog", 1),
        mmap2(events[0], 100, 0x10000, 0x8000, "//anon", 2),
        fork(events[0], 200, 100, 3),
        record(LOST, struct.pack("<QQ", 7, 1)),
        record(TIME_CONV, struct.pack("<QQQ", 10, 300, 0)),
        record(FINISHED_ROUND, b""),
        record(AUXTRACE, struct.pack("<QQQIIII", 16, 0, 0, 0, 0, 0, 0)) + bytes(16),
        *[
            sample(events[n % 2], values(4096 * (n + 1), event_id=7 + 2 * (n % 2)), n % 4)
            for n in range(12)
        ],
        record(COMPRESSED, zstandard.ZstdCompressor().compress(comm(events[0], 1, "x", 2)),
               padded=False),
    ]  # fmt: skip
    return made.pipe() if pipe else made.file()


@given(
    pipe=st.booleans(),
    damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 4000),
    words=st.lists(
        st.tuples(st.integers(0, 450), st.sampled_from((0, 1, 2**16 - 1, 2**32, 2**63, 2**64 - 1))),
        max_size=2,
    ),
)
@settings(max_examples=400, deadline=None)
def test_import_damaged_file_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    pipe: bool,
    damage: list[tuple[int, int]],
    cut: int,
    words: list[tuple[int, int]],
) -> None:
    data = bytearray(whole_file(pipe))
    for word, value in words:
        data[word * 8 : word * 8 + 8] = value.to_bytes(8, "little")
    for position, byte in damage:
        data[position % len(data)] = byte
    if cut < len(data) and cut % 3 == 0:
        del data[cut:]
    folder = tmp_path_factory.getbasetemp()
    try:
        trace, _ = imported(bytes(data), folder)
    except HmdError as error:
        assert "\n" not in str(error)
    else:
        assert len(trace.samples)
        assert np.all(trace.samples.address < np.uint64(1 << 56))


@given(data=st.binary(max_size=600))
@settings(max_examples=100, deadline=None)
def test_import_random_bytes_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    assume(not data.startswith(b"PK"))  # an archive, which is another import
    folder = tmp_path_factory.getbasetemp()
    for head in (b"", b"PERFILE2", b"PERFILE2" + struct.pack("<Q", 16)):
        with pytest.raises(HmdError) as refused:
            imported(head + data, folder)
        assert "\n" not in str(refused.value)


def test_import_source_of_loads_named(tmp_path: Path) -> None:
    event = Event(sample_type=PLAIN)
    sources = {"memory": 0xD, "fill buffer": 0xC, "cxl memory": 0x9, "persistent memory": 0xE}
    remote = LOAD_FROM_MEMORY | 1 << 37
    made = PerfFile([event], [sample(event, values(4096, source=remote))])
    made.records += [sample(event, values(4096, source=2 | n << 33)) for n in sources.values()]
    _, found = imported(made.file(), tmp_path)
    assert found.levels == {"remote memory": 1, **dict.fromkeys(sources, 1)}
