"""The limit of open files of this process (RLIMIT_NOFILE, getrlimit(2)).

hmd keeps a pidfd per process and a perf event per CPU, so that shells' limit of 1,024 is reached
where a service's never is.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import Final

RESERVED: Final = 512
"""Descriptors that pidfds leave to files, sockets and perf events."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one, which needs no privilege."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pidfds_most() -> int:
    """Return how many pidfds this process may hold and still open other files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(limit - RESERVED, limit // 2)
