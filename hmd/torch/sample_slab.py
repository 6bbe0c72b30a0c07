# SPDX-License-Identifier: MIT
"""The samples of one training process, pickled one after the other in one shared mapping.

The mapping is page-aligned and belongs to a memfd (memfd_create(2)): it has no name that could be
left behind, and processes of a DataLoader read it in place, forked or spawned. Reference counts of
a list of Python objects would copy page after page.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from collections.abc import Iterable, Mapping
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class SampleSlab:
    """A map-style dataset of samples by slot; each ``slab[slot]`` is a new object.

    ``samples`` are those of ``count`` slots, in order. Processes that were forked, or spawned with
    the slab in a pickle, read what this one replaces.
    """

    offsets: Ints
    """Where each slot's sample begins, from the mapping's begin."""
    lengths: Ints
    """Bytes of each slot's sample."""

    def __init__(self, samples: Iterable[object], count: int) -> None:
        self._count = count
        self._own(os.memfd_create("hmd-samples", os.MFD_CLOEXEC))
        self._end = self._index_bytes = 16 * count
        self._resize(self._end + 1)
        for slot, sample in enumerate(samples):
            self._append(slot, encode(sample))
        self._resize(self._end)

    @property
    def sample_bytes(self) -> int:
        """Bytes of memory for samples, without 16 bytes per sample for the index."""
        return len(self._memory) - self._index_bytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> Any:
        with self.view(slot) as data:
            return pickle.loads(data)

    def view(self, slot: int) -> memoryview:
        """Return the pickled sample in place; raises IndexError where there is no such slot."""
        start, length = int(self.offsets[slot]), int(self.lengths[slot])
        if start + length > len(self._memory):
            self._map()  # the process that replaced it has enlarged the mapping
        return memoryview(self._memory)[start : start + length]

    def replace(self, sources: Ints, targets: Ints, received: Mapping[int, memoryview]) -> None:
        """Move samples from ``sources`` to ``targets``, and put in those ``received``, by slot.

        As many samples are lost as are received, and these take their memory if the lengths are the
        same; else the slab is compacted first. No view may be in use.
        """
        into = np.array(sorted(received, key=lambda slot: len(received[slot])), np.int64)
        lost = np.setdiff1d(np.concatenate([targets, into]), sources)
        lost = lost[np.argsort(self.lengths[lost], kind="stable")]
        for column in (self.offsets, self.lengths):
            column[targets], column[into] = column[sources], column[lost]
        if self.lengths[into].tolist() == [len(received[slot]) for slot in into.tolist()]:
            for slot in into.tolist():
                self.view(slot)[:] = received[slot]
            return
        self.lengths[into] = 0
        self._end = self._index_bytes
        for slot in np.argsort(self.offsets, kind="stable").tolist():
            length = int(self.lengths[slot])
            self._memory.move(self._end, int(self.offsets[slot]), length)
            self.offsets[slot] = self._end
            self._end += length
        for slot in into.tolist():
            self._append(slot, received[slot])
        self._resize(self._end)

    def _append(self, slot: int, data: bytes | memoryview) -> None:
        start, self._end = self._end, self._end + len(data)
        if self._end > len(self._memory):
            self._resize(self._end + self._end // 64)
        self._memory[start : self._end] = data
        self.offsets[slot], self.lengths[slot] = start, len(data)

    def _resize(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)
        self._map()

    def _map(self) -> None:
        # Views of the mapping before are of the same memory.
        self._memory = mmap.mmap(self._descriptor, 0)
        index = np.frombuffer(self._memory, np.int64, 2 * self._count)
        self.offsets, self.lengths = index.reshape(2, self._count)

    def _own(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __getstate__(self) -> tuple[int, Any]:
        return self._count, DupFd(self._descriptor)

    def __setstate__(self, state: tuple[int, Any]) -> None:
        self._count = state[0]
        self._own(state[1].detach())
        self._map()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value).__module__ == "torch" and hasattr(value, "numpy"):
            try:
                return _tensor, (value.numpy(),)
            except (RuntimeError, TypeError):
                pass  # of a type, a device or a layout that numpy does not have
        return NotImplemented


def _tensor(array: NDArray[Any]) -> Any:
    from torch import from_numpy

    return from_numpy(array)


def encode(sample: object) -> bytes:
    """Return the sample pickled, tensors as arrays, which take less time and room."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(sample)
    return stream.getvalue()
