# SPDX-License-Identifier: MIT
"""Workers of one process: ``PartialExchange`` as it is, with messages that never leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hmd.torch.shuffle import PartialExchange, Peers, SlotSampler, Wait

Result = TypeVar("Result")


class SimulatedGroup:
    """``size`` workers that one thread advances in turn."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size)
        self.summands: list[NDArray[np.int64]] = []
        self.mail: dict[tuple[int, int, int], bytes] = {}

    def workers(self, make: Callable[[Peers], Result]) -> list[Result]:
        """Return what ``make`` returns for each worker; all run at once, as sums need."""
        with ThreadPoolExecutor(self.size) as threads:
            return list(
                threads.map(lambda rank: make(SimulatedPeers(self, rank)), range(self.size))
            )


class SimulatedPeers(Peers):
    """One worker's view of a :class:`SimulatedGroup`."""

    def __init__(self, group: SimulatedGroup, rank: int) -> None:
        self.group = group
        self.rank, self.size, self.limit_s = rank, group.size, 1

    def send(self, data: memoryview, peer: int, tag: int) -> Wait:
        """Copy the bytes for the peer."""
        self.group.mail[self.rank, peer, tag] = bytes(data)
        return lambda _: None

    def receive(self, data: memoryview, peer: int, tag: int) -> Wait:
        """Note where the bytes go when they are waited for."""

        def wait(_: float) -> None:
            if (peer, self.rank, tag) not in self.group.mail:
                raise RuntimeError("the message was not sent")
            data[:] = self.group.mail.pop((peer, self.rank, tag))

        return wait

    def sum(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum over all threads of the group."""
        self.group.summands.append(values)
        self.group.barrier.wait()
        total: NDArray[np.int64] = np.sum(self.group.summands, axis=0)
        if self.group.barrier.wait() == 0:
            self.group.summands.clear()
        self.group.barrier.wait()
        return total


@dataclass(frozen=True, slots=True)
class ArrayLoader:
    """As much of a DataLoader as ``PartialExchange`` needs: yields slots, without their samples."""

    sampler: SlotSampler
    batch_size: int | None
    batch_sampler: Any = None

    def __iter__(self) -> Iterator[list[int]]:
        slots = list(self.sampler)
        size = self.batch_size or 1
        for first in range(0, len(slots), size):
            yield slots[first : first + size]


def epochs_in_step(
    workers: list[PartialExchange], batch_samples: int
) -> Iterator[list[list[int] | None]]:
    """Yield the slots that each worker uses in each step of an epoch; None where it has ended."""
    running = [worker.batches(ArrayLoader(worker.sampler, batch_samples)) for worker in workers]
    while True:
        step = [next(batches, None) for batches in running]
        if all(slots is None for slots in step):
            return
        yield step
