"""Where simulations run: in threads of this process, or on a Ray cluster.

A unit of work is a function of a module, a recorded program and other arguments that can be
pickled. It depends on nothing else, so that results are the same wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from hmd.emulate.recordings.miss_stream import MissStream

P = ParamSpec("P")
R = TypeVar("R")


class Executor(Protocol):
    """Runs units: any number of threads may call ``run``, each of which waits for its unit."""

    @property
    def threads(self) -> int:
        """How many threads of this process keep it busy."""

    def run(
        self,
        unit: Callable[Concatenate[MissStream, P], R],
        stream: MissStream,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Return what ``unit`` returns; its exceptions are raised here."""

    def stop(self) -> None:
        """Have units end that are running, where that is possible."""


class LocalExecutor:
    """Units run in the threads that ask, ``workers`` at a time."""

    def __init__(self, workers: int = 1) -> None:
        self.threads = workers

    def run(
        self,
        unit: Callable[Concatenate[MissStream, P], R],
        stream: MissStream,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Return what ``unit`` returns."""
        return unit(stream, *args, **kwargs)

    def stop(self) -> None:
        """Nothing ends: a thread cannot be interrupted."""


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
