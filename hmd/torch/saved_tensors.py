# SPDX-License-Identifier: MIT
"""Saved tensors that leave the device and return: PyTorch's saved-tensor hooks, on a schedule.

Without a schedule, every tensor leaves when it is saved and returns when it is asked for, and the
program waits for both, as with ``torch.autograd.graph.save_on_cpu``; such a step can be recorded.
With one, storages leave and return by side streams at the schedule's events. A step that differs
from the schedule goes on without it.

Bytes are copied as they lie in the storage, so that a tensor comes back with its strides, at an
address of the same alignment, bit for bit.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hmd.tensors.capture.recorder import touched_range
from hmd.torch.device import ALIGNMENT, Device, FlashFile, HostBuffer, HostMemoryError, HostPool
from hmd.torch.schedule import Key, RecordedStep, SavedStorage, StepSchedule

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


@dataclass(eq=False)
class _Away:
    """Bytes ``first`` to ``end`` of a storage: on the device until they are released, then not.

    ``saved`` holds the tensors, with their versions, until then; ``live`` counts what may still ask
    for the bytes, ``asked`` how many have not yet.
    """

    first: int
    end: int
    storage: Any
    saved: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    live: int = 0
    unasked: int = 0
    on_flash: bool = False
    is_changed: bool = False
    fetched: int = -1
    pool: HostPool | None = None
    buffer: HostBuffer | None = None
    place: HostBuffer | None = None
    left: Any = None
    stream: Any = None
    written: Callable[[], None] | None = None
    read: Callable[[], None] | None = None
    back: torch.Tensor | None = None
    returned: Any = None


class _Saved:
    """What autograd holds in place of a tensor; its end is the end of the tensor's use."""

    __slots__ = ("away", "end", "geometry", "number", "seen", "tensor", "version")

    def __init__(self, number: int, tensor: torch.Tensor, end: Callable[[_Saved], None]) -> None:
        self.number, self.version, self.end = number, tensor._version, end
        self.tensor: torch.Tensor | None = tensor
        self.away: _Away | None = None
        self.seen: _Seen | None = None
        item = tensor.element_size()
        self.geometry = tensor.dtype, tensor.storage_offset() * item, tensor.shape, tensor.stride()

    def __del__(self) -> None:
        self.end(self)


@dataclass(eq=False)
class _Seen:
    """A storage of a recorded step: its packs, bytes, and the segments of its life.

    The weak reference keeps its number from being used again. ``returned`` has segments and bytes
    of its copies on the device.
    """

    reference: StorageWeakRef
    size: int
    born: int
    packs: list[int] = field(default_factory=list)
    first: int = 1 << 60
    end: int = 0
    freed: int = -1
    unpack: int = -1
    dead: int = -1
    returned: list[tuple[int, int, int]] = field(default_factory=list)


class SavedTensors:
    """The hooks; a context in which they are set, for the thread that runs the forward pass."""

    def __init__(self, device: Device, pool: HostPool, flash: FlashFile | None = None) -> None:
        self.device, self.pool, self._flash = device, pool, flash
        self._out, self._in = device.new_stream(), device.new_stream()
        self._hooks: Any = None
        self._writes: deque[tuple[Callable[[], None], HostPool, HostBuffer]] = deque()
        self._schedule: StepSchedule | None = None
        self._choose: Callable[[Key], StepSchedule | None] | None = None
        self._keys: list[Key] = []
        self._away: dict[int, _Away] = {}
        self._shared: dict[int, _Away | None] = {}
        self._is_recording = False
        self._marks: list[Callable[[], tuple[float, int]]] = []
        self._seen: dict[int, _Seen] = {}
        self._after: list[int] = []
        self._weights: set[int] = set()
        self.differs = False
        """Whether the step has left its schedule."""

    def __enter__(self) -> SavedTensors:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def begin(
        self,
        choose: Callable[[Key], StepSchedule | None],
        weights: Iterable[torch.Tensor],
        *,
        record: bool,
    ) -> None:
        """Begin a step; ``choose`` gives the schedule of a step that begins with an event.

        ``weights`` stay on the device.
        """
        self._weights = {each.untyped_storage()._cdata for each in weights if is_plain(each)}
        self._choose, self._schedule, self.differs = choose, None, False
        self._keys, self._away, self._shared = [], {}, {}
        self._is_recording = record
        self._marks, self._seen, self._after = [], {}, []
        if record:
            self.device.resume()

    @property
    def first_key(self) -> Key | None:
        """The step's first event."""
        return self._keys[0] if self._keys else None

    def end(self) -> RecordedStep | None:
        """End a step; return what was recorded of it."""
        schedule = self._schedule
        if schedule is not None and len(self._keys) != len(schedule.step.keys):
            self.differs = True
        if not self._is_recording:
            return None
        self._is_recording = False
        self._marks.append(self.device.mark())
        return self._recorded()

    def reserve(self, pieces: Sequence[int]) -> None:
        """Let go of host memory that a step without schedule took, and allocate a schedule's."""
        old = self.pool
        self.pool = HostPool(old.bound, self.device.chunk_bytes, self.device.host_empty)
        self.pool.reserve(pieces)

    def _event(self, key: Key) -> int:
        """Note an event and return its number; leave a schedule that does not have it."""
        number = len(self._keys)
        self._keys.append(key)
        if number == 0 and self._choose is not None:
            self._schedule = self._choose(key)
            self.differs = self._schedule is None
            self._is_recording &= self.differs
        if self._schedule is not None:
            keys = self._schedule.step.keys
            if number >= len(keys) or keys[number] != key:
                self._schedule, self.differs = None, True
        if self._is_recording:
            self._after.append(self._cut())
        return number

    def _cut(self) -> int:
        """End a segment of the recording; return the number of the next."""
        self._marks.append(self.device.mark())
        self.device.resume()
        return len(self._marks)

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        with self.device.beside():
            return self._save(tensor)

    def _save(self, tensor: torch.Tensor) -> _Saved:
        able = is_plain(tensor) and self.device.holds(tensor)
        size = int(tensor.untyped_storage().nbytes()) if able else 0
        key = ("pack", tuple(tensor.shape), str(tensor.dtype), size)
        number = self._event(key)
        saved = _Saved(number, tensor, self._end_use)
        able = able and size >= self.device.min_bytes
        able = able and tensor.untyped_storage()._cdata not in self._weights
        if self._schedule is not None:
            storage = self._schedule.step.storage_at.get(number)
            if able and storage in self._schedule.stays:
                self._add(saved, storage, self._schedule.step.storages[storage])
            self._act(number)
        elif able:
            self._leave_now(saved, number)
        if self._is_recording:
            self.device.resume()
        return saved

    def _add(self, saved: _Saved, number: int, storage: SavedStorage) -> None:
        """Let a tensor leave with its storage, which the schedule moves."""
        assert saved.tensor is not None
        away = self._away.get(number)
        memory = saved.tensor.untyped_storage()
        first, end = touched_range(saved.tensor)
        if away is None:
            away = self._away[number] = _Away(storage.first, storage.end, memory)
            assert self._schedule is not None
            away.on_flash = self._schedule.stays[number].on_flash
        same = away.storage is not None and away.storage._cdata == memory._cdata
        if same and away.left is None and storage.first <= first and end <= storage.end:
            self._join(saved, away)

    def _join(self, saved: _Saved, away: _Away) -> None:
        assert saved.tensor is not None
        away.saved.append((saved.tensor, saved.version))
        away.live += 1
        away.unasked += 1
        saved.away, saved.tensor = away, None

    def _leave_now(self, saved: _Saved, number: int) -> None:
        """Copy a tensor to the host, and wait for it; it stays where the host has no room."""
        tensor = saved.tensor
        assert tensor is not None
        storage = tensor.untyped_storage()
        first, end = touched_range(tensor)
        first = first // ALIGNMENT * ALIGNMENT
        if 2 * (end - first) > storage.nbytes():
            first, end = 0, int(storage.nbytes())
        if self._is_recording:
            saved.seen = self._note(tensor, number, first, end)
        if end <= first:
            return
        away = _Away(first, end, storage)
        # The other half of the host's memory is for what passes through it.
        away.on_flash = self._flash is not None and 2 * self.pool.bytes > self.pool.bound
        self._join(saved, away)
        if self._copy_out(away):
            self._release(away)
            self._share(saved, storage._cdata)
        elif saved.seen is not None:
            raise HostMemoryError(
                f"the step saves more than the host's {self.pool.bound} bytes: give host=... more,"
                " or flash=FOLDER"
            )

    def _share(self, saved: _Saved, storage: int) -> None:
        """Let a tensor have the host's bytes of another one that saved the same of a storage.

        Parts of a storage may have versions of their own, so that only the bytes tell.
        """
        away = saved.away
        other = self._shared.get(storage)
        self._shared[storage] = away
        if other is None or away is None or not other.live or other.buffer is None:
            return
        if (other.first, other.end) != (away.first, away.end) or away.buffer is None:
            return
        assert other.buffer.data is not None and away.buffer.data is not None
        self.device.finish(other.left)
        self.device.finish(away.left)
        size = away.end - away.first
        if torch.equal(other.buffer.data[:size], away.buffer.data[:size]):
            self.pool.give(away.buffer, None)
            self._shared[storage] = saved.away = other
            other.live += 1
            other.unasked += 1

    def _note(self, tensor: torch.Tensor, number: int, first: int, end: int) -> _Seen:
        storage = tensor.untyped_storage()
        seen = self._seen.get(storage._cdata)
        if seen is None:
            seen = _Seen(StorageWeakRef(storage), int(storage.nbytes()), len(self._marks))
            self._seen[storage._cdata] = seen
            weakref.finalize(storage, self._storage_freed, seen)
        seen.packs.append(number)
        seen.first, seen.end = min(seen.first, first), max(seen.end, end)
        return seen

    def _storage_freed(self, seen: _Seen) -> None:
        if self._is_recording and self._seen.get(seen.reference.cdata) is seen:
            seen.freed = self._cut()

    def _act(self, number: int) -> None:
        schedule = self._schedule
        assert schedule is not None
        away = self._away
        for each in schedule.outs.get(number, ()):
            if each in away:
                self._copy_out(away[each])
        for each in schedule.releases.get(number, ()):
            if each in away and away[each].left is not None:
                self._release(away[each])
        for each in schedule.reads.get(number, ()):
            if each in away and away[each].place is not None:
                self._read(away[each])
        for each in schedule.fetches.get(number, ()):
            if each in away and away[each].storage is None and away[each].live:
                self._fetch(away[each])

    def _take(self, size: int) -> HostBuffer | None:
        buffer = self.pool.take(size, grow=False)
        while buffer is None and self._writes:
            written, pool, staged = self._writes.popleft()
            written()
            pool.give(staged, None)
            buffer = self.pool.take(size, grow=False)
        return buffer or self.pool.take(size)

    def _copy_out(self, away: _Away) -> bool:
        """Begin to copy to the host, or through it to a file; return whether there was room."""
        device, size = self.device, away.end - away.first
        buffer = self._take(size)
        if buffer is None:
            return False
        assert buffer.data is not None
        source = bytes_of(away.storage, away.first, away.end, away.saved[0][0].device)
        device.wait(self._out, device.record(device.current_stream()))
        if buffer.after is not None:
            device.wait(self._out, buffer.after)
        data = buffer.data[:size]
        device.copy(data, source, self._out)
        away.left, away.stream = device.record(self._out), device.current_stream()
        if away.on_flash:
            assert self._flash is not None
            away.place, away.written = self._flash.write(data, away.left)
            self._writes.append((away.written, self.pool, buffer))
        else:
            away.pool, away.buffer = self.pool, buffer
        return True

    def _release(self, away: _Away) -> None:
        """Give device memory back, once the copy out has ended.

        The stream that may use the memory next waits for that. ``record_stream`` would keep it
        until the host has seen the copy's end, which lags, so that memory would not be as planned.
        """
        stream = self.device.current_stream()
        self.device.wait(stream, away.left)
        if stream != away.stream:
            self.device.keep(away.saved[0][0], self._out)
        away.is_changed |= any(tensor._version != version for tensor, version in away.saved)
        away.saved.clear()
        away.storage = None

    def _read(self, away: _Away) -> None:
        assert away.place is not None and self._flash is not None
        size = away.end - away.first
        buffer = self._take(size)
        if buffer is None:
            return
        assert buffer.data is not None
        away.pool, away.buffer = self.pool, buffer
        away.read = self._flash.read(away.place, buffer.data[:size], buffer.after)

    def _fetch(self, away: _Away) -> None:
        device = self.device
        if away.buffer is None:
            self._read(away)
        if away.read is not None:
            away.read()
            away.read = None
        if away.buffer is None or away.buffer.data is None:
            raise HostMemoryError("no host memory is free for what returns from flash")
        target = device.empty(away.end - away.first)
        device.wait(self._in, device.record(device.current_stream()))
        device.wait(self._in, away.left)
        device.copy(target, away.buffer.data[: away.end - away.first], self._in)
        away.back, away.returned = target, device.record(self._in)
        if away.place is not None and away.pool is not None:
            away.pool.give(away.buffer, away.returned)
            away.buffer = None
        away.fetched = len(self._marks)

    def _unpack(self, saved: _Saved) -> torch.Tensor:
        with self.device.beside():
            number = self._event(("unpack", saved.number))
            if self._schedule is not None:
                self._act(number)
            tensor = self._restore(saved)
            if saved.seen is not None:
                saved.seen.unpack = number if saved.seen.unpack < 0 else saved.seen.unpack
            if self._is_recording:
                self.device.resume()
            return tensor

    def _restore(self, saved: _Saved) -> torch.Tensor:
        away = saved.away
        if saved.tensor is not None:
            changed = saved.tensor._version != saved.version
        else:
            assert away is not None
            now = any(tensor._version != version for tensor, version in away.saved)
            changed = away.is_changed or now
        check_unchanged(not changed, saved.geometry[0], saved.geometry[2])
        if saved.tensor is not None:
            return saved.tensor
        assert away is not None
        if away.storage is not None:
            return view_of(away.storage, 0, saved.geometry, away.saved[0][0].device)
        if away.back is None:
            self._fetch(away)
        back, stream = away.back, self.device.current_stream()
        assert back is not None
        self.device.wait(stream, away.returned)
        self.device.keep(back, stream)
        away.unasked -= 1
        if away.unasked <= 0:
            away.back = None  # the tensors that were asked for hold it
        return view_of(back.untyped_storage(), away.first, saved.geometry, back.device)

    def _end_use(self, saved: _Saved) -> None:
        """Note that autograd has let go of a tensor."""
        away, seen = saved.away, saved.seen
        if seen is not None and self._is_recording:
            seen.dead = self._cut()
            if away is not None and away.live == 1 and away.fetched >= 0:
                seen.returned.append((away.fetched, seen.dead, away.end - away.first))
        if away is None:
            return
        away.live -= 1
        if away.live:
            return
        for event in (away.left if away.storage is not None else None, away.returned):
            if event is not None:
                self.device.wait(self.device.current_stream(), event)
        away.back = away.storage = None
        away.saved.clear()
        if away.buffer is not None and away.pool is not None:
            away.pool.give(away.buffer, self.device.record(self._in))
        if away.place is not None and self._flash is not None:
            self._flash.give(away.place)
        away.buffer = away.place = None

    def _recorded(self) -> RecordedStep:
        measured = [mark() for mark in self._marks]
        segments = len(measured)
        away = np.zeros(segments + 1, np.int64)
        storages: list[SavedStorage] = []
        storage_at: dict[int, int] = {}
        for each in self._seen.values():
            for begin, end, size in each.returned:
                away[begin] += size
                away[end] -= size
            low, high = self._after[each.packs[-1]], self._after[each.unpack]
            if each.unpack < 0 or not low <= each.freed < high:
                continue
            away[each.born] += each.size
            away[each.freed] -= each.size
            storage_at.update(dict.fromkeys(each.packs, len(storages)))
            dead = each.dead if each.dead >= 0 else segments
            packs = tuple(each.packs)
            storages.append(
                SavedStorage(each.size, packs, each.freed, each.unpack, dead, each.first, each.end)
            )
        peaks = np.array([peak for _, peak in measured], np.int64)
        return RecordedStep(
            tuple(self._keys),
            np.array([*self._after, segments], np.int64),
            np.array([seconds for seconds, _ in measured]),
            np.maximum(peaks - np.cumsum(away[:-1]), 0),
            tuple(storages),
            storage_at,
        )


def check_unchanged(unchanged: bool, dtype: object, shape: Iterable[int]) -> None:
    """Raise what autograd raises of a saved tensor that has changed since."""
    if not unchanged:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an"
            f" inplace operation: [{dtype} {list(shape)}]"
        )


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is nothing but bytes with strides."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


def bytes_of(storage: Any, first: int, end: int, device: Any) -> torch.Tensor:
    """Return bytes ``first`` to ``end`` of a storage."""
    empty = torch.empty(0, dtype=torch.uint8, device=device)
    return empty.set_(storage, first, (end - first,), (1,))


def view_of(
    storage: Any, first: int, geometry: tuple[Any, int, Any, Any], device: Any
) -> torch.Tensor:
    """Return a tensor of a geometry, in a storage that holds the bytes from ``first`` on."""
    dtype, offset, shape, stride = geometry
    empty = torch.empty(0, dtype=dtype, device=device)
    return empty.set_(storage, (offset - first) // empty.element_size(), shape, stride)
