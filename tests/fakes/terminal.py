# SPDX-License-Identifier: MIT
"""``hmd`` on a terminal: what it shows, and keys for it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Terminal:
    """A pseudo terminal with ``hmd`` in it; ``seen`` is all that it has shown."""

    def __init__(self, *arguments: str, lines: int = 30, term: str = "xterm") -> None:
        self._keys, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hmd", *arguments],
            stdin=inside,
            stdout=inside,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": term, "COLUMNS": "120", "LINES": str(lines)},
        )
        os.close(inside)
        self.seen = b""

    def wait_for(self, pattern: bytes, count: int = 1) -> None:
        """Read until a pattern has been shown so often; raises OSError where hmd ends before."""
        while len(re.findall(pattern, self.seen)) < count:
            self.seen += os.read(self._keys, 65536)

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def end(self) -> tuple[int, bytes]:
        """Read to the end, without which hmd blocks; return its exit status and errors."""
        while True:
            try:
                if not os.read(self._keys, 65536):
                    break
            except OSError:
                break
        _, error = self.process.communicate(timeout=30)
        return self.process.returncode, error

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._keys)


@contextmanager
def terminal(*arguments: str, lines: int = 30, term: str = "xterm") -> Iterator[Terminal]:
    """Run ``hmd`` in a terminal until the end of the context."""
    shown = Terminal(*arguments, lines=lines, term=term)
    try:
        yield shown
    finally:
        shown.close()
