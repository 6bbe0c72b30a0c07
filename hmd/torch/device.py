# SPDX-License-Identifier: MIT
"""The device that training runs on, and host memory and files beside it.

By the interfaces that PyTorch has for all accelerators: ``torch.accelerator``, ``torch.Stream``,
``torch.Event``.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch

from hmd.base.errors import HmdError
from hmd.base.units import MIB

ALIGNMENT: Final = 512
"""Bytes; that of PyTorch's allocators for accelerators."""


class Device:
    """An accelerator. Copies are of tensors of bytes, shape (n,)."""

    min_bytes = 64 << 10
    """Smaller tensors are not worth a copy."""

    chunk_bytes = 64 * MIB
    """Host memory is allocated in pieces of this size, a power of two."""

    flash_rate = 3.2e9
    """Bytes per second that a file is assumed to carry."""

    def __init__(self, device: torch.device) -> None:
        index = torch.accelerator.current_device_index() if device.index is None else device.index
        self._device = torch.device(device.type, index)
        self._files = ThreadPoolExecutor(1, "hmd-flash")
        self._begin = self.record(self.current_stream())

    def current_stream(self) -> Any:
        """Return the stream that kernels of this thread run on now."""
        return torch.accelerator.current_stream(self._device)

    def new_stream(self) -> Any:
        """Return another stream, for copies."""
        return torch.Stream(self._device)

    def record(self, stream: Any) -> Any:
        """Return an event: all that the stream has been given so far."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Let what the stream is given from now on begin after an event."""
        stream.wait_event(event)

    def finish(self, event: Any) -> None:
        """Return when an event has happened."""
        event.synchronize()

    def empty(self, size: int) -> torch.Tensor:
        """Return device memory of the current stream."""
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def host_empty(self, size: int) -> torch.Tensor:
        """Return pinned host memory."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        """Give a stream a copy."""
        with stream:
            target.copy_(source, non_blocking=True)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in the device's memory."""
        return bool(tensor.device == self._device)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Do not give a tensor's memory out again before a stream has ended its work so far."""
        tensor.record_stream(stream)

    def beside(self) -> AbstractContextManager[object]:
        """Return a context for what is no kernel of the program."""
        return cast(AbstractContextManager[object], torch.no_grad())

    def later(self, job: Callable[[], None], size: int) -> Callable[[], None]:
        """Begin a transfer of a file in a thread; transfers follow each other."""
        return self._files.submit(job).result

    def mark(self) -> Callable[[], tuple[float, int]]:
        """Return what gives the seconds and the most bytes between the last ``resume`` and now."""
        begin, end = self._begin, self.record(self.current_stream())
        peak = int(torch.accelerator.max_memory_allocated(self._device))

        def measured() -> tuple[float, int]:
            end.synchronize()
            return begin.elapsed_time(end) / 1e3, peak

        return measured

    def resume(self) -> None:
        """Begin to measure time and memory for the next ``mark``."""
        torch.accelerator.reset_peak_memory_stats(self._device)
        self._begin = self.record(self.current_stream())

    def rates(self) -> tuple[float, float]:
        """Return bytes per second of copies to the device, and from it, of 64 MiB each."""
        here, there = self.host_empty(64 * MIB), self.empty(64 * MIB)
        stream = self.current_stream()
        found = []
        for target, source in ((there, here), (here, there)):
            self.copy(target, source, stream)
            begin = self.record(stream)
            for _ in range(4):
                self.copy(target, source, stream)
            end = self.record(stream)
            end.synchronize()
            found.append(4 * 64 * MIB / (begin.elapsed_time(end) / 1e3))
        return found[0], found[1]


class HostMemoryError(HmdError):
    """Host memory does not suffice; the line says for what."""


@dataclass(eq=False)
class HostBuffer:
    """A part of host memory; ``after`` is what must have happened before it is written."""

    chunk: int
    first: int
    size: int
    data: torch.Tensor | None
    after: Any = None


class HostPool:
    """Host memory that is allocated once and given out again, of at most ``bound`` bytes.

    First fit over pieces of ``chunk`` bytes, or of the power of two that a larger buffer needs:
    PyTorch's allocator of pinned memory rounds up to powers of two. Without ``allocate`` nothing is
    allocated: a rehearsal, which tells what a sequence of buffers needs.
    """

    def __init__(
        self, bound: int, chunk: int, allocate: Callable[[int], torch.Tensor] | None = None
    ) -> None:
        self.bound, self.bytes = bound, 0
        self._chunk = chunk
        self._allocate = allocate
        self._chunks: list[torch.Tensor | None] = []
        self.starts: list[int] = []
        self.pieces: list[int] = []
        """The sizes of what is allocated."""

        self._free: list[list[HostBuffer]] = []

    def reserve(self, pieces: Iterable[int]) -> None:
        """Allocate pieces of these sizes, as far as there are not so many yet."""
        for size, wanted in Counter(pieces).items():
            for _ in range(wanted - self.pieces.count(size)):
                self._grow(size)

    def take(self, size: int, *, grow: bool = True) -> HostBuffer | None:
        """Return a buffer, None where the bound leaves no room for it."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        for gaps in self._free:
            for number, gap in enumerate(gaps):
                if gap.size >= size:
                    rest = HostBuffer(gap.chunk, gap.first + size, gap.size - size, None, gap.after)
                    gaps[number : number + 1] = [rest] if rest.size else []
                    return self._made(gap.chunk, gap.first, size, gap.after)
        if not grow or not self._grow(size):
            return None
        return self.take(size)

    def _made(self, chunk: int, first: int, size: int, after: Any) -> HostBuffer:
        piece = self._chunks[chunk]
        data = None if piece is None else piece[first : first + size]
        return HostBuffer(chunk, first, size, data, after)

    def _grow(self, size: int) -> bool:
        piece = max(self._chunk, 1 << (size - 1).bit_length())
        if self.bytes + piece > self.bound:
            return False
        self.starts.append(self.bytes)
        self.pieces.append(piece)
        self.bytes += piece
        self._chunks.append(self._allocate(piece) if self._allocate else None)
        self._free.append([HostBuffer(len(self._chunks) - 1, 0, piece, None)])
        return True

    def give(self, buffer: HostBuffer, after: Any) -> None:
        """Take a buffer back, which may be written again after an event."""
        gaps = self._free[buffer.chunk]
        gaps.append(HostBuffer(buffer.chunk, buffer.first, buffer.size, None, after))
        gaps.sort(key=lambda gap: gap.first)
        merged: list[HostBuffer] = []
        for gap in gaps:
            if merged and merged[-1].first + merged[-1].size == gap.first:
                merged[-1].size += gap.size
                # Events are recorded when buffers come back: the one that came last has the latest.
                newest = gap.first == buffer.first and after is not None
                if newest or merged[-1].after is None:
                    merged[-1].after = gap.after
            else:
                merged.append(gap)
        self._free[buffer.chunk] = merged


class FlashFile:
    """A file without a name in a folder, for what host memory has no room for."""

    def __init__(self, folder: Path, device: Device) -> None:
        self._device = device
        self._file, name = tempfile.mkstemp(dir=folder)
        Path(name).unlink()
        weakref.finalize(self, os.close, self._file)
        self._places = HostPool(1 << 60, device.chunk_bytes)

    def write(self, data: torch.Tensor, after: Any) -> tuple[HostBuffer, Callable[[], None]]:
        """Write host memory to the file after an event; return its place and what waits for it."""
        size = int(data.numel())
        place = self._places.take(size)
        assert place is not None
        view, first = memoryview(data.numpy()), self._offset(place)

        def job() -> None:
            self._device.finish(after)
            done = 0
            while done < size:
                done += os.pwrite(self._file, view[done:], first + done)

        return place, self._device.later(job, size)

    def read(self, place: HostBuffer, data: torch.Tensor, after: Any) -> Callable[[], None]:
        """Read a place of the file into host memory after an event; return what waits for it."""
        size, view, first = int(data.numel()), memoryview(data.numpy()), self._offset(place)

        def job() -> None:
            if after is not None:
                self._device.finish(after)
            done = 0
            while done < size:
                count = os.preadv(self._file, [view[done:]], first + done)
                if not count:
                    raise OSError("the file of tensors ended early")
                done += count

        return self._device.later(job, size)

    def give(self, place: HostBuffer) -> None:
        """Take a place back."""
        self._places.give(place, None)

    def _offset(self, place: HostBuffer) -> int:
        return place.first + self._places.starts[place.chunk]
