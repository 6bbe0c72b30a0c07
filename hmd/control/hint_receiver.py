# SPDX-License-Identifier: MIT
"""Hints on the status socket: which process they are of, how many are taken.

``{"command": "hint", ...}`` is answered at once, in the socket's thread, so that hints reach a tick
without delaying one. A hint is of the process that connected (SO_PEERCRED), which a target has;
nothing in it names another. Most clients do not read the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

from hmd.base.errors import TargetError
from hmd.control.requests import ControlRequest, RequestRate, check_caller, is_administrator
from hmd.linux.procfs import PROC, ProcessId, read_stat
from hmd.policy.use_hints import HintTable


class HintReceiver:
    """Takes hints of processes that are ``followed``; ``outcomes`` counts them."""

    def __init__(
        self, table: HintTable, followed: Callable[[], Container[ProcessId]], proc: Path = PROC
    ) -> None:
        self._table, self._followed, self._proc = table, followed, proc
        self._rate = RequestRate()
        self.outcomes = {"done": 0, "refused": 0}

    def receive(self, request: ControlRequest) -> bytes:
        """Take a hint; raises HmdError where it is refused."""
        outcome = "refused"
        try:
            self._take(request)
            outcome = "done"
        finally:
            self.outcomes[outcome] += 1
        return b"{}"

    def _take(self, request: ControlRequest) -> None:
        peer = request.peer
        if not is_administrator(peer):
            self._rate.admit(peer)
        stat = read_stat(peer.pid, self._proc) if peer.pid else None
        if stat is None or stat.process not in self._followed():
            raise TargetError(f"process {peer.pid}, which sent the hint, belongs to no target")
        check_caller(peer, self._proc)
        self._table.accept(stat.process, request.arguments)
