"""Log lines for the journal and for people."""

import io
import logging
import os
import re
from pathlib import Path

from hmd.daemon.log import OnceLogger, goes_to_journal, start_log


def test_lines_for_people() -> None:
    stream = io.StringIO()
    start_log("info", stream, {})
    log = logging.getLogger("hmd.daemon")
    log.debug("hidden")
    log.warning("one tier only")
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: one tier only\n", stream.getvalue())


def test_lines_for_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        start_log("debug", stream, environ)
        log = logging.getLogger("hmd")
        log.error("two\nlines")
        log.debug("detail")
        stream.seek(0)
        assert stream.read() == "<3>two\n<3>lines\n<7>detail\n"


def test_stderr_redirected_away_from_the_journal_is_for_people(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as stream:
        assert not goes_to_journal(stream, {"JOURNAL_STREAM": "1:2"})
    assert not goes_to_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_once() -> None:
    stream = io.StringIO()
    start_log("info", stream, {})
    once = OnceLogger(logging.getLogger("hmd"))
    for _ in range(3):
        once.warn("numa_balancing is on")
    once.warn("another")
    assert stream.getvalue().count("numa_balancing is on") == 1
    assert stream.getvalue().count("another") == 1
