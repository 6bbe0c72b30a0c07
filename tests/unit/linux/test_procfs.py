# SPDX-License-Identifier: MIT
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.procfs import chosen, format_ids, parse_ids, read_bytes, read_int, read_text


@given(st.sets(st.integers(0, 1000)))
def test_id_list_round_trips(ids: Any) -> None:
    assert parse_ids(format_ids(sorted(ids))) == tuple(sorted(ids))


@given(st.text(max_size=100))
def test_id_list_of_random_text_in_range(text: Any) -> None:
    assert all(0 <= i < 1 << 16 for i in parse_ids(text))


@given(st.text(alphabet="0123456789-, \n", max_size=60))
def test_id_list_of_similar_text_sorted_and_unique(text: Any) -> None:
    ids = parse_ids(text)
    assert list(ids) == sorted(set(ids))


def test_id_list_ranges_parsed() -> None:
    assert parse_ids("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_ids("") == parse_ids(None) == parse_ids("\n") == ()
    assert parse_ids("0-9999999") == ()
    assert parse_ids("5-3") == ()


def test_bracketed_choice_parsed() -> None:
    assert chosen("always [madvise] never") == "madvise"
    assert chosen("plain") is None
    assert chosen(None) is None


def test_read_of_absent_or_malformed_file_none(tmp_path: Path) -> None:
    assert read_bytes(tmp_path / "no") is None
    assert read_bytes(tmp_path / "no/such") is None
    (tmp_path / "n").write_text("12x\n")
    assert read_int(tmp_path / "n") is None
    assert read_text(tmp_path / "n") == "12x"


def test_read_of_large_file_complete(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "f").write_bytes(data)
    assert read_bytes(tmp_path / "f") == data


def test_read_without_free_descriptors_raises(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open("/dev/null", os.O_RDONLY)]
    # The limit is one of numbers: those above the lowest free one may be in use.
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 9, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            for _ in range(64):
                opened.append(os.open("/dev/null", os.O_RDONLY))
                read_bytes(tmp_path / "f")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in opened:
            os.close(fd)
