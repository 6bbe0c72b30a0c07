"""Which processes a caller of the status socket may see: administrators all, users their own.

Names, sizes and heat of another user's processes are for administrators: heat maps show addresses,
and when a program accesses what. Sums of targets are for everyone who may connect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from hmd.control.permission import is_administrator, owns
from hmd.control.request import Peer
from hmd.machine.process_id import PROC, ProcessId


def visible_to(peer: Peer, proc: Path = PROC) -> Callable[[ProcessId], bool]:
    """Return the predicate of one request; it asks the kernel once per process."""
    if is_administrator(peer):
        return lambda _: True
    return cache(lambda process: owns(peer, process, proc))
