# SPDX-License-Identifier: MIT
"""Sampled accesses by what was mapped where they fell."""

from dataclasses import replace

import numpy as np

from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import SAMPLE_COLUMNS, Samples
from hmd.trace.summary import heat_by_mapping, summarise
from hmd.trace.trace import MappingSnapshot, Trace, TracedProcess

PAGE = 4096
LIBRARY = "/usr/lib/libz.so.1"


def samples_at(*addresses: int, process: int = 0) -> Samples:
    columns = {name: np.zeros(len(addresses), dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    columns["address"][:] = addresses
    columns["period"][:] = 10
    columns["process"][:] = process
    return Samples(**columns)


def mapped(
    time_ns: int, *ranges: tuple[int, int, MappingKind, str], process: int = 0
) -> MappingSnapshot:
    start, pages, kind, path = zip(*ranges, strict=True)
    begin = np.array(start, np.uint64)
    return MappingSnapshot(
        time_ns,
        process,
        begin,
        begin + np.array(pages, np.uint64) * np.uint64(PAGE),
        np.array(kind, np.uint8),
        np.zeros(len(ranges), np.uint8),
        path,
    )


def trace_of(samples: Samples, *mappings: MappingSnapshot) -> Trace:
    processes = (TracedProcess(7, "one"), TracedProcess(8, "two"))
    return Trace({"period": 10}, processes, samples, mappings)


def test_accesses_counted_by_file_and_by_anonymous_mapping_hottest_first() -> None:
    samples = samples_at(0x100000, 0x101000, 0x101008, 0x200000, 0x900000)
    ranges = (
        (0x100000, 4, MappingKind.ANON, ""),
        (0x200000, 1, MappingKind.FILE, LIBRARY),
        (0x300000, 2, MappingKind.FILE, LIBRARY),
    )
    found = heat_by_mapping(trace_of(samples, mapped(1, *ranges)))
    assert [each["mapping"] for each in found] == ["anonymous at 0x100000", LIBRARY]
    assert [each["share"] for each in found] == [0.6, 0.2]  # a fifth is in no mapping
    assert [each["pages"] for each in found] == [2, 1]
    assert [each["bytes"] for each in found] == [4 * PAGE, PAGE]
    assert {each["process"] for each in found} == {"one (7)"}


def test_sample_belongs_to_what_was_mapped_last_at_its_address() -> None:
    before = mapped(1, (0x100000, 2, MappingKind.ANON, ""), (0x400000, 1, MappingKind.HEAP, ""))
    after = mapped(2, (0x100000, 1, MappingKind.FILE, LIBRARY))
    found = heat_by_mapping(trace_of(samples_at(0x100000, 0x101000, 0x400000), before, after))
    shares = {each["mapping"]: round(each["share"], 3) for each in found}
    assert shares == {LIBRARY: 0.333, "anonymous at 0x100000": 0.333, "heap at 0x400000": 0.333}


def test_processes_have_their_own_mappings() -> None:
    first, second = samples_at(0x100000), samples_at(0x100000, 0x100000, process=1)
    columns = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in SAMPLE_COLUMNS
    }
    ranges = (0x100000, 1, MappingKind.STACK, "[stack]")
    trace = trace_of(Samples(**columns), mapped(1, ranges), mapped(1, ranges, process=1))
    assert [(each["process"], each["mapping"]) for each in heat_by_mapping(trace)] == [
        ("two (8)", "[stack]"),
        ("one (7)", "[stack]"),
    ]


def test_trace_without_samples_or_mappings_has_none() -> None:
    trace = trace_of(samples_at())
    assert heat_by_mapping(trace) == summarise(trace)["mappings"] == []
    assert heat_by_mapping(replace(trace, samples=samples_at(0x100000))) == []
