# SPDX-License-Identifier: MIT
"""What programs tell of their memory: which parts a step that repeats will use, and when.

A program that plans its memory, as :mod:`hmd.torch.tiering` does, sends uses of address ranges by
their place in a step, and at the end of each step when the next one began. A use is five whole
numbers: address and bytes of the range, begin and end in parts of the step (``STEP_PARTS``), and
the accesses that a base page of it will have.

Hints are no orders: policies may follow them, and those of a process concern its memory alone. They
lapse where no step begins for ``STALE_STEPS`` steps. What is kept is bounded, for any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.base.units import PAGE_BYTES
from hmd.linux.procfs import ProcessId

STEP_PARTS: Final = 1 << 20
MAX_USES: Final = 1024
"""Uses of one process."""

MAX_PROCESSES: Final = 256
"""Processes with hints; of more, the one that was silent for the longest is forgotten."""

STALE_STEPS: Final = 4.0
_MAX_STEP_NS: Final = 3_600 * 10**9
_MAX_ADDRESS: Final = 1 << 56
_MAX_ACCESSES: Final = 1 << 20
_ARGUMENTS: Final = frozenset({"plan", "first", "uses", "begun_ns", "step_ns"})

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UseHints:
    """Uses that processes expect next; columns of shape ``(uses,)``, by process.

    ``process`` is the slot, ``address`` to ``end`` the range; a use begins in ``begins_s``, 0 if it
    has begun, and ends in ``ends_s``; each base page has so many ``accesses``. ``step_s``, shape
    ``(processes,)``, is the length of a step, 0 of processes without hints.
    """

    process: npt.NDArray[np.int64]
    address: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    begins_s: Floats
    ends_s: Floats
    accesses: Floats
    step_s: Floats


@dataclass(slots=True)
class _Step:
    """The step of a process: uses of one plan by number, and when the last step began."""

    plan: int
    uses: dict[int, tuple[int, ...]]
    begun_s: float
    step_s: float


class HintTable:
    """The hints of processes; the status socket's thread fills it, the loop reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[ProcessId, _Step] = {}

    def accept(self, process: ProcessId, hint: Mapping[str, Any]) -> None:
        """Take a hint of a process; raises UsageError for one that is no hint.

        ``plan`` is a number that changes with the plan, ``uses`` are those from number ``first``
        on, ``begun_ns`` is when a step began by the clock CLOCK_MONOTONIC, ``step_ns`` its length.
        """
        if hint.keys() != _ARGUMENTS:
            raise UsageError(f"hint: give {', '.join(sorted(_ARGUMENTS))}")
        uses = hint["uses"]
        if not isinstance(uses, list) or len(uses) > MAX_USES:
            raise UsageError(f"hint: uses: give a list of at most {MAX_USES}")
        plan = _whole(hint, "plan", 0, 1 << 62)
        first = _whole(hint, "first", 0, MAX_USES - len(uses))
        begun_ns = _whole(hint, "begun_ns", 0, 1 << 62)
        step_ns = _whole(hint, "step_ns", 1000, _MAX_STEP_NS)
        rows = {first + at: _use(row) for at, row in enumerate(uses)}
        with self._lock:
            known = self._steps.pop(process, None)
            if known is not None and known.plan == plan:
                rows = known.uses | rows
            elif len(self._steps) >= MAX_PROCESSES:
                del self._steps[next(iter(self._steps))]
            self._steps[process] = _Step(plan, rows, begun_ns / 1e9, step_ns / 1e9)

    def at(self, processes: Sequence[ProcessId], now_s: float) -> UseHints | None:
        """Return what processes expect from a time of CLOCK_MONOTONIC on; None without hints."""
        with self._lock:
            steps = [(slot, self._steps.get(each)) for slot, each in enumerate(processes)]
            known = [
                (slot, step.begun_s, step.step_s, np.array(list(step.uses.values()), np.int64))
                for slot, step in (steps if self._steps else ())
                if step is not None and step.uses and _is_fresh(step, now_s)
            ]
        if not known:
            return None
        step_s = np.zeros(len(processes))
        parts = []
        for slot, begun_s, length_s, uses in known:
            step_s[slot] = length_s
            # A step that takes longer than the last one is at its end until the next begins.
            passed = min((now_s - begun_s) / length_s, 1.0)
            begins, ends = uses[:, 2] / STEP_PARTS - passed, uses[:, 3] / STEP_PARTS - passed
            over = ends <= 0
            begins, ends = begins + over, ends + over
            slots = np.full(len(uses), slot)
            times = np.maximum(begins, 0.0) * length_s, ends * length_s
            parts.append((slots, uses[:, 0], uses[:, 0] + uses[:, 1], *times, uses[:, 4]))
        process, address, end, begins, ends, accesses = map(
            np.concatenate, zip(*parts, strict=True)
        )
        memory = address.astype(np.uint64), end.astype(np.uint64)
        return UseHints(process, *memory, begins, ends, accesses.astype(np.float64), step_s)


def _is_fresh(step: _Step, now_s: float) -> bool:
    return -step.step_s <= now_s - step.begun_s <= STALE_STEPS * step.step_s


def _use(row: object) -> tuple[int, ...]:
    """Return a use; raises UsageError for what is none."""
    if isinstance(row, list) and len(row) == 5 and all(type(each) is int for each in row):
        address, size, begin, end, accesses = row
        in_memory = 0 < size <= _MAX_ADDRESS and 0 <= address <= _MAX_ADDRESS - size
        pages = address % PAGE_BYTES == 0 and size % PAGE_BYTES == 0
        in_step = 0 <= begin < end <= STEP_PARTS
        if in_memory and pages and in_step and 1 <= accesses <= _MAX_ACCESSES:
            return address, size, begin, end, accesses
    raise UsageError(
        f"hint: a use is [address, bytes, begin, end, accesses]: whole pages, parts of {STEP_PARTS}"
    )


def _whole(hint: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = hint[key]
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"hint: {key}: give a whole number from {least} to {most}")
    return value
