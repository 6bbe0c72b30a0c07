# SPDX-License-Identifier: MIT
"""Commands in the running guest: the host's end of the virtio port to guest/frames.c.

A frame is ``{u32 type, u32 job, u32 length}`` and a payload, little endian, on one stream socket.
One thread reads frames; any number of jobs may run at once. Output is copied once. A recorded run
and its replay must execute the same instructions, so that a ``Command`` has an environment of
its own: nothing of the caller's reaches it.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from signal import SIGKILL
from typing import Final

from hmd.base.errors import HmdError

Sink = Callable[[bytes], object]

_HEADER = struct.Struct("<III")
_STDIN_CHUNK = 65536
_WITH_STDIN = 1

BASE_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "TZ": "UTC",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
}
"""The whole environment of a recorded program: one thread, one arena, no random hashes.

It is not added to the caller's, because the environment lies on the program's stack and moves it.
"""


class GuestError(HmdError):
    """The emulated machine did not boot, or ended while it was needed."""


class Frame(IntEnum):
    """Frame types, as in guest/frames.h."""

    START = 1
    STDIN = 2
    SIGNAL = 3
    SYNC = 4
    POWEROFF = 5
    READY = 16
    STDOUT = 17
    STDERR = 18
    STDIN_TAKEN = 19
    EXIT = 20
    SYNCED = 21
    FAILED = 22


class Job:
    """A command in the guest, from :meth:`Agent.start`; much like subprocess.Popen."""

    def __init__(self, agent: Agent, number: int, args: list[str], sinks: tuple[Sink, Sink]):
        self.args = args
        self.returncode: int | None = None
        self._agent = agent
        self._number = number
        self._sinks = sinks
        self._refused: Exception | None = None  # what a sink raised
        self._ended = threading.Event()
        self._stdin_room = threading.Semaphore(1)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or minus the signal that ended the job.

        Raises subprocess.TimeoutExpired (the job continues), GuestError if the machine ended, and
        any exception of an output sink, after which the job is killed.
        """
        if not self._ended.wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        if self._refused is not None:
            raise self._refused
        if self.returncode is None:
            raise GuestError(self._agent.death)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code of an ended job, else None."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the job's process group; no effect on an ended job."""
        if not self._ended.is_set():
            self._agent.send(Frame.SIGNAL, self._number, struct.pack("<I", number))

    def kill(self) -> None:
        """Kill the job's process group."""
        self.send_signal(SIGKILL)

    def write(self, data: bytes) -> None:
        """Write to standard input, at the job's pace; input of an ended job is dropped."""
        for start in range(0, len(data), _STDIN_CHUNK):
            self._stdin(data[start : start + _STDIN_CHUNK])

    def close_stdin(self) -> None:
        """Close the job's standard input."""
        self._stdin(b"")

    def _stdin(self, data: bytes) -> None:
        self._stdin_room.acquire()
        if self._ended.is_set():
            self._stdin_room.release()
        else:
            self._agent.send(Frame.STDIN, self._number, data)

    def receive(self, kind: Frame, payload: bytes) -> None:
        """Handle one of this job's frames; called on the agent's reader thread."""
        if kind in (Frame.STDOUT, Frame.STDERR):
            self._put(self._sinks[kind is Frame.STDERR], payload)
        elif kind is Frame.STDIN_TAKEN:
            self._stdin_room.release()
        elif kind is Frame.EXIT:
            self.returncode = os.waitstatus_to_exitcode(struct.unpack("<I", payload)[0])
            self.abandon()

    def _put(self, sink: Sink, payload: bytes) -> None:
        """Pass output to a sink; a failing sink ends this job and no other."""
        if self._refused is not None:
            return
        try:
            sink(payload)
        except Exception as error:
            self._refused = error
            self.kill()

    def abandon(self) -> None:
        """Mark the job as ended: the connection is closed."""
        self._ended.set()
        self._stdin_room.release()


class Agent:
    """The protocol with one guest over a connected stream socket."""

    def __init__(self, connection: socket.socket):
        self.death = ""  # why the guest ended, if known
        self._socket = connection
        self._jobs: dict[int, Job] = {}
        self._next = 1
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._synced = threading.Event()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="hmd-agent", daemon=True)
        self._reader.start()

    @property
    def closed(self) -> bool:
        """Whether the guest closed the connection."""
        return self._closed.is_set()

    def wait_ready(self, timeout: float) -> bool:
        """Return True once the guest accepts commands; False on timeout or a closed connection."""
        return self._ready.wait(timeout) and not self.closed

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bool,
        stdout: Sink,
        stderr: Sink,
    ) -> Job:
        """Start a command; the reader thread calls the sinks with its output."""
        with self._lock:
            job = Job(self, self._next, list(argv), (stdout, stderr))
            number, self._next = self._next, self._next + 1
            self._jobs[number] = job
        strings = [cwd, *argv, *(f"{name}={value}" for name, value in env.items())]
        head = struct.pack("<III", _WITH_STDIN if stdin else 0, len(argv), len(env))
        self.send(Frame.START, number, head + b"".join(os.fsencode(s) + b"\0" for s in strings))
        if self.closed:
            job.abandon()
        return job

    def sync(self, timeout: float) -> bool:
        """Write all of the guest's dirty pages to the shares; return False on timeout."""
        self._synced.clear()
        self.send(Frame.SYNC, 0, b"")
        return self._synced.wait(timeout) and not self.closed

    def send(self, kind: Frame, job: int, payload: bytes) -> None:
        """Send one frame; the reader notices a closed connection."""
        try:
            with self._lock:
                self._socket.sendall(_HEADER.pack(kind, job, len(payload)) + payload)
        except OSError:
            self._hang_up()

    def close(self) -> None:
        """Close the connection; the guest powers off."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(5)
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as stream:
            while self._take(stream):
                pass
        self._hang_up()

    def _take(self, stream: io.BufferedReader) -> bool:
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return False
        number, identity, length = _HEADER.unpack(header)
        payload = stream.read(length)
        if len(payload) < length:
            return False
        kind = Frame(number)
        if kind is Frame.READY:
            self._ready.set()
        elif kind is Frame.SYNCED:
            self._synced.set()
        elif kind is Frame.FAILED:
            self.death = "the emulated machine failed: " + payload.decode(errors="replace")
        else:
            job = self._jobs.get(identity)
            if job is not None:
                job.receive(kind, payload)
                if kind is Frame.EXIT:
                    del self._jobs[identity]
        return True

    def _hang_up(self) -> None:
        self._closed.set()
        self._ready.set()
        self._synced.set()
        for job in list(self._jobs.values()):
            job.abandon()


@dataclass(frozen=True, slots=True)
class Command:
    """A program ready to run in ``folder``; ``env`` is its whole environment.

    A run succeeded when ``expect`` is in the output and the exit status is ``exit_status``.
    ``threads`` is how many CPUs it runs on, one thread each: they must wait for each other in the
    kernel, because one that polls executes as much in any replay. A server has two commands more,
    which run on the other CPU: ``ready`` is repeated until it succeeds, then ``load`` runs once,
    and ends the server. Both are empty for other programs.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    expect: str
    exit_status: int = 0
    threads: int = 1
    ready: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    folder: str = "/tmp"
