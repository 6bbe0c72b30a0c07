# SPDX-License-Identifier: MIT
"""Where simulations run, in threads of this process or on a Ray cluster, and their results.

A unit of work is a function of a module, a recorded program and other arguments that can be
pickled. It depends on nothing else, so that results are the same wherever it runs.

A cluster is named by the address that ``ray start`` prints. Each node needs the same hmd, which a
unit checks. Recorded programs are sent once per node. A unit whose worker or node dies runs again
elsewhere. Needs the extra fleet.

Results are in a journal, so that an interrupted search can continue: one line of JSON per result
with a digest of all that it depends on (program, machine, settings, hmd's own code). An incomplete
line, after a kill, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import hmd
from hmd.base.errors import HmdError, UnreachableError, UsageError, missing_extra, os_error
from hmd.base.untrusted_files import parse_json
from hmd.emulate.recordings.misses import MissStream

P = ParamSpec("P")
R = TypeVar("R")

ANSWER_S: Final = 60.0
"""How long a cluster may take to answer, in seconds."""

# Units that wait in threads of this process; how often one is sent again.
_THREADS: Final = 256
_RETRIES: Final = 5
_POLL_S: Final = 0.5
_CONNECT_S: Final = 10.0
_PORT_MOST: Final = 65535

_PROBE: Final = """\
import logging, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
print(ray.cluster_resources().get("CPU", 0))
"""


class Executor:
    """Runs units in the threads that ask; ``threads`` of this process keep it busy."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def run(
        self,
        unit: Callable[Concatenate[MissStream, P], R],
        stream: MissStream,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Return what ``unit`` returns; its exceptions are raised here."""
        return unit(stream, *args, **kwargs)

    def stop(self) -> None:
        """Have units end that are running, where that is possible: not in threads."""


@contextmanager
def threads_of(executor: Executor) -> Generator[ThreadPoolExecutor]:
    """Give threads that keep an executor busy; after an exception, no further unit begins."""
    pool = ThreadPoolExecutor(executor.threads)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        executor.stop()
        raise
    finally:
        pool.shutdown()


class OtherCodeError(HmdError):
    """A node has another hmd."""


def check_cluster(address: str, answer_s: float) -> None:
    """Raise UnreachableError unless a cluster with CPUs answers within ``answer_s``.

    UsageError for what is no address. Ray tries for minutes, and ends its process: another one
    tries.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _PORT_MOST:
        raise UsageError(f"--ray {address}: no HOST:PORT, as ray start prints it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), min(answer_s, _CONNECT_S)).close()
    except OSError as error:
        raise _no_answer(address, error.strerror or str(error)) from error
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=answer_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(address, f"nothing in {answer_s:.0f} s") from None
    if probe.returncode:
        said = probe.stderr.decode(errors="replace").strip().splitlines()
        raise _no_answer(address, said[-1] if said else "no cluster")
    if float(probe.stdout.split()[-1]) < 1:
        raise UnreachableError(f"Ray cluster {address}: no node has a CPU for simulations")


def _no_answer(address: str, reason: str) -> UnreachableError:
    return UnreachableError(
        f"Ray cluster {address} does not answer ({reason}): start one with ray start --head, have"
        f" this machine join it with ray start --address {address}, or leave --ray out"
    )


def run_unit(
    unit: Callable[..., Any], code: str, stream: MissStream, *args: Any, **kwargs: Any
) -> Any:
    """Run a unit on a node of the cluster; OtherCodeError where the node's hmd is another one."""
    if code_digest() != code:
        raise OtherCodeError("a node has another hmd: install the same one on all nodes")
    return unit(stream, *args, **kwargs)


class RayCluster(Executor):
    """A connection to a cluster; a context manager, which ends it."""

    def __init__(self, address: str, answer_s: float = ANSWER_S) -> None:
        """Connect; MissingError without Ray, UnreachableError where no cluster answers."""
        try:
            import ray
        except ImportError:
            raise missing_extra("--ray", "Ray", "fleet", "or leave --ray out") from None
        check_cluster(address, answer_s)
        super().__init__(_THREADS)
        self._ray, self._address = ray, address
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        self._unit = ray.remote(run_unit).options(num_cpus=1, max_retries=_RETRIES)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._streams: dict[int, tuple[MissStream, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; units that still run there are ended."""
        self.stop()
        self._ray.shutdown()

    def stop(self) -> None:
        """End the units that are running."""
        self._stopped.set()

    def run(
        self,
        unit: Callable[Concatenate[MissStream, P], R],
        stream: MissStream,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Return what ``unit`` returns on some node; HmdError where its workers keep dying."""
        ray = self._ray
        task = self._unit.remote(unit, code_digest(), self._shared(stream), *args, **kwargs)
        while not ray.wait([task], timeout=_POLL_S)[0]:
            if self._stopped.is_set():
                ray.cancel(task, force=True)
                raise HmdError("ended before its result")
        try:
            result: R = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            # What the unit raised, as a local one would.
            raise error.cause or HmdError(f"Ray cluster {self._address}: {error}") from None
        except ray.exceptions.RayError as error:
            raise HmdError(
                f"Ray cluster {self._address}: a simulation failed {_RETRIES + 1} times"
                f" ({type(error).__name__}): look into the logs of its nodes, then --resume"
            ) from error
        return result

    def _shared(self, stream: MissStream) -> Any:
        """Return the program as the cluster stores it, once."""
        with self._lock:
            known = self._streams.get(id(stream))
            if known is None:  # with the stream, so that its id is not reused
                known = self._streams[id(stream)] = stream, self._ray.put(stream)
            return known[1]


_SOURCES: Final = (".c", ".h", ".py")


class Journal:
    """Results by key; with a ``file`` also those of earlier runs."""

    def __init__(self, file: Path | None = None) -> None:
        """Read the file, or create it; UnavailableError where that fails."""
        self._file, self._known = file, dict[str, Any]()
        if file is None:
            return
        try:
            with file.open("a+") as opened:
                opened.seek(0)
                lines = opened.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(file, error) from None
        for line in lines:
            try:
                entry = parse_json(line)
                self._known[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def get(self, key: str) -> Any:
        """Return the result, None if there is none."""
        return self._known.get(key)

    def put(self, key: str, result: Any) -> None:
        """Store a result; UnavailableError where it cannot be written."""
        self._known[key] = result
        if self._file is None:
            return
        try:
            with self._file.open("a") as opened:
                # Start a line, also after an incomplete one.
                opened.write("\n" + json.dumps({"key": key, "result": result}))
        except OSError as error:
            raise _unusable(self._file, error) from None


def _unusable(file: Path, error: OSError | UnicodeDecodeError) -> HmdError:
    reason = getattr(error, "strerror", None) or error
    return os_error(error, f"cannot store results in {file}: {reason}")


def digest(*parts: object) -> str:
    """Return a digest of the representations of these objects."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def stream_digest(stream: MissStream) -> str:
    """Return a digest of a program's misses; about 1 ns per byte."""
    state = hashlib.blake2b(digest_size=16)
    for column in (*stream.columns(), stream.page_address):
        state.update(column.data)
    return f"{state.hexdigest()}-{stream.user_pages}"


@cache
def code_digest() -> str:
    """Return a digest of hmd's code."""
    state = hashlib.blake2b(digest_size=16)
    root = Path(hmd.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.suffix in _SOURCES:
            state.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()
