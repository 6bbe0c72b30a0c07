"""Where a program's memory comes to lie: the typed front of personality(2)."""

from __future__ import annotations

import os

from hmd._native import lib


def fix_addresses() -> None:
    """Switch address randomisation off for what the calling process executes, and its children.

    Programs that are set-user-ID keep it. Raises OSError: EPERM where a seccomp filter forbids it,
    as those of containers do.
    """
    result = int(lib.hmd_fix_addresses())
    if result < 0:
        raise OSError(-result, os.strerror(-result))
