# SPDX-License-Identifier: MIT
"""A device made of CPU tensors, on which every path of hmd.torch runs without an accelerator.

Its memory is counted in bytes, its time is modelled, and its copies are executed as late as the
order of streams and events allows, so that a wait that is missing shows as wrong numbers. It also
compares the order of accesses by vector clocks, as ``torch.cuda._sanitizer`` does.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from hmd.tensors.capture.recorder import RooflineRecorder, StorageTable, tensors_in
from hmd.tensors.memory_system import Roofline
from hmd.torch.device import Device


class StreamRaceError(RuntimeError):
    """Two streams use memory in an order that no event or wait settles."""


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


class CountedDevice(Device):
    """CPU tensors as the memory of a device of ``capacity`` bytes; a context, which counts them.

    Kernels take the time of a roofline, copies that of their link; ``torch.OutOfMemoryError`` where
    memory does not suffice. Copies refer to device memory weakly, as those of a GPU do.
    """

    min_bytes = 256
    chunk_bytes = 1 << 16

    def __init__(
        self, capacity: int, roofline: Roofline | None = None, link: Link | None = None
    ) -> None:
        self.capacity = capacity
        self.link = link or Link()
        self.flash_rate = self.link.flash
        self.copied_bytes = 0
        self.allocated = 0
        self._peak = self._mark_peak = 0
        self._model = RooflineRecorder(StorageTable(), roofline or Roofline())
        self._meter = _Meter(self)
        self._uncounted = 0
        self._blocks: dict[int, _Block] = {}
        self._host: set[int] = set()
        self._faults: list[str] = []
        self._transfers: deque[Callable[[], None]] = deque()
        self._transfers_done = 0
        self._transfers_clock_s = 0.0
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
        self._transfers_clock_s = end = max(self._transfers_clock_s, now) + size / self.link.flash
        self._transfers.append(job)
        last = self._transfers_done + len(self._transfers)

        def wait() -> None:
            while self._transfers_done < last:
                self._transfers_done += 1
                self._transfers.popleft()()
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
