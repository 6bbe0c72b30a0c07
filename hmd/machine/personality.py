"""Address randomisation of a program: personality(2)."""

from __future__ import annotations

import os

from hmd._native import lib


def fix_addresses() -> None:
    """Switch address randomisation off for programs that the calling process executes.

    Set-user-ID programs keep it. Raises OSError: EPERM where a seccomp filter forbids it,
    as those of containers do.
    """
    result = int(lib.hmd_fix_addresses())
    if result < 0:
        raise OSError(-result, os.strerror(-result))
