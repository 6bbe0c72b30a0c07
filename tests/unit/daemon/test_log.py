# SPDX-License-Identifier: MIT
"""Log lines, and those of processes that join and leave targets."""

from __future__ import annotations

import io
import logging
import os
import re
from pathlib import Path

import pytest

from hmd.daemon.log import MAX_LINES, PERIOD_S, OnceLogger, TargetLog, goes_to_journal, start_log
from hmd.linux.procfs import ProcessId


def test_log_without_journal_lines_have_time_and_level() -> None:
    stream = io.StringIO()
    start_log("info", stream, {})
    log = logging.getLogger("hmd.daemon")
    log.debug("hidden")
    log.warning("one tier only")
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: one tier only\n", stream.getvalue())


def test_log_to_journal_lines_have_priority_prefix(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        start_log("debug", stream, environ)
        log = logging.getLogger("hmd")
        log.error("two\nlines")
        log.debug("detail")
        stream.seek(0)
        assert stream.read() == "<3>two\n<3>lines\n<7>detail\n"


def test_journal_detection_redirected_stderr_is_false(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as stream:
        assert not goes_to_journal(stream, {"JOURNAL_STREAM": "1:2"})
    assert not goes_to_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_once_logger_repeated_warning_logged_once() -> None:
    stream = io.StringIO()
    start_log("info", stream, {})
    once = OnceLogger(logging.getLogger("hmd"))
    for _ in range(3):
        once.warn("numa_balancing is on")
    once.warn("another")
    assert stream.getvalue().count("numa_balancing is on") == 1
    assert stream.getvalue().count("another") == 1


@pytest.fixture
def stream() -> io.StringIO:
    made = io.StringIO()
    start_log("info", made, {})
    return made


def members(first: int, count: int) -> dict[ProcessId, str]:
    return {ProcessId(pid, 1): "web" for pid in range(first, first + count)}


def test_target_log_few_changes_each_logged(stream: io.StringIO) -> None:
    log = TargetLog(logging.getLogger("hmd"))
    log.log_changes({}, members(10, 2), 0.0)
    log.log_changes(members(10, 2), members(11, 1), 1.0)
    lines = [line.partition("info: ")[2] for line in stream.getvalue().splitlines()]
    assert lines == [
        "target web: following pid 10",
        "target web: following pid 11",
        "target web: left pid 10",
    ]


def test_target_log_target_that_forks_all_the_time_summarised(stream: io.StringIO) -> None:
    log = TargetLog(logging.getLogger("hmd"))
    ticks = int(2 * PERIOD_S)
    for second in range(ticks):
        log.log_changes(members(second, 1), members(second + 1, 1), float(second))
    log.summarise(2 * PERIOD_S)
    text = stream.getvalue()
    assert text.count("\n") == 2 * MAX_LINES + 4
    assert text.count(f"following {int(PERIOD_S) - MAX_LINES // 2} more processes") == 2
    assert text.count(f"left {int(PERIOD_S) - MAX_LINES // 2} more processes") == 2
