# SPDX-License-Identifier: MIT
import os
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.procfs import ProcessId, alive, identify, parse_stat, read_stat

LINE = (
    b"42 (%s) S 7 42 42 0 -1 4194560 1 0 0 0 5 3 0 0 20 0 1 0 900 2363392 300 18446744073709551615"
    b" 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def test_stat_line_fields_parsed() -> None:
    stat = parse_stat(LINE % b"cat")
    assert stat is not None
    assert stat.process == ProcessId(42, 900)
    assert (stat.parent_pid, stat.name, stat.cpu_ticks) == (7, b"cat", 8)
    assert stat.resident_bytes == 300 * os.sysconf("SC_PAGE_SIZE")
    assert not stat.exited
    assert not stat.kernel_thread


@given(st.binary(max_size=64))
def test_stat_line_with_any_name_parsed(name: Any) -> None:
    stat = parse_stat(LINE % name)
    assert stat is not None
    assert stat.name == name
    assert stat.process == ProcessId(42, 900)


@given(st.binary(max_size=300))
def test_stat_line_of_random_bytes_none(data: Any) -> None:
    assert parse_stat(data) is None


def test_stat_line_truncated_none_or_correct() -> None:
    whole = LINE % b"a) S (b"
    for length in range(len(whole)):
        stat = parse_stat(whole[:length])
        assert stat is None or stat.process.pid == 42


def test_identify_this_process_alive_with_parent() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert alive(me)
    assert not alive(ProcessId(me.pid, me.start_ticks + 1))
    stat = read_stat(os.getpid())
    assert stat is not None
    assert stat.parent_pid == os.getppid()


def test_identify_absent_process_none(tmp_path: Path) -> None:
    assert identify(1, tmp_path) is None
    assert identify(2**22 + 1) is None
