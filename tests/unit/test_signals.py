# SPDX-License-Identifier: MIT
"""SIGINT in child processes of tests that a shell started as a background job."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_child_process_of_tests_ends_on_sigint() -> None:
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
