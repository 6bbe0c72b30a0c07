"""Admin requests on their way from the status socket's thread to the daemon's loop.

The socket's thread queues a request with :meth:`CommandQueue.put` and gets a future; the loop
executes what waits with :meth:`CommandQueue.serve`, between two ticks. A refusal is one line for
the caller. Each request is logged with the caller's uid and pid, those of users within limits.

Administrators come first and have places of their own. What only they may do is refused to others
in the socket's thread: such requests never reach the loop.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final, TypeAlias

from hmd.control.admin_commands import AdminCommands, Done
from hmd.control.permission import check_caller, check_command, is_administrator
from hmd.control.request import ControlRequest, Peer
from hmd.control.request_limits import RequestLog, RequestRate
from hmd.control.status_socket import AdminHandlers, PendingAnswer
from hmd.errors import HmdError
from hmd.machine.process_id import PROC

MAX_WAITING: Final = 64
"""Requests that wait for the loop: of administrators, and as many of all users."""

MAX_OWN_WAITING: Final = 16
"""Those of one user."""

PROMPT: Final = frozenset({"pause", "resume"})
"""Commands that set a flag alone, so that they can be executed within a tick."""

_Waiting: TypeAlias = tuple[ControlRequest, PendingAnswer]


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
        self._request_log, self._rate = RequestLog(log), RequestRate()
        self._administrators: deque[_Waiting] = deque()
        self._users: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self.users_cpu_s = 0.0
        """CPU time that requests of users who are no administrators took of the loop."""
        self.outcomes: Counter[tuple[str, str]] = Counter(
            {(name, how): 0 for name in self._functions for how in ("done", "refused")}
        )

    @property
    def handlers(self) -> AdminHandlers:
        """The handler of each command, for the status socket."""
        return dict.fromkeys(self._functions, self.put)

    def put(self, request: ControlRequest) -> PendingAnswer:
        """Queue a request; the next :meth:`serve` answers it. For the socket's thread.

        Raises ``HmdError`` where it is refused at once.
        """
        pending: PendingAnswer = PendingAnswer()
        try:
            self._queue(request, pending)
        except HmdError as error:
            with self._lock:
                self.outcomes[request.command, "refused"] += 1
            self._note(request.peer, logging.WARNING, f"{_line(request)}: refused: {error}")
            raise
        self._wake()
        return pending

    def _queue(self, request: ControlRequest, pending: PendingAnswer) -> None:
        peer = request.peer
        administrator = is_administrator(peer)
        if not administrator:
            check_command(request)
            self._rate.take(peer)
        with self._lock:
            waiting = self._administrators if administrator else self._users
            own = sum(other.peer.uid == peer.uid for other, _ in self._users)
            if len(waiting) >= MAX_WAITING or own >= MAX_OWN_WAITING:
                raise HmdError("too many admin requests wait: try again")
            waiting.append((request, pending))

    def _next(self, only: Container[str] | None) -> _Waiting | None:
        """Return the next request; None if it is not one of ``only`` these commands."""
        with self._lock:
            for waiting in (self._administrators, self._users):
                if waiting and (only is None or waiting[0][0].command in only):
                    return waiting.popleft()
                if waiting:
                    return None
        return None

    def serve(
        self, publish: Callable[[], None] = lambda: None, only: Container[str] | None = None
    ) -> None:
        """Execute the requests that wait: administrators' first, each in the order of arrival.

        Returns after as many as can wait at once, however many arrive meanwhile; before the first
        one of another command than ``only`` these.

        ``publish`` updates the status. It is called before each answer is sent, since a client
        that has its answer may ask for the status next.
        """
        self._request_log.flush()
        for _ in range(2 * MAX_WAITING):
            waiting = self._next(only)
            if waiting is None:
                return
            request, pending = waiting
            if not pending.set_running_or_notify_cancel():
                continue
            error: Exception | None = None
            answer, begun_s = b"", time.thread_time()
            try:
                done = self._execute(request)
                answer = json.dumps(
                    {**done.document, "done": done.line, "nodes": done.nodes}
                ).encode()
            except HmdError as refusal:
                error = refusal
            except Exception as defect:
                self._log.error("admin request %s failed", request.command, exc_info=defect)
                error = HmdError("the request failed: the daemon's log has the reason")
            publish()
            self._charge(request.peer, time.thread_time() - begun_s)
            if error is None:
                pending.set_result(answer)
            else:
                pending.set_exception(error)

    def _charge(self, peer: Peer, cpu_s: float) -> None:
        if not is_administrator(peer):
            self._rate.charge(peer, cpu_s)
            self.users_cpu_s += cpu_s

    def _execute(self, request: ControlRequest) -> Done:
        """Execute a request; raises ``HmdError`` where it is refused."""
        peer, outcome = request.peer, "refused"
        try:
            check_caller(peer, self._proc)
            done = self._functions[request.command](request)
            outcome = "done"
        except HmdError as error:
            self._note(peer, logging.WARNING, f"{_line(request)}: refused: {error}")
            raise
        finally:
            with self._lock:
                self.outcomes[request.command, outcome] += 1
        self._note(peer, logging.INFO, f"{_line(request)}: {done.line}")
        return done

    def _note(self, peer: Peer, level: int, text: str) -> None:
        if is_administrator(peer):
            self._log.log(level, "%s", text)
        else:
            self._request_log.write(peer, level, text)


def _line(request: ControlRequest) -> str:
    peer = request.peer
    return f"admin request: {request.command} by uid {peer.uid}, pid {peer.pid}"
