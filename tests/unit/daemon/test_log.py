"""Log lines with the journal's priority prefix, and with time and level elsewhere."""

import io
import logging
import os
import re
from pathlib import Path

from hmd.daemon.log import OnceLogger, goes_to_journal, start_log


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
