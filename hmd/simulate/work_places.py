"""Where simulations run: in threads of this process, or on a Ray cluster.

A unit of work is a function of a module, a recorded program and other arguments that can be
pickled. It depends on nothing else, so that results are the same wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from hmd.emulate.miss_stream import MissStream

P = ParamSpec("P")
R = TypeVar("R")


class WorkPlace(Protocol):
    """Runs units: any number of threads may call ``run``, each of which waits for its unit."""

    @property
    def threads(self) -> int:
        """How many threads of this process keep the place busy."""

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


class LocalWork:
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
def threads_of(place: WorkPlace) -> Generator[ThreadPoolExecutor]:
    """Give threads that keep a place busy; where an exception ends it, no further unit begins."""
    pool = ThreadPoolExecutor(place.threads)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        place.stop()
        raise
    finally:
        pool.shutdown()
