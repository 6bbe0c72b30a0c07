# SPDX-License-Identifier: MIT
"""The stage runner: a failing stage gives its default result and one log line."""

import io
import logging

import pytest

from hmd.base.errors import MissingError
from hmd.daemon.log import start_log
from hmd.metrics.status import Stage
from hmd.tick.stage_runner import REPEAT_S, StageRunner, StageTimer


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    start_log("info", stream, {})
    return stream


def failing(error: Exception) -> int:
    raise error


def test_stage_succeeds_result_and_time_returned(log: io.StringIO) -> None:
    runner = StageRunner(logging.getLogger("hmd"), Clock())
    runner.begin()
    assert runner.run(Stage.HEAT, lambda: 5, 0) == 5
    assert runner.run(Stage.HEAT, lambda: 6, 0) == 6
    assert runner.seconds == {Stage.HEAT: 0.5}
    assert not runner.failed


def test_failure_repeated_logged_once(log: io.StringIO) -> None:
    clock = Clock()
    runner = StageRunner(logging.getLogger("hmd"), clock)
    for _ in range(5):
        runner.begin()
        assert runner.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7) == 7
        assert runner.failed == {Stage.DECIDE}
    assert log.getvalue().count("decide failed, the daemon goes on") == 1
    assert log.getvalue().count("Traceback") == 1
    clock.now_s += REPEAT_S
    runner.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7)
    assert log.getvalue().count("decide failed") == 2


def test_expected_failure_logged_in_one_line(log: io.StringIO) -> None:
    runner = StageRunner(logging.getLogger("hmd"), Clock())
    runner.run(Stage.SAMPLE, lambda: failing(MissingError("no rings: raise LimitNOFILE")), 0)
    assert log.getvalue().endswith("error: sample: no rings: raise LimitNOFILE\n")
    assert "Traceback" not in log.getvalue()


def test_runner_keyboard_interrupt_raised(log: io.StringIO) -> None:
    runner = StageRunner(logging.getLogger("hmd"), Clock())

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(Stage.SAMPLE, interrupted, 0)


def test_timer_error_passes_and_time_is_taken() -> None:
    timer = StageTimer(Clock())
    timer.begin()
    with pytest.raises(KeyError):
        timer.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7)
    assert timer.seconds == {Stage.DECIDE: 0.25}
    assert not timer.failed
