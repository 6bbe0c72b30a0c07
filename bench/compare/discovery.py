"""How long the daemon in the guest takes to find a program: by its log, while the program runs."""

from __future__ import annotations

import threading
import time

from bench.compare.guest_daemon import GuestDaemon

_FOLLOWING = ": following pid "
_LOOK_S = 0.02


class Discovery:
    """Around a program's run: ``seconds`` until the daemon followed it, by the guest's clock.

    As long as the run, where it never did.
    """

    def __init__(self, daemon: GuestDaemon) -> None:
        """Look at the daemon's log; nothing is known yet."""
        self._daemon = daemon
        self._over = threading.Event()
        self.seconds = 0.0

    def __enter__(self) -> Discovery:
        """Begin to look."""
        self._began_s, self._before = time.monotonic(), self._daemon.told(_FOLLOWING)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no longer."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        found = False
        while not (found or self._over.wait(_LOOK_S)):
            found = self._daemon.told(_FOLLOWING) > self._before
        self.seconds = time.monotonic() - self._began_s
