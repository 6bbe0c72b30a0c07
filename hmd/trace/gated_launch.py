"""Start of a program that waits until its recorder is ready.

The child is forked and waits before its exec, so that its first access is sampled and its memory
policy is set before it has any memory. A pidfd reports its exit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence

from hmd.errors import TargetError, os_error
from hmd.machine.exit_watch import ProcessExit


class Launched:
    """A child held before its exec; ``release`` lets it go.

    ``prepare`` runs in the child before it waits, to set a memory policy for example; ``release``
    reports an OSError of it.
    """

    def __init__(self, command: Sequence[str], prepare: Callable[[], None] | None = None) -> None:
        self.command = tuple(command)
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        gate_read, self._gate = os.pipe()
        self._failed, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(gate_read, failed_write, prepare)
        os.close(gate_read)
        os.close(failed_write)
        self._exit = ProcessExit(self.pid)

    def _child(self, gate_read: int, failed_write: int, prepare: Callable[[], None] | None) -> None:
        """Wait for the recorder, then become the program; sends errno to the parent on failure."""
        try:
            os.close(self._gate)
            if prepare is not None:
                prepare()
            # The pipe closes without a byte if the recorder dies.
            if os.read(gate_read, 1):
                # As Popen does: Python ignores these, and an ignored signal survives exec.
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(self.command[0], self.command)
        except OSError as error:
            os.write(failed_write, str(error.errno).encode())
        finally:
            os._exit(127)

    def release(self) -> None:
        """Let the program start; raises TargetError if there is no such program."""
        with contextlib.suppress(BrokenPipeError):  # it could not be prepared, or was killed
            os.write(self._gate, b"g")
        os.close(self._gate)
        self._gate = -1
        failure = os.read(self._failed, 16)  # ends when exec closes it
        if failure:
            self._reap()
            code = int(failure)
            raise TargetError(f"cannot run {self.command[0]}: {os.strerror(code)}")

    def exited(self, timeout_s: float) -> bool:
        """Return whether it has ended, after waiting up to ``timeout_s``.

        Its entry in /proc stays until ``wait``.
        """
        return self._status is not None or self._exit.wait(timeout_s)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code (128 + N after signal N) once it has ended, else None."""
        if self._status is None and self.exited(timeout_s):
            self._reap()
        return self._status

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self._status is None:
            signal.pidfd_send_signal(self._exit.pidfd, signal.SIGKILL)
            self._reap()

    def close(self) -> None:
        """Kill it if it still waits for its release, and free descriptors."""
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1
            self._reap()
        self._exit.close()
        if self._failed >= 0:
            os.close(self._failed)
            self._failed = -1

    def _reap(self) -> None:
        if self._status is None:
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._status = code if code >= 0 else 128 - code


def attach(pid: int) -> ProcessExit:
    """Return the exit of a running process; raises TargetError if there is none."""
    try:
        return ProcessExit(pid)
    except ProcessLookupError:
        raise TargetError(f"no process {pid}: 'ps -e' lists those that run") from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise TargetError(f"{pid} is a thread, not a process: name its process") from None
        raise os_error(error, f"cannot watch process {pid}: {error.strerror}") from None
