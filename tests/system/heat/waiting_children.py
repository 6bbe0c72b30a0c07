# SPDX-License-Identifier: MIT
"""Children of the test's process that do some work, then wait until the test is over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hmd.linux.procfs import ProcessId, identify


@contextmanager
def children(*works: Callable[[], None]) -> Iterator[list[ProcessId]]:
    """Children that have done their work and then wait."""
    pids: list[int] = []
    try:
        for work in works:
            ready, done = os.pipe()
            pid = os.fork()
            if not pid:
                try:
                    work()
                    os.write(done, b"1")
                    while True:
                        signal.pause()
                finally:
                    os._exit(1)
            pids.append(pid)
            os.close(done)
            assert os.read(ready, 1) == b"1"
            os.close(ready)
        found = [identify(pid) for pid in pids]
        yield [process for process in found if process is not None]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
