# SPDX-License-Identifier: MIT
"""From a recorded step to a schedule of what its saved tensors do: leave, wait, return.

A program gives control at its events: when autograd saves a tensor (pack) and when it asks for it
back (unpack). The step is cut into segments at events, and where a saved storage is freed: what the
planners call a kernel. Storages that only autograd holds while they wait are the tensors that may
move; all other memory of a segment was measured, and is one tensor that the segment alone uses. The
planner chooses which storages leave and when they return; its choice is completed and timed here,
since whole storages move, and at events only.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from hmd.base.errors import HmdError
from hmd.cli.output import format_bytes
from hmd.tensors.memory_system import MemorySystem, PricingRules, TensorTier, TierLink
from hmd.tensors.move_plan import MovePlan
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.trace import READ, WRITE, Floats, Ints, TensorKind, TensorTrace
from hmd.torch.device import HostMemoryError, HostPool

Key = tuple[object, ...]
"""What identifies an event: of a pack shape, type and bytes; of an unpack the event of its pack."""

RULES: Final = PricingRules("hooks", False, True, True, False, False, 0.0, 0.0)
"""Kernels wait for what has not arrived; nothing faults."""

_PAGES: Final = 1 << 16
"""Pages of the device in the planner's eyes; not smaller than ``_MIN_PAGE_BYTES``."""

_MIN_PAGE_BYTES: Final = 256


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


def plan_step(step: RecordedStep, limits: Limits, planner: str = "portfolio") -> StepSchedule:
    """Return the fastest of some schedules that follow a planner's choice and that keep the limits.

    Raises DeviceMemoryError or HostMemoryError where there is none.
    """
    profile = _profile(step, {})
    choices: list[dict[int, tuple[float, int, bool]]] = [{}]
    if profile.max() > limits.device_bytes and step.storages:
        _check_least(step, limits)
        choices = [*_choices(step, _planned(step, limits, planner)), {}]
    found: list[StepSchedule] = []
    problems: list[HmdError] = []
    for choice in choices:
        for late in (True, False):
            try:
                found.append(_schedule(step, limits, choice, late=late))
            except (DeviceMemoryError, HostMemoryError) as error:
                problems.append(error)
    if not found:
        raise problems[-1]
    return min(found, key=lambda each: (each.seconds, each.host_bytes))


def _stay(storage: SavedStorage, *, on_flash: bool = False) -> Stay:
    """Return the longest time that a storage can be away."""
    return Stay(storage.packs[-1], storage.unpack, on_flash)


def _check_least(step: RecordedStep, limits: Limits) -> None:
    away = {number: _stay(each) for number, each in enumerate(step.storages)}
    least = int(_profile(step, away).max())
    if least > limits.device_bytes:
        raise DeviceMemoryError(
            f"the step needs {format_bytes(least)} of device memory with all saved tensors away,"
            f" and has {format_bytes(limits.device_bytes)}; {format_bytes(step.fixed_bytes.min())}"
            " are always there (weights, gradients, optimizer state): give more, stream the"
            " optimizer's state (hmd.torch.offloaded), or take a smaller batch"
        )


def _planned(step: RecordedStep, limits: Limits, planner: str) -> MovePlan:
    trace = planner_trace(step)
    return planner_named(planner).plan(StepProblem(trace, memory_system(limits), RULES))


def memory_system(limits: Limits) -> MemorySystem:
    """Return the tiers and links of a device, its host and files."""
    page = max(_MIN_PAGE_BYTES, 1 << (limits.device_bytes // _PAGES).bit_length())
    tiers = [
        TensorTier(name="gpu", capacity=limits.device_bytes),
        TensorTier(name="host", capacity=limits.host_bytes),
    ]
    links = [_link("link", ("gpu", "host"), limits.inwards, limits.outwards)]
    if limits.flash_bytes:
        tiers.append(TensorTier(name="flash", capacity=limits.flash_bytes))
        links.append(_link("files", ("host", "flash"), limits.flash, limits.flash))
    return MemorySystem(
        name="device",
        granularity_bytes=min(page, 2 << 20),
        tiers=tuple(tiers),
        links=tuple(links),
    )


def _link(name: str, between: tuple[str, str], inwards: float, outwards: float) -> TierLink:
    rates = {"in": max(inwards / 1e9, 1e-3), "out": max(outwards / 1e9, 1e-3)}
    return TierLink.model_validate({"name": name, "between": between, **rates})


def planner_trace(step: RecordedStep) -> TensorTrace:
    """Return the step as planners see it: a kernel per segment, storages, and what is fixed."""
    segments, storages = len(step.seconds), len(step.storages)
    uses: list[list[tuple[int, int]]] = [
        [(storages + segment, WRITE)] for segment in range(segments)
    ]
    for number, each in enumerate(step.storages):
        born, asked = int(step.after[each.packs[0]]), int(step.after[each.unpack])
        for segment in range(born, max(each.freed, born + 1)):
            uses[segment].append((number, WRITE if segment == born else READ))
        for segment in range(asked, max(each.dead, asked + 1)):
            uses[segment].append((number, READ))
    flat = [use for each in uses for use in each]
    kinds = [TensorKind.ACTIVATION] * storages + [TensorKind.WORKSPACE] * segments
    return TensorTrace(
        name="step",
        ticks_per_second=1_000_000_000,
        kernel_names=("segment",),
        kernel_name=np.zeros(segments, np.int64),
        kernel_ticks=np.maximum(np.rint(step.seconds * 1e9), 1).astype(np.int64),
        fault_ticks=np.zeros((0, 0), np.int64),
        tensor_bytes=np.maximum([*(each.size for each in step.storages), *step.fixed_bytes], 1),
        tensor_kind=np.array(kinds, np.int64),
        tensor_storage=np.arange(storages + segments),
        tensor_persistent=np.zeros(storages + segments, np.bool_),
        use_start=np.cumsum([0, *(len(each) for each in uses)]),
        use_tensor=np.array([tensor for tensor, _ in flat], np.int64),
        use_mode=np.array([mode for _, mode in flat], np.int64),
    )


def _choices(step: RecordedStep, plan: MovePlan) -> Iterable[dict[int, tuple[float, int, bool]]]:
    """Yield the planner's choice, by storage: share that leaves, event of its fetch, on flash.

    First with all storages of which it moves a part, then with those of which it moves most.
    """
    columns = (plan.kernel, plan.tensor, plan.target, plan.size)
    share: dict[int, float] = defaultdict(float)
    fetch: dict[int, int] = {}
    flash: set[int] = set()
    for kernel, tensor, target, size in zip(*(each.tolist() for each in columns), strict=True):
        if tensor >= len(step.storages):
            continue
        storage = step.storages[tensor]
        if not storage.freed <= kernel <= step.after[storage.unpack]:
            continue
        if target == 0:
            event = int(np.searchsorted(step.after[:-1], kernel, "right")) - 1
            fetch[tensor] = min(fetch.get(tensor, event), event)
        elif target in (1, 2):
            share[tensor] += min(size, storage.size) / storage.size
            flash |= {tensor} if target == 2 else set()
    for least in (0.0, 0.5):
        yield {
            number: (part, fetch.get(number, step.storages[number].unpack), number in flash)
            for number, part in share.items()
            if part > least
        }


def _schedule(
    step: RecordedStep,
    limits: Limits,
    choice: dict[int, tuple[float, int, bool]],
    *,
    late: bool,
) -> StepSchedule:
    """Return the schedule of a choice, with more storages where memory does not suffice.

    ``late``: fetches begin as late as the link allows; otherwise as the planner has them.
    """
    stays = {
        number: _stay(step.storages[number], on_flash=on_flash)
        for number, (_, _, on_flash) in choice.items()
    }
    _add_until_it_fits(step, limits, stays)
    stays = _on_flash(step, limits, stays)
    wanted = _latest_fetches(step, limits, stays)
    if not late:
        wanted |= {number: fetch for number, (_, fetch, _) in choice.items()}
    stays = _fetched(step, limits, stays, wanted)
    try:
        return _timed(step, limits, stays)
    except HostMemoryError:  # read from files when it is needed, not ahead
        late_reads = {
            number: replace(stay, read=stay.fetch if stay.on_flash else -1)
            for number, stay in stays.items()
        }
        return _timed(step, limits, late_reads)


def _add_until_it_fits(step: RecordedStep, limits: Limits, stays: dict[int, Stay]) -> None:
    """Add storages that wait longest from where memory does not suffice on (Belady's choice)."""
    profile = _profile(step, stays)
    able = sorted(range(len(step.storages)), key=lambda each: -step.storages[each].unpack)
    for segment in range(len(profile)):
        for number in able:
            if profile[segment] <= limits.device_bytes:
                break
            storage = step.storages[number]
            low, high = _away_between(step, storage)
            if number not in stays and low <= segment < high:
                stays[number] = _stay(storage)
                profile[low:high] -= storage.size
        if profile[segment] > limits.device_bytes:
            raise DeviceMemoryError(
                f"the step needs {format_bytes(profile[segment])} of device memory, and has"
                f" {format_bytes(limits.device_bytes)}"
            )


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
    """Return the last event at which each fetch may begin, so that it ends in time."""
    begins = np.concatenate([[0.0], np.cumsum(step.seconds)])[step.after[:-1]]  # of each event
    latest: dict[int, int] = {}
    free = np.inf
    for number in sorted(stays, key=lambda each: -step.storages[each].unpack):
        storage = step.storages[number]
        rate = min(limits.inwards, limits.flash) if stays[number].on_flash else limits.inwards
        free = min(free, float(begins[storage.unpack])) - storage.size / rate
        latest[number] = int(np.searchsorted(begins, free, "right")) - 1
    return latest


def _fetched(
    step: RecordedStep, limits: Limits, stays: dict[int, Stay], wanted: dict[int, int]
) -> dict[int, Stay]:
    """Return the stays with fetches as early as wanted, as far as memory suffices."""
    profile = _profile(step, stays)
    found: dict[int, Stay] = {}
    for number in sorted(stays, key=lambda each: step.storages[each].unpack):
        storage, stay = step.storages[number], stays[number]
        fetch = max(wanted.get(number, storage.unpack), stay.out + 1)
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
            read = max(min(wanted.get(number, fetch), fetch), stay.out + 1)
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
            clocks.files = max(clocks.files, clocks.now) + _size(step, number) / limits.flash
            clocks.read[number] = clocks.files
        for number in fetches.get(event, ()):
            clocks.now = max(clocks.now, clocks.read.get(number, 0.0))
            begin = max(clocks.now, clocks.back, clocks.written[number])
            clocks.back = begin + _size(step, number) / limits.inwards
            clocks.ready[number] = clocks.back
        for number in unpacks.get(event, ()):
            clocks.now = max(clocks.now, clocks.ready[number])
        clocks.now += float(step.seconds[segments].sum())
    peak = int(held.max())
    flash = sum(_size(step, each) for each, stay in stays.items() if stay.on_flash)
    pieces = _host_pieces(step, stays, limits.chunk_bytes)
    if sum(pieces) > limits.host_bytes:
        raise HostMemoryError(
            f"the plan needs {sum(pieces)} bytes of host memory, and has {limits.host_bytes}"
        )
    return StepSchedule(
        step, stays, outs, dict(releases), reads, fetches, clocks.now, peak, tuple(pieces), flash
    )


def _size(step: RecordedStep, number: int) -> int:
    return step.storages[number].size


def _by_event(stays: dict[int, Stay], field_name: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number in sorted(stays):
        event = getattr(stays[number], field_name)
        if event >= 0:
            found[event].append(number)
    return dict(found)
