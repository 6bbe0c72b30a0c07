"""The time until the daemon in the guest finds a program, from its log."""

from __future__ import annotations

import threading
import time

from bench.compare.guest_daemon import GuestDaemon

_FOLLOWING = ": following pid "
_LOOK_S = 0.02


class Discovery:
    """A context around a run: ``seconds`` by the guest's clock until the daemon followed it.

    The duration of the run if the daemon never did.
    """

    def __init__(self, daemon: GuestDaemon) -> None:
        """Note the current end of the daemon's log."""
        self._daemon = daemon
        self._over = threading.Event()
        self.seconds = 0.0

    def __enter__(self) -> Discovery:
        """Start to watch the log."""
        self._began_s, self._before = time.monotonic(), self._daemon.count_in_log(_FOLLOWING)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        found = False
        while not (found or self._over.wait(_LOOK_S)):
            found = self._daemon.count_in_log(_FOLLOWING) > self._before
        self.seconds = time.monotonic() - self._began_s
