# SPDX-License-Identifier: MIT
"""``tiered``: training on the CPU with DRAM and slower memory beside, by hints to the daemon.

The second step is recorded and planned: what of it should be in fast memory, and when. From then on
saved tensors that wait in slow memory lie in an arena, and the daemon is told on its status socket
when the step uses which memory; its policy ``tensors`` moves pages ahead of that. Weights, buffers
and optimizer state keep their addresses anyway: their whole pages are hinted where they are.
Gradients, workspaces and tensors that do not wait are not hinted: their pages move by heat.

The training never waits for the daemon: a hint that the socket does not take at once is dropped,
and all are sent again, some in each step. Without a daemon nothing is different but that tensors
are copied to the arena. Losses and gradients are those of the plain run, bit for bit.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hmd.base.errors import HmdError, UsageError
from hmd.base.paths import SOCKET
from hmd.base.units import MIB, PAGE_BYTES
from hmd.cli.output import format_bytes, format_seconds, format_share, print_table
from hmd.policy.use_hints import MAX_USES, STEP_PARTS
from hmd.tensors.capture.recorder import tensors_in, touched_range
from hmd.tensors.capture.script import RecordedSteps, StepRecorder
from hmd.tensors.memory_system import STRICT, load_system
from hmd.tensors.move_plan import UseRun, use_runs
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.prices import StepPrice, price_planner
from hmd.tensors.trace import Floats
from hmd.torch.device import ALIGNMENT, HostBuffer, HostPool
from hmd.torch.fitting import Size, size_bytes
from hmd.torch.saved_tensors import bytes_of, check_unchanged, is_plain, view_of

USES_PER_HINT: Final = 48
"""A request of the status socket has at most 4 KiB."""

MIN_BYTES: Final = 64 << 10
_LINES: Final = PAGE_BYTES // 64
_MAX_DIFFERENT: Final = 3
"""Steps in a row that differ from the plan, after which the next one is recorded."""

_MAX_RECORDINGS: Final = 8

_Key = tuple[torch.Size, torch.dtype, int]
"""Shape, type and bytes of the storage of a tensor that autograd saves."""


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

    It grows with what waits at once, and never shrinks. PyTorch's allocator for the CPU packs
    tensors of any use into the same pages, half of them at other addresses in each step, and Python
    cannot replace it. So what shall wait in slow memory is copied here, whole pages side by side,
    when autograd saves it, and the original is freed as without hmd. Places are given out first
    fit, so that a step that does the same gets the same addresses, and in the order in which
    tensors are saved: neighbours are saved, and used again, one after the other.
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


@dataclass(frozen=True)
class _Use:
    """A use that is hinted: of the first bytes of what ``memory`` gives, None where it has gone."""

    memory: Callable[[], tuple[int, int] | None]
    size: int
    begin: int
    end: int
    accesses: int

    def row(self) -> list[int] | None:
        """Return the use as it is sent: the whole pages that it covers."""
        found = self.memory()
        if found is None:
            return None
        address, size = found
        first = -(-address // PAGE_BYTES) * PAGE_BYTES
        end = (address + min(size, self.size)) // PAGE_BYTES * PAGE_BYTES
        return [first, end - first, self.begin, self.end, self.accesses] if end > first else None


def tiered(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    fast: Size,
    *,
    tiers: str = "dram-pm",
    planner: str = "portfolio",
    socket: Path | str = SOCKET,
    report: Callable[[StepPrice], None] | None = None,
) -> TieredTraining:
    """Train with ``fast`` bytes of fast memory, as in ``"8GiB"``, and slower memory beside.

    Call it before the first step, in the thread that trains. ``tiers`` is a memory system whose
    kernels compute from every tier, as of ``hmd plan --tiers``; ``socket`` is the daemon's.
    ``report`` gets the price of the plan; by default it is printed. Planning takes up to ten
    seconds. Where a step cannot be recorded or planned, a line says so, and training is plain.
    Raises UsageError for arguments that do not fit.
    """
    capacity = size_bytes("tiered: fast", fast)
    system = load_system(tiers)
    if not system.in_place:
        raise UsageError(f"hmd.torch.tiered: kernels cannot compute from all tiers of {tiers}")
    system = system.changed({system.names[0]: capacity})
    entry = planner_named(planner)

    def plan(recorder: StepRecorder) -> tuple[StepProblem, list[UseRun], Floats]:
        problem = StepProblem(recorder.trace("step", "hmd.torch.tiered"), system, STRICT)
        price, moves, result = price_planner(problem, entry)
        (report or print_price)(price)
        ends = result.end / max(int(result.end[-1]), 1)
        return problem, use_runs(problem.trace, moves), ends

    return TieredTraining(model, optimizer, plan, Path(socket))


Planned = Callable[[StepRecorder], tuple[StepProblem, list[UseRun], Floats]]


class TieredTraining:
    """Training that tells the daemon what it will use; a context, or ``close`` it at the end."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Planned,
        path: Path,
    ) -> None:
        self.arena = Arena()
        self.sent = self.dropped = 0
        """Hints that the daemon's socket has taken, and that it has not."""

        self._model, self._optimizer, self._plan = model, optimizer, plan
        self._path, self._process = str(path), os.getpid()
        self._recorder: StepRecorder | None = None
        self._is_full = False
        self._recordings = self._different = self._event = 0
        self._packed: list[tuple[_Key, tuple[int, int] | None]] = []
        self._last_packed: list[tuple[_Key, tuple[int, int] | None]] = []
        self._expected: list[_Key] = []
        self._waits: dict[int, int] = {}
        self._placed: dict[int, tuple[int, int]] = {}
        self._follows = False
        self._uses: list[_Use] = []
        self._next = -1
        self._begun_ns = time.monotonic_ns()
        self._steps_ns: deque[int] = deque(maxlen=5)
        self._persistent: set[int] = set()
        self._end = register_optimizer_step_post_hook(self._step_ended)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        self._record()
        self._begin()

    def __enter__(self) -> TieredTraining:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End: later steps run as without hmd."""
        if self._end is not None:
            self._end.remove()
            self._end = None
            self._hooks.__exit__(None, None, None)
            self._drop_recorder()

    def _record(self) -> None:
        self._drop_recorder()
        self._recordings += 1
        self._waits, self._uses, self._different = {}, [], 0
        self._recorder = StepRecorder(RecordedSteps(1, 1), finish=self._recorded)
        self._recorder.__enter__()

    def _drop_recorder(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
        self._recorder, self._is_full = None, False

    def _begin(self) -> None:
        self._event, self._follows = 0, bool(self._uses)
        self._last_packed, self._packed = self._packed, []
        self.arena.begin_step()
        self._persistent = {each.untyped_storage()._cdata for each in self._lasting()}

    def _lasting(self) -> Iterator[torch.Tensor]:
        """Yield what lives from step to step."""
        held = (self._model.parameters(), self._model.buffers(), self._optimizer.state.values())
        for each in held:
            yield from (tensor for tensor in tensors_in(list(each)) if is_plain(tensor))

    def _pack(self, tensor: torch.Tensor) -> Any:
        """Note what autograd saves; copy it to the arena where the plan lets it wait."""
        if self._is_full:
            self._drop_recorder()
        event, self._event = self._event, self._event + 1
        able = is_plain(tensor) and tensor.device.type == "cpu"
        size = int(tensor.untyped_storage().nbytes()) if able else 0
        key = tuple(tensor.shape), tensor.dtype, size
        if self._recorder is not None:
            able = able and size >= MIN_BYTES
            able = able and tensor.untyped_storage()._cdata not in self._persistent
            self._packed.append((key, self._recorder.place_of(tensor) if able else None))
        elif self._follows:
            self._follows = event < len(self._expected) and self._expected[event] == key
            if self._follows and event in self._waits:
                with torch.no_grad():
                    copy, is_new = self.arena.save(tensor)
                if is_new:
                    self._placed[self._waits[event]] = copy.data.data_ptr(), len(copy.data)
                return copy
        return tensor, tensor._version

    def _unpack(self, saved: Any) -> torch.Tensor:
        if isinstance(saved, SavedCopy):
            return saved.tensor()
        tensor, version = saved
        check_unchanged(tensor._version == version, tensor.dtype, tensor.shape)
        return cast(torch.Tensor, tensor)

    def _recorded(self) -> None:
        """Plan the recorded step. PyTorch is calling the recorder's hooks: they stay for now."""
        assert self._recorder is not None
        self._is_full = True
        try:
            problem, runs, ends = self._plan(self._recorder)
        except HmdError as error:
            sys.stderr.write(f"hmd.torch.tiered: no plan, so training is plain: {error}\n")
            self._recordings = _MAX_RECORDINGS
            return
        # This training's hook has been called before the recorder's: a step has begun already.
        self._expected = [key for key, _ in self._last_packed]
        self._set_uses(problem, runs, [0.0, *ends.tolist()])

    def _set_uses(self, problem: StepProblem, runs: list[UseRun], ends: list[float]) -> None:
        """Choose what waits in the arena, and what is hinted of it and of what lasts."""
        assert self._recorder is not None
        trace = problem.trace
        tensor_of = {storage: row for row, storage in enumerate(trace.tensor_storage.tolist())}
        packed: dict[int, int] = {}
        for event, (_, noted) in enumerate(self._last_packed):
            row = tensor_of.get(noted[0]) if noted is not None else None
            if noted is not None and row is not None and not trace.tensor_persistent[row]:
                kernel = packed.setdefault(row, noted[1])
                later = [run for run in runs if run.tensor == row and run.uses[-1][0] >= kernel]
                if any(run.uses[0][0] >= kernel for run in later):
                    self._waits[event] = row
        memory: dict[int, Callable[[], tuple[int, int] | None]] = {
            row: partial(self._placed.get, row) for row in self._waits.values()
        }
        for tensor in self._lasting():
            for storage in self._recorder.storages_of(tensor):
                row = tensor_of.get(storage)
                if row is not None and trace.tensor_bytes[row] >= MIN_BYTES:
                    memory[row] = partial(_memory_of, weakref.ref(tensor))
        uses = []
        for run in runs:
            kernels = [each for each in run.uses if each[0] >= packed.get(run.tensor, 0)]
            if run.fast_bytes and kernels and run.tensor in memory:
                begin = int(ends[kernels[0][0]] * STEP_PARTS)
                end = max(int(ends[kernels[-1][0] + 1] * STEP_PARTS), begin + 1)
                accesses = _LINES * sum(passes for _, passes in kernels)
                uses.append(_Use(memory[run.tensor], run.fast_bytes, begin, end, accesses))
        uses.sort(key=lambda use: -use.size * use.accesses)
        self._uses, self._next = uses[:MAX_USES], -1
        self._follows, self._begun_ns = bool(uses), time.monotonic_ns()

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is not self._optimizer or self._end is None:
            return
        now_ns = time.monotonic_ns()
        if self._follows and self._event == len(self._expected):
            self._different = 0
            self._steps_ns.append(now_ns - self._begun_ns)
            self._send(now_ns)
        elif self._recorder is None:
            self._different += 1
            if self._different >= _MAX_DIFFERENT and self._recordings < _MAX_RECORDINGS:
                self._record()
        self._begun_ns = time.monotonic_ns()
        self._begin()

    def _send(self, now_ns: int) -> None:
        """Send the hints: all after the first step of a plan, later some of them in each step."""
        if os.getpid() != self._process or not self._uses:
            return
        starts = list(range(0, len(self._uses), USES_PER_HINT))
        chosen = starts if self._next < 0 else [starts[self._next % len(starts)]]
        self._next += 1
        for first in chosen:
            rows = [use.row() for use in self._uses[first : first + USES_PER_HINT]]
            hint = {
                "command": "hint",
                "plan": self._recordings,
                "first": first,
                "uses": [row for row in rows if row is not None],
                "begun_ns": now_ns,
                "step_ns": max(int(median(self._steps_ns)), 1000),
            }
            if send_hint(self._path, json.dumps(hint, separators=(",", ":")).encode() + b"\n"):
                self.sent += 1
            else:
                self.dropped += 1


def send_hint(path: str, line: bytes) -> bool:
    """Send a request without waiting, and leave its answer; return whether it was taken."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.setblocking(False)
        s.connect(path)
        return s.send(line) == len(line)
    return False


def _memory_of(tensor: weakref.ref[torch.Tensor]) -> tuple[int, int] | None:
    found = tensor()
    if found is None:
        return None
    storage = found.untyped_storage()
    return int(storage.data_ptr()), int(storage.nbytes())


def print_price(price: StepPrice) -> None:
    """Print what a plan will cost."""
    rows = [
        (f"{name} memory", format_bytes(size) if size else "unlimited")
        for name, size in price.tiers.items()
    ]
    rows += [
        ("step with fast memory alone", format_seconds(price.ideal_seconds)),
        ("step", format_seconds(price.seconds)),
        ("share of ideal", format_share(price.ideal_seconds / price.seconds)),
        ("moved per step", format_bytes(price.moved_bytes)),
    ]
    print_table(("quantity", "predicted"), rows, title="training step", right=("predicted",))
