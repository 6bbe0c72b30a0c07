"""Files that only their user may read: traces have the addresses that a program accesses."""

from __future__ import annotations

import os
import stat
from io import BufferedWriter
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600


def create_private(path: Path) -> BufferedWriter:
    """Open a file for writing with mode 0600, also where it exists; raises OSError.

    A pipe or device keeps its mode.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, PRIVATE)
        return os.fdopen(fd, "wb")
    except BaseException:
        os.close(fd)
        raise
