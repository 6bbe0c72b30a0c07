"""Log lines of processes that join and leave targets."""

from __future__ import annotations

import io
import logging

import pytest

from hmd.daemon.log import start_log
from hmd.daemon.target_log import MAX_LINES, PERIOD_S, TargetLog
from hmd.machine.process_id import ProcessId


@pytest.fixture
def stream() -> io.StringIO:
    made = io.StringIO()
    start_log("info", made, {})
    return made


def members(first: int, count: int) -> dict[ProcessId, str]:
    return {ProcessId(pid, 1): "web" for pid in range(first, first + count)}


def test_target_log_few_changes_each_logged(stream: io.StringIO) -> None:
    log = TargetLog(logging.getLogger("hmd"))
    log.changed({}, members(10, 2), 0.0)
    log.changed(members(10, 2), members(11, 1), 1.0)
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
        log.changed(members(second, 1), members(second + 1, 1), float(second))
    log.summarise(2 * PERIOD_S)
    text = stream.getvalue()
    assert text.count("\n") == 2 * MAX_LINES + 4
    assert text.count(f"following {int(PERIOD_S) - MAX_LINES // 2} more processes") == 2
    assert text.count(f"left {int(PERIOD_S) - MAX_LINES // 2} more processes") == 2
