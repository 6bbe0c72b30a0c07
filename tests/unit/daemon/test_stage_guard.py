"""A stage that fails costs its result, one log line, and nothing more."""

import io
import logging

import pytest

from hmd.daemon.log import start_log
from hmd.daemon.stage_guard import TELL_AGAIN_S, Guard
from hmd.errors import MissingError
from hmd.observe.tick_record import Stage


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


def test_results_pass_and_time_is_taken(log: io.StringIO) -> None:
    guard = Guard(logging.getLogger("hmd"), Clock())
    guard.begin()
    assert guard.run(Stage.HEAT, lambda: 5, 0) == 5
    assert guard.run(Stage.HEAT, lambda: 6, 0) == 6
    assert guard.seconds == {Stage.HEAT: 0.5}
    assert not guard.failed


def test_failures_are_told_once(log: io.StringIO) -> None:
    clock = Clock()
    guard = Guard(logging.getLogger("hmd"), clock)
    for _ in range(5):
        guard.begin()
        assert guard.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7) == 7
        assert guard.failed == {Stage.DECIDE}
    assert log.getvalue().count("decide failed, the daemon goes on") == 1
    assert log.getvalue().count("Traceback") == 1
    clock.now_s += TELL_AGAIN_S
    guard.run(Stage.DECIDE, lambda: failing(KeyError("x")), 7)
    assert log.getvalue().count("decide failed") == 2


def test_expected_failures_are_one_line(log: io.StringIO) -> None:
    guard = Guard(logging.getLogger("hmd"), Clock())
    guard.run(Stage.SAMPLE, lambda: failing(MissingError("no rings: raise LimitNOFILE")), 0)
    assert log.getvalue().endswith("error: sample: no rings: raise LimitNOFILE\n")
    assert "Traceback" not in log.getvalue()


def test_an_interrupt_passes(log: io.StringIO) -> None:
    guard = Guard(logging.getLogger("hmd"), Clock())

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.run(Stage.SAMPLE, interrupted, 0)
