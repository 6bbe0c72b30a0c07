# SPDX-License-Identifier: MIT
"""hmd record: what it selects, and what it says where it cannot read or write a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hmd.base.errors import Exit, NotPermittedError, TransientError
from hmd.cli.main import main, parse
from hmd.linux.machine_report import write_report
from hmd.linux.targets import Selector, TargetSpec
from hmd.trace.reader import read_trace
from hmd.trace.writer import TraceWriter


def test_record_selectors_are_texts_that_select() -> None:
    words = "record -o x --cgroup /a.slice/* --cgroup b --unit u --user 0"
    args = parse(words.split())
    assert (args.cgroup, args.unit, args.user) == (["/a.slice/*", "b"], ["u"], "0")
    Selector(TargetSpec("recorded", cgroup=tuple(args.cgroup), unit=tuple(args.unit)))


def test_file_on_a_full_disk_is_to_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=r"cannot write the trace .*No space left"):
        TraceWriter(Path("/dev/full"), {})
    with pytest.raises(TransientError, match=r"cannot write .*No space left"):
        write_report(Path("/dev/full"), {"a": "x" * 100_000})


def test_trace_that_may_not_be_read_is_not_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    path = tmp_path / "t"
    TraceWriter(path, {}).close()
    os.seteuid(65534)
    try:
        with pytest.raises(NotPermittedError, match=r"cannot read the trace .*Permission denied"):
            read_trace(path)
        assert main(["trace", "info", str(path)]) == Exit.NOT_PERMITTED
    finally:
        os.seteuid(0)
    assert "Permission denied" in capsys.readouterr().err
    assert main(["trace", "info", str(tmp_path / "none")]) == Exit.FAILURE
