# SPDX-License-Identifier: MIT
"""Devices that training runs on: streams, events, copies, and host memory beside them.

Two devices have one interface. :class:`AcceleratorDevice` is what PyTorch has
(``torch.accelerator``, ``torch.Stream``, ``torch.Event``). :class:`CountedDevice` is made of CPU
tensors: its memory is counted in bytes, its time is modelled, and its copies are executed as late
as the order of streams and events allows, so that a wait that is missing shows as wrong numbers.
It also compares the order of accesses by vector clocks, as ``torch.cuda._sanitizer`` does.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from hmd.base.errors import HmdError
from hmd.base.units import MIB
from hmd.tensors.capture.recorder import RooflineRecorder, StorageTable, tensors_in
from hmd.tensors.memory_system import Roofline

ALIGNMENT: Final = 512
"""Bytes; that of PyTorch's allocators for accelerators."""


class StreamRaceError(RuntimeError):
    """Two streams use memory in an order that no event or wait settles."""


class AcceleratorDevice:
    """A GPU, by the interfaces that PyTorch has for all accelerators.

    Tensors of less than ``min_bytes`` are not worth a copy. Host memory is allocated in pieces of
    ``chunk_bytes``, a power of two. Copies are of tensors of bytes, shape (n,).
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.accelerator.current_device_index() if device.index is None else device.index
        self._device = torch.device(device.type, index)
        self.name = str(self._device)
        self.min_bytes = 64 << 10
        self.chunk_bytes = 64 * MIB
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

    def synchronize(self) -> None:
        """Return when all streams have ended their work."""
        torch.accelerator.synchronize(self._device)

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


@dataclass(eq=False)
class CountedStream:
    """A stream of a counted device: what it was given and has not executed yet, and its clocks.

    ``number`` counts what the stream was given; ``seen`` has the numbers of other streams that
    precede what it is given next.
    """

    name: str
    pending: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    number: int = 0
    clock_s: float = 0.0
    seen: dict[CountedStream, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CountedEvent:
    """What a stream had been given when the event was recorded, and when that ends."""

    stream: CountedStream
    number: int
    clock_s: float
    seen: dict[CountedStream, int]


@dataclass(eq=False)
class _Block:
    """A storage in device memory: its bytes, the stream that owns it, and its last accesses."""

    size: int
    owner: CountedStream
    written: tuple[CountedStream, int]
    read: dict[CountedStream, int] = field(default_factory=dict)
    kept: set[CountedStream] = field(default_factory=set)


@dataclass(frozen=True)
class Link:
    """Rates of copies in bytes per second: to the device, from it, and of files."""

    inwards: float = 12e9
    outwards: float = 12e9
    flash: float = 3.2e9


class CountedDevice:
    """CPU tensors as the memory of a device of ``capacity`` bytes; a context, which counts them.

    Kernels take the time of a roofline, copies that of their link; ``torch.OutOfMemoryError`` where
    memory does not suffice. Copies refer to device memory weakly, as those of a GPU do.
    """

    def __init__(
        self, capacity: int, roofline: Roofline | None = None, link: Link | None = None
    ) -> None:
        self.name = "counted"
        self.capacity = capacity
        self.min_bytes = 256
        self.chunk_bytes = 1 << 16
        self.link = link or Link()
        self.copied_bytes = 0
        self.allocated = 0
        self._peak = self._mark_peak = 0
        self._model = RooflineRecorder(StorageTable(), roofline or Roofline())
        self._meter = _Meter(self)
        self._uncounted = 0
        self._blocks: dict[int, _Block] = {}
        self._host: set[int] = set()
        self._faults: list[str] = []
        self._files: deque[Callable[[], None]] = deque()
        self._files_done = 0
        self._files_clock_s = 0.0
        self._mark_s = 0.0
        self._current = [CountedStream("compute")]
        self._streams = [self._current[0]]

    def __enter__(self) -> CountedDevice:
        self._meter.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._meter.__exit__(*error)

    @contextmanager
    def stream(self, stream: CountedStream) -> Iterator[None]:
        """Let kernels run on another stream."""
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def current_stream(self) -> CountedStream:
        """Return the stream that kernels run on now."""
        return self._current[-1]

    def new_stream(self) -> CountedStream:
        """Return another stream."""
        self._streams.append(CountedStream(f"side {len(self._streams)}"))
        return self._streams[-1]

    def record(self, stream: CountedStream) -> CountedEvent:
        """Return an event: all that the stream has been given so far."""
        return CountedEvent(stream, stream.number, stream.clock_s, dict(stream.seen))

    def wait(self, stream: CountedStream, event: CountedEvent) -> None:
        """Let what the stream is given from now on begin after an event."""
        stream.clock_s = max(stream.clock_s, event.clock_s)
        for other, number in [*event.seen.items(), (event.stream, event.number)]:
            if other is not stream:
                stream.seen[other] = max(stream.seen.get(other, 0), number)
        if stream is self.current_stream():
            self.finish(event)
        elif stream is not event.stream:
            stream.number += 1
            stream.pending.append((stream.number, lambda: self.finish(event)))

    def finish(self, event: CountedEvent) -> None:
        """Execute what an event waits for, and nothing else."""
        pending = event.stream.pending
        while pending and pending[0][0] <= event.number:
            pending.popleft()[1]()

    def synchronize(self) -> None:
        """Execute what all streams were given."""
        for other in self._streams:
            self.wait(self.current_stream(), self.record(other))
        self._raise_faults()

    def empty(self, size: int) -> torch.Tensor:
        """Return device memory, whose bytes are those of NaN until they are written."""
        with self.beside():
            made = torch.full((size,), 0xFF, dtype=torch.uint8)
        self._block(made, new=True)
        return made

    def host_empty(self, size: int) -> torch.Tensor:
        """Return host memory, which is not counted."""
        with self.beside():
            made = torch.full((size,), 0xFF, dtype=torch.uint8)
        storage = made.untyped_storage()
        self._host.add(storage._cdata)
        weakref.finalize(storage, self._host.discard, storage._cdata)
        return made

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: CountedStream) -> None:
        """Give a stream a copy; it reads and writes when something waits for it."""
        size = int(target.numel())
        rate = self.link.inwards if self.holds(target) else self.link.outwards
        stream.clock_s += size / rate
        stream.number += 1
        self.copied_bytes += size
        for tensor, writes in ((source, False), (target, True)):
            if self.holds(tensor):
                self._access(self._block(tensor), stream, writes=writes)
        into, out_of = self._reference(target), self._reference(source)

        def execute() -> None:
            there, here = into(), out_of()
            if there is not None:
                with self.beside():
                    _ = there.fill_(0xFF) if here is None else there.copy_(here)

        stream.pending.append((stream.number, execute))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in the counted memory."""
        return tensor.untyped_storage()._cdata not in self._host

    def keep(self, tensor: torch.Tensor, stream: CountedStream) -> None:
        """Keep a tensor until a stream has executed what it was given so far."""
        block = self._block(tensor)
        if stream is block.owner:
            return
        stream.number += 1
        block.kept.add(stream)
        stream.pending.append((stream.number, partial(_drop, [tensor])))

    def later(self, job: Callable[[], None], size: int) -> Callable[[], None]:
        """Note a transfer of a file; it is done when something waits for it, in order."""
        now = self.current_stream().clock_s
        self._files_clock_s = end = max(self._files_clock_s, now) + size / self.link.flash
        self._files.append(job)
        last = self._files_done + len(self._files)

        def wait() -> None:
            while self._files_done < last:
                self._files_done += 1
                self._files.popleft()()
            self.current_stream().clock_s = max(self.current_stream().clock_s, end)

        return wait

    def mark(self) -> Callable[[], tuple[float, int]]:
        """Return what gives the seconds and the most bytes between the last ``resume`` and now."""
        found = self.current_stream().clock_s - self._mark_s, self._mark_peak
        return lambda: found

    def resume(self) -> None:
        """Begin to measure time and memory for the next ``mark``."""
        self._mark_s = self.current_stream().clock_s
        self._mark_peak = self.allocated

    def rates(self) -> tuple[float, float]:
        """Return bytes per second of copies to the device, and from it."""
        return self.link.inwards, self.link.outwards

    def seconds(self) -> float:
        """Return the modelled time of the current stream."""
        return self.current_stream().clock_s

    def peak_bytes(self) -> int:
        """Return the most bytes allocated at once since ``reset_peak``."""
        return self._peak

    def reset_peak(self) -> None:
        """Begin to measure ``peak_bytes``."""
        self._peak = self.allocated

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run what is no kernel of the device."""
        self._uncounted += 1
        try:
            with torch.no_grad():
                yield
        finally:
            self._uncounted -= 1

    def _reference(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
        """Return what gives a tensor of bytes, None where its device memory is free by then."""
        if not self.holds(tensor):
            return lambda: tensor
        weak = StorageWeakRef(tensor.untyped_storage())
        first, size = tensor.storage_offset(), tensor.numel()

        def get() -> torch.Tensor | None:
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is None:
                return None
            with self.beside():
                return torch.empty(0, dtype=torch.uint8).set_(storage, first, (size,))

        return get

    def _block(self, tensor: torch.Tensor, *, new: bool = False) -> _Block:
        """Return the block of a tensor; of one that is seen first, count its bytes."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, int(storage.nbytes())
        block = self._blocks.get(key)
        if block is None:
            stream = self.current_stream()
            block = self._blocks[key] = _Block(0, stream, (stream, stream.number if new else 0))
            weakref.finalize(storage, self._free, key)
        if block.size != size:
            self.allocated += size - block.size
            block.size = size
            self._peak = max(self._peak, self.allocated)
            self._mark_peak = max(self._mark_peak, self.allocated)
            if self.allocated > self.capacity:
                raise torch.OutOfMemoryError(
                    f"counted device out of memory: {self.allocated} bytes of {self.capacity}"
                )
        return block

    def _free(self, key: int) -> None:
        block = self._blocks.pop(key)
        self.allocated -= block.size
        for stream, number in [*block.read.items(), block.written]:
            if stream is block.owner or stream in block.kept:
                continue
            if block.owner.seen.get(stream, 0) < number:
                self._faults.append(
                    f"memory of stream {block.owner.name} was freed while stream {stream.name}"
                    " may use it"
                )

    def _access(self, block: _Block, stream: CountedStream, *, writes: bool) -> None:
        """Note an access; raise StreamRaceError where an earlier one may not have ended."""
        earlier = [block.written, *(block.read.items() if writes else ())]
        for other, number in earlier:
            if other is not stream and stream.seen.get(other, 0) < number:
                raise StreamRaceError(
                    f"stream {stream.name} {'writes' if writes else 'reads'} what stream"
                    f" {other.name} may still use"
                )
        if writes:
            block.written = stream, stream.number
            block.read.clear()
        else:
            block.read[stream] = stream.number

    def _raise_faults(self) -> None:
        if self._faults:
            raise StreamRaceError(self._faults.pop(0))

    def run_kernel(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Execute an operator on the current stream: count, time and order it."""
        if self._uncounted:
            return func(*args, **kwargs)
        self._raise_faults()
        stream = self.current_stream()
        self.finish(self.record(stream))
        schema = func._schema
        given: list[_Block] = []
        written: list[_Block] = []
        for number, argument in enumerate(schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found = [self._block(each) for each in tensors_in(value) if self._counts(each)]
            changed = argument.alias_info is not None and argument.alias_info.is_write
            (written if changed else given).extend(found)
        is_view = any(each.alias_info and not each.alias_info.is_write for each in schema.returns)
        if is_view:
            return func(*args, **kwargs)
        stream.number += 1
        for block in given:
            self._access(block, stream, writes=False)
        for block in written:
            self._access(block, stream, writes=True)
        result, nanoseconds = self._model.timed(func, args, kwargs)
        if not schema.name.startswith(("aten::empty", "aten::new_empty")):
            stream.clock_s += nanoseconds / 1e9
        for each in tensors_in(result):
            if self._counts(each):
                self._block(each, new=True)
        return result

    def _counts(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.layout == torch.strided and self.holds(tensor)


def _drop(held: list[torch.Tensor]) -> None:
    held.clear()


class _Meter(TorchDispatchMode):
    def __init__(self, device: CountedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._device.run_kernel(func, args, kwargs or {})


Device = AcceleratorDevice | CountedDevice


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
