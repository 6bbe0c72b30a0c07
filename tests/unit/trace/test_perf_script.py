# SPDX-License-Identifier: MIT
"""Import of what perf script prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.base.errors import HmdError, UsageError
from hmd.sample.access_batch import Kind
from hmd.trace.perf_recording import Import, import_recording
from hmd.trace.reader import TraceError, read_trace
from hmd.trace.text_recordings import COMMAND, FIELDS, PerfScript
from hmd.trace.trace import Trace

# As perf 6.1 prints them: a Xeon's load-latency samples, and the header of the recording.
HEADER = """\
# ========
# os release : 4.15.0-smp
# nrcpus online : 112
# cpudesc : Intel(R) Xeon(R) Platinum 8173M CPU @ 2.00GHz
# cpuid : GenuineIntel,6,85,4
# cmdline : /usr/bin/perf record -a -c 10009 -d -- python3 -c print(1)
print(2)
# ========
#
"""
SAMPLES = """\
 census_housekee 20132/20144 [012] 13166.196585610:      10009 MEM_TRANS_RETIRED.LOAD_LATENCY:ldlat=64:pinned:     55ffba5cda08     11868100242 |OP LOAD|LVL LFB/MAB or LFB/MAB hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A             225
 BatchedLS Watche 17662/20595 [004] 13168.187933858:      10009 MEM_TRANS_RETIRED.LOAD_LATENCY:ldlat=64:pinned:      4a1cba76618     10468100442 |OP LOAD|LVL L2 or L2 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A                        77
         kstaled  3216/3216  [028] 13172.946888872:      10009 MEM_TRANS_RETIRED.LOAD_LATENCY:ldlat=64:pinned: ffffc36ac0131180     11868100242 |OP LOAD|LVL LFB/MAB or LFB/MAB hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A             249
    ContainerMgr 17575/19460 [001] 13168.694911139:       5003 cpu/mem-stores/P:          4e7ca80     1a06100104 |OP STORE|LVL RAM hit|SNP N/A|TLB L1 or L2 hit|LCK Yes|BLK  N/A                         0
"""  # noqa: E501
MAPPING = """\
    ContainerMgr 17575/17575 [028] 13160.705760506: PERF_RECORD_MMAP2 17575/17907: [0x4e7c000(0x1000) @ 0 08:01 4417 415]: rw-p /opt/manager
"""  # noqa: E501
NO_CPU = "ls 32410/32410 16391.775344: page-faults:     7fd092fce650 \n"


def imported(text: str, folder: Path, fields: str = FIELDS) -> tuple[Trace, Import]:
    source, output = folder / "script.txt", folder / "out.hmdt"
    source.write_text(text)
    found = import_recording(PerfScript(source, fields), source, output)
    return read_trace(output), found


def test_script_of_documented_command_read_as_the_file_is(tmp_path: Path) -> None:
    trace, found = imported(HEADER + MAPPING + SAMPLES, tmp_path)
    rows = trace.samples
    assert rows.address.tolist() == [0x55FFBA5CDA08, 0x4E7CA80]
    assert rows.time_ns.tolist() == [13166196585610, 13168694911139]
    assert rows.latency_ns.tolist() == [112, 0]
    assert (rows.cpu.tolist(), rows.thread.tolist()) == ([12, 1], [20144, 19460])
    assert rows.period.tolist() == [10009, 5003]
    assert rows.kind.tolist() == [Kind.LOAD, Kind.STORE]
    assert found.levels == {"fill buffer": 1, "L2": 1, "memory": 1}
    assert (found.cached, found.no_user_address) == (1, 1)
    assert (trace.about["kernel"], trace.about["cpus"]) == ("4.15.0-smp", 112)
    assert {process.pid: process.name for process in trace.processes} == {
        20132: "census_housekee",
        17575: "ContainerMgr",
    }
    assert [each.path for each in trace.mappings] == [("/opt/manager",)]


@pytest.mark.parametrize("text", ["", HEADER, HEADER + MAPPING])
def test_script_without_samples_says_that_there_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="it has no samples, or nothing at all: record a program"):
        imported(text, tmp_path)


def test_script_of_other_fields_and_without_cpu(tmp_path: Path) -> None:
    trace, _ = imported(NO_CPU, tmp_path, "comm,pid,tid,time,event,addr")
    assert trace.samples.address.tolist() == [0x7FD092FCE650]
    assert trace.samples.time_ns.tolist() == [16391775344000]
    assert trace.samples.kind.tolist() == [Kind.FAULT]
    assert trace.samples.period.tolist() == [1]


def test_script_with_instructions_and_offsets_of_mappings(tmp_path: Path) -> None:
    mapping = MAPPING.replace("@ 0 08:01", "@ 0x3000 08:01")
    line = NO_CPU.replace("7fd092fce650", "4e7ca80           4e7c0d7").replace("32410", "17575")
    trace, _ = imported(mapping + line, tmp_path, "comm,pid,tid,time,event,addr,ip")
    assert trace.samples.code_address.tolist() == [0x4E7C0D7]
    assert [np.array(each.offset).tolist() for each in trace.mappings] == [[0x3000]]
    trace, _ = imported(MAPPING + SAMPLES, tmp_path)
    assert trace.samples.code_address.tolist() == [0, 0]
    assert [np.array(each.offset).tolist() for each in trace.mappings] == [[0]]


def test_script_line_of_other_fields_refused_with_line_and_command(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        imported(HEADER + SAMPLES + NO_CPU, tmp_path)
    offset = len(HEADER + SAMPLES)
    assert f"script.txt:14 (offset {offset}): no sample of the fields" in str(refused.value)
    assert COMMAND in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "reason"), [("comm,sym", "does not read 'sym'"), ("comm,pid,tid", "time is missing")]
)
def test_script_fields_that_cannot_be_imported_refused(
    tmp_path: Path, fields: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        PerfScript(tmp_path, fields)


@given(
    line=st.sampled_from((SAMPLES + MAPPING + NO_CPU).splitlines()),
    changes=st.lists(st.tuples(st.integers(0, 250), st.text(max_size=3)), max_size=4),
    fields=st.sampled_from((FIELDS, "comm,pid,tid,time,event,addr")),
)
@settings(max_examples=300, deadline=None)
def test_script_changed_lines_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    line: str,
    changes: list[tuple[int, str]],
    fields: str,
) -> None:
    for position, text in changes:
        at = position % (len(line) + 1)
        line = line[:at] + text + line[at + len(text) :]
    source = tmp_path_factory.getbasetemp() / "script.txt"
    source.write_bytes(line.encode(errors="surrogatepass"))
    try:
        import_recording(PerfScript(source, fields), source, source.with_suffix(".hmdt"))
    except HmdError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("part", ["x", "a ", "1/1 ", "1 1 1.000001: 1 e: 1 |", " "])
def test_script_line_without_end_read_in_bounded_parts(tmp_path: Path, part: str) -> None:
    with pytest.raises(TraceError, match=r"script.txt:1 \(offset 0\)"):
        imported(f"x {part * (1 << 20)}x", tmp_path)
