# SPDX-License-Identifier: MIT
"""A child process with memory on a node of choice, whose pages a scenario moves."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import signal
from collections.abc import Callable

import numpy as np

from hmd.linux import page_calls
from hmd.linux.procfs import identify

PAGE, BLOCK = 4096, 2 << 20
MIB = 1 << 20
DEFAULT, BIND = 0, 2  # MPOL_DEFAULT, MPOL_BIND, linux/mempolicy.h

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
numa = ctypes.CDLL("libnuma.so.1", use_errno=True)
numa.mbind.argtypes = [
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_ulong),
    ctypes.c_ulong,
    ctypes.c_uint,
]


def checked(result: int | None) -> int:
    if result is None or result in (-1, 2**64 - 1):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def reserve(length: int, *, shared: bool = False, huge: bool = False) -> int:
    """Map memory at a multiple of 2 MiB, without touching it."""
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    flags = kind | mmap.MAP_ANONYMOUS
    access = mmap.PROT_READ | mmap.PROT_WRITE
    start = checked(libc.mmap(None, length + BLOCK, access, flags, -1, 0))
    start = -(-start // BLOCK) * BLOCK
    checked(libc.madvise(start, length, mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE))
    return start


def bind(start: int, length: int, node: int) -> None:
    mask = ctypes.c_ulong(1 << node)
    checked(numa.mbind(start, length, BIND, ctypes.byref(mask), 64, 0))


def view(start: int, length: int) -> np.ndarray:
    return np.frombuffer(memoryview((ctypes.c_char * length).from_address(start)), np.uint64)


def fill(start: int, length: int) -> None:
    words = view(start, length)
    words[:] = np.arange(len(words), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def digest(start: int, length: int) -> str:
    return hashlib.sha256(view(start, length).data).hexdigest()


class Target:
    """A child with memory of its own; answers for it until it is asked to end.

    Its memory is bound to the node on which it is made; ``hmd migrate`` moves it to another only if
    it does not stay bound.
    """

    def __init__(
        self,
        length: int,
        *,
        node: int = 0,
        stays_bound: bool = True,
        put: Callable[[int, int], object] = fill,
        prepare: Callable[[int], None] | None = None,
        **how: bool,
    ) -> None:
        self.length = length
        asks, self._ask = os.pipe()
        self._answer, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.close(self._ask)
            self._serve(asks, answers, node, stays_bound, put, prepare, how)
        os.close(asks)
        os.close(answers)
        self.start = int(self._read())
        process = identify(self.pid)
        assert process is not None
        self.process = process

    def _serve(
        self,
        asks: int,
        answers: int,
        node: int,
        stays_bound: bool,
        put: Callable[[int, int], object],
        prepare: Callable[[int], None] | None,
        how: dict[str, bool],
    ) -> None:
        with contextlib.suppress(BaseException):
            start = reserve(self.length, **how)
            bind(start, self.length, node)
            put(start, self.length)
            if not stays_bound:
                checked(numa.mbind(start, self.length, DEFAULT, None, 0, 0))
            if prepare is not None:
                prepare(start)
            os.write(answers, f"{start}\n".encode())
            while os.read(asks, 1):
                os.write(answers, f"{digest(start, self.length)}\n".encode())
        os._exit(0)

    def _read(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self._answer, 4096)
            assert part, "the target died"
            line += part
        return line.decode().strip()

    @property
    def digest(self) -> str:
        os.write(self._ask, b"?")
        return self._read()

    @property
    def addresses(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.length, PAGE, dtype=np.uint64)

    @property
    def range(self) -> str:
        return f"{self.start:x}-{self.start + self.length:x}"

    @property
    def nodes(self) -> np.ndarray:
        return page_calls.query_nodes(self.pid, self.addresses)

    def kill(self) -> None:
        """Kill it and what it has forked."""
        os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
