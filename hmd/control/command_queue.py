"""Orders of people, taken down by the status socket's thread and carried out between two ticks.

Takes requests with their callers' credentials, gives promises; the daemon's loop calls
:meth:`CommandQueue.serve`. Whatever is wrong with an order is one line for the caller, and each is
logged with the caller's uid and pid.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hmd.control.admin_commands import Commands, Done
from hmd.control.permission import check_caller
from hmd.control.request import ControlRequest
from hmd.control.status_socket import Orders, Promise
from hmd.errors import HmdError
from hmd.machine.process_id import PROC

MAX_WAITING: Final = 64
"""Orders that wait for the loop."""


class CommandQueue:
    """The orders that wait, and what each does; ``told`` counts them by command and outcome."""

    def __init__(
        self,
        commands: Commands,
        wake: Callable[[], None],
        log: logging.Logger,
        proc: Path = PROC,
    ) -> None:
        """Obey ``commands``; ``wake`` has the loop call :meth:`serve`, from any thread."""
        self._does, self._wake = commands.does, wake
        self._log, self._proc = log, proc
        self._waiting: deque[tuple[ControlRequest, Promise]] = deque()
        self._lock = threading.Lock()
        self.told: Counter[tuple[str, str]] = Counter(
            {(name, how): 0 for name in self._does for how in ("done", "refused")}
        )

    @property
    def orders(self) -> Orders:
        """What the status socket hands on."""
        return dict.fromkeys(self._does, self.take)

    def take(self, request: ControlRequest) -> Promise:
        """Take an order down; its answer comes with the next :meth:`serve`. For any thread."""
        promise: Promise = Promise()
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise HmdError("too many orders wait: try again")
            self._waiting.append((request, promise))
        self._wake()
        return promise

    def serve(self, tell: Callable[[], None] = lambda: None) -> None:
        """Carry out what waits, in the order in which it came.

        ``tell`` has the status say so; it is called before the answer goes out, as whoever gets
        that may ask for the status next.
        """
        while self._waiting:
            with self._lock:
                request, promise = self._waiting.popleft()
            if not promise.set_running_or_notify_cancel():
                continue
            error: Exception | None = None
            answer = b""
            try:
                done = self._carry_out(request)
                answer = json.dumps({"done": done.line, "nodes": done.nodes}).encode()
            except HmdError as refusal:
                error = refusal
            except Exception as defect:
                self._log.error("order %s failed", request.command, exc_info=defect)
                error = HmdError("the order failed: the daemon's log says why")
            tell()
            if error is None:
                promise.set_result(answer)
            else:
                promise.set_exception(error)

    def _carry_out(self, request: ControlRequest) -> Done:
        """Do it; raises where it is refused."""
        peer, outcome = request.peer, "refused"
        line = f"{request.command} by uid {peer.uid}, pid {peer.pid}"
        try:
            check_caller(peer, self._proc)
            done = self._does[request.command](request)
            outcome = "done"
        except HmdError as error:
            self._log.warning("order: %s: refused: %s", line, error)
            raise
        finally:
            self.told[request.command, outcome] += 1
        self._log.info("order: %s: %s", line, done.line)
        return done
