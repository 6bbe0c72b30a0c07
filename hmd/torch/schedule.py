# SPDX-License-Identifier: MIT
"""From a recorded step to a schedule of what its saved tensors do: leave, wait, return.

A program gives control at its events: when autograd saves a tensor (pack) and when it asks for it
back (unpack). The step is cut into segments at events, and where a saved storage is freed. Storages
that only autograd holds while they wait are what may move; all other memory of a segment was
measured. Where memory does not suffice, the storages that wait longest leave (Belady's choice), and
return as late as the link allows.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

import numpy as np

from hmd.base.errors import HmdError
from hmd.cli.output import format_bytes
from hmd.tensors.trace import Floats, Ints
from hmd.torch.device import HostMemoryError, HostPool

Key = tuple[object, ...]
"""What identifies an event: of a pack shape, type and bytes; of an unpack the event of its pack."""


class DeviceMemoryError(HmdError):
    """Device memory does not suffice for a step whose saved tensors all leave."""


@dataclass(frozen=True)
class SavedStorage:
    """A storage of ``size`` bytes that waits for backward.

    It is saved at the events ``packs``; from segment ``freed`` on only autograd refers to it. It is
    first asked for at event ``unpack``, and no more used from segment ``dead`` on. Saved are the
    bytes from ``first`` to ``end``.
    """

    size: int
    packs: tuple[int, ...]
    freed: int
    unpack: int
    dead: int
    first: int
    end: int


@dataclass(frozen=True)
class RecordedStep:
    """E events and the S segments between and around them.

    ``after`` (E + 1,) is the segment that follows each event, and S. ``seconds`` (S,) are times of
    kernels; ``fixed_bytes`` (S,) the most bytes that were allocated besides ``storages``.
    ``storage_at`` numbers the storage of the events that save one.
    """

    keys: tuple[Key, ...]
    after: Ints
    seconds: Floats
    fixed_bytes: Ints
    storages: tuple[SavedStorage, ...]
    storage_at: dict[int, int]

    @property
    def plain_peak_bytes(self) -> int:
        """Most bytes at once where nothing leaves."""
        return int(_profile(self, {}).max())


@dataclass(frozen=True)
class Limits:
    """Bytes of the device, the host and files, and bytes per second to the device and from it."""

    device_bytes: int
    host_bytes: int
    flash_bytes: int
    inwards: float
    outwards: float
    flash: float
    chunk_bytes: int


@dataclass(frozen=True)
class Stay:
    """A storage is away: it leaves at an event and is fetched at another, from the host or flash.

    From flash, ``read`` is the event at which its file is read to the host.
    """

    out: int
    fetch: int
    on_flash: bool = False
    read: int = -1


@dataclass(frozen=True)
class StepSchedule:
    """What happens at each event, by number of storage, and what the step will cost.

    ``outs``, ``releases``, ``reads`` and ``fetches`` happen in this order. At a release the
    device's memory comes back, after the copy out has ended.
    """

    step: RecordedStep
    stays: dict[int, Stay]
    outs: dict[int, list[int]]
    releases: dict[int, list[int]]
    reads: dict[int, list[int]]
    fetches: dict[int, list[int]]
    seconds: float
    peak_bytes: int
    host_pieces: tuple[int, ...]
    flash_bytes: int

    @property
    def host_bytes(self) -> int:
        """Host memory that the storages need."""
        return sum(self.host_pieces)

    @property
    def ideal_seconds(self) -> float:
        """The step's time where nothing moves."""
        return float(self.step.seconds.sum())

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross the link per step, out and back."""
        return 2 * sum(self.step.storages[each].size for each in self.stays)


def _profile(step: RecordedStep, stays: dict[int, Stay]) -> Ints:
    """Return the bytes of each segment, (S,), where copies out take no time."""
    change = np.zeros(len(step.seconds) + 1, np.int64)
    for number, storage in enumerate(step.storages):
        stay = stays.get(number)
        change[step.after[storage.packs[0]]] += storage.size
        change[storage.dead] -= storage.size
        if stay is not None:
            change[max(storage.freed, step.after[stay.out])] -= storage.size
            change[step.after[stay.fetch]] += storage.size
    return step.fixed_bytes + np.cumsum(change[:-1])


def plan_step(step: RecordedStep, limits: Limits) -> StepSchedule:
    """Return a schedule that keeps the limits.

    Raises DeviceMemoryError or HostMemoryError where there is none.
    """
    stays = _on_flash(step, limits, _leaving(step, limits))
    stays = _fetched(step, limits, stays)
    try:
        return _timed(step, limits, stays)
    except HostMemoryError:  # read from files when it is needed, not ahead
        late_reads = {
            number: replace(stay, read=stay.fetch if stay.on_flash else -1)
            for number, stay in stays.items()
        }
        return _timed(step, limits, late_reads)


def _leaving(step: RecordedStep, limits: Limits) -> dict[int, Stay]:
    """Return storages that wait longest from where memory does not suffice on (Belady's choice).

    Each is away as long as it can be.
    """
    stays: dict[int, Stay] = {}
    profile = _profile(step, stays)
    able = sorted(range(len(step.storages)), key=lambda each: -step.storages[each].unpack)
    for segment in range(len(profile)):
        for number in able:
            if profile[segment] <= limits.device_bytes:
                break
            storage = step.storages[number]
            low, high = _away_between(step, storage)
            if number not in stays and low <= segment < high:
                stays[number] = Stay(storage.packs[-1], storage.unpack)
                profile[low:high] -= storage.size
        if profile[segment] > limits.device_bytes:
            raise DeviceMemoryError(
                f"the step needs {format_bytes(profile[segment])} of device memory with all saved"
                f" tensors away, and has {format_bytes(limits.device_bytes)};"
                f" {format_bytes(step.fixed_bytes.min())} are always there (weights, gradients,"
                " optimizer state): give more, stream the optimizer's state"
                " (hmd.torch.offloaded), or take a smaller batch"
            )
    return stays


def _away_between(step: RecordedStep, storage: SavedStorage) -> tuple[int, int]:
    """Return the first segment in which a storage can be away, and the one after the last."""
    out = int(step.after[storage.packs[-1]])
    return max(storage.freed, out), int(step.after[storage.unpack])


def _on_flash(step: RecordedStep, limits: Limits, stays: dict[int, Stay]) -> dict[int, Stay]:
    """Return the stays with so many on flash that the host's memory suffices."""
    away = sorted(stays, key=lambda each: step.storages[each].unpack - stays[each].out)
    while True:
        need = sum(_host_pieces(step, stays, limits.chunk_bytes))
        if need <= limits.host_bytes:
            break
        rest = [each for each in away if not stays[each].on_flash]
        if not limits.flash_bytes or not rest:
            raise HostMemoryError(
                f"the plan needs {format_bytes(need)} of host memory, and has"
                f" {format_bytes(limits.host_bytes)}: give"
                " host=... more, or flash=FOLDER with room for files"
            )
        stays[rest[-1]] = Stay(stays[rest[-1]].out, stays[rest[-1]].fetch, on_flash=True)
    size = sum(step.storages[each].size for each, stay in stays.items() if stay.on_flash)
    if size > limits.flash_bytes:
        raise HostMemoryError(
            f"the plan needs {size} bytes of flash, and the folder has {limits.flash_bytes}"
        )
    return stays


def _host_pieces(step: RecordedStep, stays: dict[int, Stay], chunk: int) -> list[int]:
    """Return the pieces that a pool needs for the stays, by a rehearsal of the step.

    What goes to flash passes through the host, on its way out and back.
    """
    pool = HostPool(1 << 60, chunk)
    ends: dict[int, list[int]] = defaultdict(list)
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, stay in stays.items():
        end = int(np.searchsorted(step.after[:-1], step.storages[number].dead, "right"))
        if stay.on_flash:
            begins[stay.out].append((number, stay.out + 1))
            read = stay.fetch if stay.read < 0 else stay.read
            begins[max(read, stay.out + 1)].append((number, stay.fetch + 1))
        else:
            begins[stay.out].append((number, end))
    held: dict[tuple[int, int], object] = {}
    for event in range(len(step.keys) + 1):
        for number in ends.pop(event, []):
            pool.give(held.pop((number, event)), None)  # type: ignore[arg-type]
        for number, end in sorted(begins.get(event, [])):
            storage = step.storages[number]
            held[number, end] = pool.take(storage.end - storage.first)
            ends[end].append(number)
    return pool.pieces


def _latest_fetches(step: RecordedStep, limits: Limits, stays: dict[int, Stay]) -> dict[int, int]:
    """Return the last event at which each fetch may begin, so that the link ends it in time."""
    begins = np.concatenate([[0.0], np.cumsum(step.seconds)])[step.after[:-1]]  # of each event
    latest: dict[int, int] = {}
    free = np.inf
    for number in sorted(stays, key=lambda each: -step.storages[each].unpack):
        storage = step.storages[number]
        rate = min(limits.inwards, limits.flash) if stays[number].on_flash else limits.inwards
        free = min(free, float(begins[storage.unpack])) - storage.size / rate
        latest[number] = int(np.searchsorted(begins, free, "right")) - 1
    return latest


def _fetched(step: RecordedStep, limits: Limits, stays: dict[int, Stay]) -> dict[int, Stay]:
    """Return the stays with fetches that end in time, as far as memory suffices."""
    profile, latest = _profile(step, stays), _latest_fetches(step, limits, stays)
    found: dict[int, Stay] = {}
    for number in sorted(stays, key=lambda each: step.storages[each].unpack):
        storage, stay = step.storages[number], stays[number]
        fetch = max(latest[number], stay.out + 1)
        low, high = int(step.after[fetch]), int(step.after[storage.unpack])
        full = np.flatnonzero(profile[low:high] + storage.size > limits.device_bytes)
        if len(full):
            fetch = int(np.searchsorted(step.after[:-1], low + int(full[-1]), "right"))
        away, _ = _away_between(step, storage)
        if step.after[fetch] <= away:  # there is room for it all the time
            profile[away:high] += storage.size
            continue
        profile[step.after[fetch] : high] += storage.size
        read = -1
        if stay.on_flash:
            read = max(min(latest[number], fetch), stay.out + 1)
        found[number] = Stay(stay.out, fetch, stay.on_flash, read)
    return found


@dataclass
class _Clocks:
    """When the program, the two directions of the link and the files have ended what they had."""

    now: float = 0.0
    out: float = 0.0
    back: float = 0.0
    files: float = 0.0
    written: dict[int, float] = field(default_factory=dict)
    read: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)


def _timed(step: RecordedStep, limits: Limits, stays: dict[int, Stay]) -> StepSchedule:
    """Carry the stays out in modelled time: place the releases, and price the step."""
    outs, reads, fetches = (_by_event(stays, each) for each in ("out", "read", "fetch"))
    releases: dict[int, list[int]] = defaultdict(list)
    unpacks: dict[int, list[int]] = defaultdict(list)
    for number in stays:
        unpacks[step.storages[number].unpack].append(number)
    held = _profile(step, stays)
    clocks, leaving = _Clocks(), deque[int]()
    clocks.now = float(step.seconds[: step.after[0]].sum())
    for event in range(len(step.keys)):
        segments = slice(step.after[event], step.after[event + 1])
        for number in outs.get(event, ()):
            size, freed = step.storages[number].size, step.storages[number].freed
            clocks.out = max(clocks.now, clocks.out) + size / limits.outwards
            clocks.written[number] = clocks.out
            if stays[number].on_flash:
                clocks.files = max(clocks.files, clocks.out) + size / limits.flash
            leaving.append(number)
            held[max(step.after[event], freed) :] += size
        while leaving:
            number = leaving[0]
            size, freed = step.storages[number].size, step.storages[number].freed
            late = clocks.written[number] > clocks.now
            fits = held[segments].max() <= limits.device_bytes
            if late and fits and not set(leaving) & set(fetches.get(event, ())):
                break
            clocks.now = max(clocks.now, clocks.written[number])
            releases[event].append(leaving.popleft())
            held[max(step.after[event], freed) :] -= size
        for number in reads.get(event, ()):
            clocks.files = max(clocks.files, clocks.now) + step.storages[number].size / limits.flash
            clocks.read[number] = clocks.files
        for number in fetches.get(event, ()):
            clocks.now = max(clocks.now, clocks.read.get(number, 0.0))
            begin = max(clocks.now, clocks.back, clocks.written[number])
            clocks.back = begin + step.storages[number].size / limits.inwards
            clocks.ready[number] = clocks.back
        for number in unpacks.get(event, ()):
            clocks.now = max(clocks.now, clocks.ready[number])
        clocks.now += float(step.seconds[segments].sum())
    peak = int(held.max())
    flash = sum(step.storages[each].size for each, stay in stays.items() if stay.on_flash)
    pieces = _host_pieces(step, stays, limits.chunk_bytes)
    if sum(pieces) > limits.host_bytes:
        raise HostMemoryError(
            f"the plan needs {sum(pieces)} bytes of host memory, and has {limits.host_bytes}"
        )
    return StepSchedule(
        step, stays, outs, dict(releases), reads, fetches, clocks.now, peak, tuple(pieces), flash
    )


def _by_event(stays: dict[int, Stay], field_name: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number in sorted(stays):
        event = getattr(stays[number], field_name)
        if event >= 0:
            found[event].append(number)
    return dict(found)
