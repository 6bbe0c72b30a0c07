"""DAMON's kdamonds in sysfs: their number, which run, and writes to their files.

The tree is /sys/kernel/mm/damon/admin (Documentation/admin-guide/mm/damon/usage.rst). Its files
return EBUSY, to readers too, while another write waits for a kdamond; both are therefore retried
for a while. This is the one place that turns errno of DAMON's files into messages.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hmd.errors import UnavailableError, unavailable_code
from hmd.machine.procfs import absent, read_int, read_text, write_text

KDAMONDS = "kernel/mm/damon/admin/kdamonds"
BUSY_S = 15.0
"""DAMON's files return EBUSY while another write waits, at most two aggregation intervals."""

_RETRY_S = 0.01
_STATE_S = 0.1


class DamonError(UnavailableError):
    """A failed write to DAMON's files; ``errno`` is the kernel's."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"DAMON: {what}: {_advice(code)}")
        self.errno = code
        self.exit_code = unavailable_code(code)


def _advice(code: int) -> str:
    match code:
        case errno.EACCES | errno.EPERM:
            return "not permitted: run hmd as root"
        case errno.EROFS:
            return (
                "/sys is read-only here: allow /sys/kernel/mm/damon (ReadWritePaths= in the unit)"
            )
        case errno.ENOENT:
            return "not in this kernel: it takes Linux 6.6 or newer with CONFIG_DAMON_VADDR"
        case errno.EBUSY:
            return "in use by another: stop damo, damon_reclaim, damon_lru_sort or damon_stat"
        case errno.EINVAL:
            return "refused by this kernel: it takes Linux 6.6 or newer with CONFIG_DAMON_VADDR"
        case _:
            return os.strerror(code)


Write = Callable[[Path, str], None]
Answer = TypeVar("Answer")


class Kdamonds:
    """The kdamonds of this machine.

    ``write`` writes a pseudo file or raises OSError; after EBUSY it is called again for up to
    ``busy_s``.
    """

    def __init__(self, sysfs: Path, write: Write = write_text, busy_s: float = BUSY_S) -> None:
        self.path = sysfs / KDAMONDS
        self._write = write
        self._busy_s = busy_s

    @property
    def count(self) -> int | None:
        """Number of kdamonds, None where this kernel has no DAMON."""
        return read_int(self.path / "nr_kdamonds")

    def running(self) -> dict[int, int | None]:
        """Return the thread of each running kdamond, None for one whose files are busy."""
        return {i: self._thread(i, _STATE_S) for i in range(self.count or 0) if self.is_on(i)}

    def is_on(self, index: int) -> bool:
        """Return True while a kdamond runs, and where its files are busy."""
        try:
            return self._read(f"{index}/state", _STATE_S) == "on"
        except DamonError:
            return True

    def thread(self, index: int) -> int | None:
        """Return the pid of a kdamond's thread, None where it has none or its files are busy."""
        return self._thread(index, self._busy_s)

    def _thread(self, index: int, busy_s: float) -> int | None:
        try:
            pid = int(self._read(f"{index}/pid", busy_s) or -1)
        except DamonError:
            return None
        return pid if pid > 0 else None

    def configured(self) -> bool:
        """Return True where a program has set a kdamond up."""
        each = range(self.count or 0)
        return any(read_int(self.path / f"{i}/contexts/nr_contexts") for i in each)

    def set_count(self, count: int) -> None:
        """Replace all kdamonds by this many new ones. Raises DamonError."""
        self.write("nr_kdamonds", count)

    def identity(self, index: int) -> int | None:
        """Return a number that only this directory of the kdamond has: its inode number."""
        try:
            return (self.path / str(index)).stat().st_ino
        except OSError as error:
            if absent(error):
                return None
            raise

    def switch_off(self, index: int) -> None:
        """Stop a kdamond, our own or another program's, if it runs. Raises DamonError."""
        # It may end meanwhile, with its last target.
        deadline = time.monotonic() + self._busy_s
        while self.is_on(index):
            try:
                self.write(f"{index}/state", "off")
            except DamonError as error:
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise
            if time.monotonic() > deadline:
                raise DamonError(errno.EBUSY, f"kdamond {index} does not stop")

    def write(self, name: str, value: object) -> None:
        """Write a file below ``kdamonds``; retries while it is busy. Raises DamonError."""
        path, text = self.path / name, str(value)
        _while_busy(lambda: self._write(path, text), self._busy_s, f"{name} = {text}")

    def _read(self, name: str, busy_s: float) -> str | None:
        return _while_busy(lambda: read_text(self.path / name), busy_s, name)


def _while_busy(ask: Callable[[], Answer], busy_s: float, what: str) -> Answer:
    """Return the answer; retries while it is EBUSY. Raises DamonError."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            return ask()
        except OSError as error:
            code = error.errno or errno.EIO
            if code != errno.EBUSY or time.monotonic() >= deadline:
                raise DamonError(code, what) from None
        time.sleep(_RETRY_S)
