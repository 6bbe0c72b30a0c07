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
    """The step of a process: uses of one plan by number, and when the last step began.

    ``uses``, shape ``(n, 5)``, is never changed in place; rows that have not come have 0 bytes.
    """

    plan: int
    uses: npt.NDArray[np.int64]
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
        rows = np.array([_use(row) for row in uses], np.int64).reshape(-1, 5)
        with self._lock:
            known = self._steps.pop(process, None)
            before = np.empty((0, 5), np.int64)
            if known is not None and known.plan == plan:
                before = known.uses
            elif len(self._steps) >= MAX_PROCESSES:
                del self._steps[next(iter(self._steps))]
            after = np.zeros((max(len(before), first + len(rows) if len(rows) else 0), 5), np.int64)
            after[: len(before)] = before
            after[first : first + len(rows)] = rows
            self._steps[process] = _Step(plan, after, begun_ns / 1e9, step_ns / 1e9)

    def at(self, processes: Sequence[ProcessId], now_s: float) -> UseHints | None:
        """Return what processes expect from a time of CLOCK_MONOTONIC on; None without hints."""
        with self._lock:
            steps = [(slot, self._steps.get(each)) for slot, each in enumerate(processes)]
        known = [
            (slot, step)
            for slot, step in steps
            if step is not None
            and len(step.uses)
            and -step.step_s <= now_s - step.begun_s <= STALE_STEPS * step.step_s
        ]
        if not known:
            return None
        step_s, passed = np.zeros((2, len(processes)))
        for slot, step in known:
            step_s[slot] = step.step_s
            # A step that takes longer than the last one is at its end until the next begins.
            passed[slot] = min((now_s - step.begun_s) / step.step_s, 1.0)
        process = np.repeat([slot for slot, _ in known], [len(step.uses) for _, step in known])
        uses = np.concatenate([step.uses for _, step in known])
        came = uses[:, 1] > 0
        process, uses = process[came], uses[came]
        begins, ends = uses[:, 2:4].T / STEP_PARTS - passed[process]
        over = ends <= 0
        return UseHints(
            process=process,
            address=uses[:, 0].astype(np.uint64),
            end=(uses[:, 0] + uses[:, 1]).astype(np.uint64),
            begins_s=np.maximum(begins + over, 0.0) * step_s[process],
            ends_s=(ends + over) * step_s[process],
            accesses=uses[:, 4].astype(np.float64),
            step_s=step_s,
        )


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
