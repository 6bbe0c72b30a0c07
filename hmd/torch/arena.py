# SPDX-License-Identifier: MIT
"""An arena for tensors that wait: whole pages, side by side, at the same addresses in each step.

PyTorch's allocator for the CPU packs tensors of any use into the same pages, half of them at other
addresses in each step, and Python cannot replace it. So what shall wait in slow memory is copied
here when autograd saves it, and the original is freed as without hmd. Places are given out first
fit, so that a step that does the same gets the same addresses, and in the order in which tensors
are saved: neighbours are saved, and used again, one after the other.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from typing import Any, Final

import torch

from hmd.base.units import MIB, PAGE_BYTES
from hmd.tensors.capture.recorder import touched_range
from hmd.torch.device import ALIGNMENT, HostBuffer, HostPool
from hmd.torch.saved_tensors import bytes_of, view_of

_SLAB_BYTES: Final = 64 * MIB
"""Memory is mapped in pieces of this size; only pages that are used take memory."""

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SavedCopy:
    """A tensor in the arena: ``data`` are bytes of its storage from ``first`` on."""

    __slots__ = ("data", "first", "geometry")

    def __init__(self, data: torch.Tensor, first: int, geometry: tuple[Any, int, Any, Any]) -> None:
        self.data, self.first, self.geometry = data, first, geometry

    def tensor(self) -> torch.Tensor:
        """Return the tensor, with the strides that it had."""
        return view_of(self.data.untyped_storage(), self.first, self.geometry, self.data.device)


class Arena:
    """Memory that saved tensors are copied to; what nothing refers to any more is given out again.

    It grows with what waits at once, and never shrinks.
    """

    def __init__(self) -> None:
        self._slabs: list[mmap.mmap] = []
        self._pool = HostPool(1 << 62, _SLAB_BYTES, self._map)
        self._returned: deque[HostBuffer] = deque()
        self._copies: dict[int, SavedCopy] = {}

    @property
    def bytes(self) -> int:
        """Address space that is mapped."""
        return self._pool.bytes

    def begin_step(self) -> None:
        """Forget which storages have been copied."""
        self._copies.clear()

    def save(self, tensor: torch.Tensor) -> tuple[SavedCopy, bool]:
        """Return a copy of a tensor, and whether it took memory: views of a storage share one."""
        storage = tensor.untyped_storage()
        offset = int(tensor.storage_offset()) * tensor.element_size()
        geometry = tensor.dtype, offset, tensor.shape, tensor.stride()
        known = self._copies.get(storage._cdata)
        first, end = touched_range(tensor)
        if known is not None and known.first <= first and end <= known.first + len(known.data):
            copy = SavedCopy(known.data, known.first, geometry)
            # Parts of a storage may have been written since.
            whole = _INTEGERS.get(tensor.element_size())
            if whole and torch.equal(copy.tensor().view(whole), tensor.view(whole)):
                return copy, False
        first = first // ALIGNMENT * ALIGNMENT
        if 2 * (end - first) > storage.nbytes():
            first, end = 0, int(storage.nbytes())
        data = self._take(end - first)
        data.copy_(bytes_of(storage, first, end, tensor.device))
        copy = self._copies[storage._cdata] = SavedCopy(data, first, geometry)
        return copy, True

    def _map(self, size: int) -> torch.Tensor:
        self._slabs.append(mmap.mmap(-1, size))
        return torch.frombuffer(self._slabs[-1], dtype=torch.uint8)

    def _take(self, size: int) -> torch.Tensor:
        while self._returned:
            self._pool.give(self._returned.popleft(), None)
        place = self._pool.take(-(-size // PAGE_BYTES) * PAGE_BYTES)
        assert place is not None
        slab = self._slabs[place.chunk]
        data = torch.frombuffer(slab, dtype=torch.uint8, count=size, offset=place.first)
        # The storage is of this place alone: it ends when neither autograd nor anyone else uses it.
        end = weakref.finalize(data.untyped_storage(), self._returned.append, place)
        end.atexit = False
        return data
