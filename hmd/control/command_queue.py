"""Admin requests on their way from the status socket's thread to the daemon's loop.

The socket's thread queues a request with :meth:`CommandQueue.put` and gets a future; the loop
executes what waits with :meth:`CommandQueue.serve`, between two ticks. A refusal is one line for
the caller. Each request is logged with the caller's uid and pid.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hmd.control.admin_commands import AdminCommands, Done
from hmd.control.permission import check_caller
from hmd.control.request import ControlRequest
from hmd.control.status_socket import AdminHandlers, PendingAnswer
from hmd.errors import HmdError
from hmd.machine.process_id import PROC

MAX_WAITING: Final = 64
"""Requests that wait for the loop."""


class CommandQueue:
    """The requests that wait; ``outcomes`` counts them by command and outcome."""

    def __init__(
        self,
        commands: AdminCommands,
        wake: Callable[[], None],
        log: logging.Logger,
        proc: Path = PROC,
    ) -> None:
        """Execute ``commands``; ``wake`` makes the loop call :meth:`serve`, from any thread."""
        self._functions, self._wake = commands.functions, wake
        self._log, self._proc = log, proc
        self._waiting: deque[tuple[ControlRequest, PendingAnswer]] = deque()
        self._lock = threading.Lock()
        self.outcomes: Counter[tuple[str, str]] = Counter(
            {(name, how): 0 for name in self._functions for how in ("done", "refused")}
        )

    @property
    def handlers(self) -> AdminHandlers:
        """The handler of each command, for the status socket."""
        return dict.fromkeys(self._functions, self.put)

    def put(self, request: ControlRequest) -> PendingAnswer:
        """Queue a request; the next :meth:`serve` answers it. For any thread."""
        pending: PendingAnswer = PendingAnswer()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise HmdError("too many admin requests wait: try again")
            self._waiting.append((request, pending))
        self._wake()
        return pending

    def serve(self, publish: Callable[[], None] = lambda: None) -> None:
        """Execute the requests that wait, in the order of their arrival.

        ``publish`` updates the status. It is called before each answer is sent, since a client
        that has its answer may ask for the status next.
        """
        while self._waiting:
            with self._lock:
                request, pending = self._waiting.popleft()
            if not pending.set_running_or_notify_cancel():
                continue
            error: Exception | None = None
            answer = b""
            try:
                done = self._execute(request)
                answer = json.dumps({"done": done.line, "nodes": done.nodes}).encode()
            except HmdError as refusal:
                error = refusal
            except Exception as defect:
                self._log.error("admin request %s failed", request.command, exc_info=defect)
                error = HmdError("the request failed: the daemon's log has the reason")
            publish()
            if error is None:
                pending.set_result(answer)
            else:
                pending.set_exception(error)

    def _execute(self, request: ControlRequest) -> Done:
        """Execute a request; raises ``HmdError`` where it is refused."""
        peer, outcome = request.peer, "refused"
        line = f"{request.command} by uid {peer.uid}, pid {peer.pid}"
        try:
            check_caller(peer, self._proc)
            done = self._functions[request.command](request)
            outcome = "done"
        except HmdError as error:
            self._log.warning("admin request: %s: refused: %s", line, error)
            raise
        finally:
            self.outcomes[request.command, outcome] += 1
        self._log.info("admin request: %s: %s", line, done.line)
        return done
