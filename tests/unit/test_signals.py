"""The tests themselves, started as a shell starts a background job: with SIGINT ignored."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_children_react_to_sigint_wherever_tests_are_started() -> None:
    child = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", child], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == -signal.SIGINT
        finally:
            process.kill()
