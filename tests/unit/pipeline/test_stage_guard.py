"""The stage guard: a failing stage gives its default result and one log line."""

import io
import logging

import pytest

from hmd.daemon.log import start_log
from hmd.errors import MissingError
from hmd.observe.tick_record import Stage
from hmd.pipeline.stage_guard import REPEAT_S, StageGuard, StageTimer


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
    guard = StageGuard(logging.getLogger("hmd"), Clock())
    guard.begin()
    assert guard.run(Stage.HEAT, lambda: 5, 0) == 5
    assert guard.run(Stage.HEAT, lambda: 6, 0) == 6
    assert guard.seconds == {Stage.HEAT: 0.5}
    assert not guard.failed


def test_failure_repeated_logged_once(log: io.StringIO) -> None:
    clock = Clock()
    guard = StageGuard(logging.getLogger("hmd"), clock)
    for _ in range(5):
        guard.begin()
        assert guard.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7) == 7
        assert guard.failed == {Stage.DECIDE}
    assert log.getvalue().count("decide failed, the daemon goes on") == 1
    assert log.getvalue().count("Traceback") == 1
    clock.now_s += REPEAT_S
    guard.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7)
    assert log.getvalue().count("decide failed") == 2


def test_expected_failure_logged_in_one_line(log: io.StringIO) -> None:
    guard = StageGuard(logging.getLogger("hmd"), Clock())
    guard.run(Stage.SAMPLE, lambda: failing(MissingError("no rings: raise LimitNOFILE")), 0)
    assert log.getvalue().endswith("error: sample: no rings: raise LimitNOFILE\n")
    assert "Traceback" not in log.getvalue()


def test_guard_keyboard_interrupt_raised(log: io.StringIO) -> None:
    guard = StageGuard(logging.getLogger("hmd"), Clock())

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.run(Stage.SAMPLE, interrupted, 0)


def test_timer_error_passes_and_time_is_taken() -> None:
    timer = StageTimer(Clock())
    timer.begin()
    with pytest.raises(KeyError):
        timer.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7)
    assert timer.seconds == {Stage.DECIDE: 0.25}
    assert not timer.failed
