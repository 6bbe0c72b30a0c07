# SPDX-License-Identifier: MIT
"""The order of the CPUs in a miss recording: when one woke, how far the others had come.

A CPU that halts waits for another one (a barrier, a lock, the start of a thread). The recording has
its wake-up, and a mark of each other CPU that ran then. A replay keeps this order and not the
times: at each wake-up, all CPUs wait for each other where they were (``ThreadOrder.meets_at``).
That is exact for programs that wait at barriers. Where one hands a lock to another, the order of
the recording is kept too, though another placement might change it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.misses import MissFlag, ThreadOrder

_INTERRUPT_INSTRUCTIONS: Final = 20_000
"""A CPU that wakes for fewer, all in the kernel, handles an interrupt: no one waits for it."""


def thread_order(raw: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], ThreadOrder | None]:
    """Return the rows of a recording in the order of CPUs and their instructions, and the meetings.

    ``raw`` has the plugin's records in the order of the file, with ``cpu``, ``flags``,
    ``instructions`` and ``depends``. One CPU has no meetings: None.
    """
    cpus = np.unique(raw["cpu"])
    if len(cpus) <= 1:
        return np.arange(len(raw)), None
    parts = [_rows_of(raw, int(cpu)) for cpu in cpus]
    sizes = [len(part) for part in parts]
    meets_at = _meetings(raw, cpus, parts)
    order = ThreadOrder(np.cumsum([0, *sizes], dtype=np.int64), meets_at)
    return np.concatenate(parts), order


def awake_ps(raw: npt.NDArray[Any]) -> int:
    """Return for how long at least one CPU was not halted; halts and wake-ups have their times."""
    woke = _is_a(raw, MissFlag.WAKE)
    rows = np.flatnonzero(woke | _is_a(raw, MissFlag.HALT))
    rows = rows[np.lexsort((~woke[rows], raw["vaddr"][rows]))]
    step = np.where(woke[rows], 1, -1)
    # A CPU that ran when the recording began has its halt first.
    _, first = np.unique(raw["cpu"][rows], return_index=True)
    awake = int((step[first] < 0).sum()) + np.cumsum(step)
    if not len(rows):
        return 0
    return int(np.diff(raw["vaddr"][rows].astype(np.int64))[awake[:-1] > 0].sum())


def _is_a(raw: npt.NDArray[Any], kind: MissFlag) -> npt.NDArray[np.bool_]:
    """Return the rows that are halts, wake-ups or marks."""
    return np.asarray(raw["flags"] == kind)


def _rows_of(raw: npt.NDArray[Any], cpu: int) -> npt.NDArray[np.int64]:
    """Return a CPU's rows by instructions, without marks that came just after it halted."""
    rows = np.flatnonzero(raw["cpu"] == cpu)
    rows = rows[np.argsort(raw["instructions"][rows], kind="stable")]
    marked = _is_a(raw[rows], MissFlag.MARK)
    place = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(marked, 0, place))
    late = marked & _is_a(raw[rows[before]], MissFlag.HALT)
    return np.asarray(rows[~late])


def _meetings(
    raw: npt.NDArray[Any], cpus: npt.NDArray[np.uint8], parts: list[npt.NDArray[np.int64]]
) -> npt.NDArray[np.uint64]:
    """Return for each wake-up that another CPU may have caused how far each CPU had come."""
    woken = [part[_meets(raw[part])] for part in parts]
    wakes = np.sort(np.concatenate(woken))
    found = np.empty((len(wakes), len(parts)), np.uint64)
    for column, part in enumerate(parts):
        own = ~_is_a(raw[part], MissFlag.MARK)
        place = np.flatnonzero(own)
        # Halted, or waking now: behind it are the rows that the file has before.
        found[:, column] = _behind(np.searchsorted(part[place], wakes), place)
        marks = np.flatnonzero(~own)
        meeting = _meeting_of(raw, cpus, woken, wakes, part[marks])
        known = meeting >= 0
        found[meeting[known], column] = (marks[known] + 1).astype(np.uint64)
    return np.maximum.accumulate(found, axis=0)


def _behind(count: npt.NDArray[np.int64], place: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the places after so many rows that are no marks."""
    return np.append(0, place + 1)[count].astype(np.uint64)


def _meeting_of(
    raw: npt.NDArray[Any],
    cpus: npt.NDArray[np.uint8],
    woken: list[npt.NDArray[np.int64]],
    wakes: npt.NDArray[np.int64],
    marks: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the meeting of each mark, which is written just before the wake-up; -1 for none."""
    meeting = np.full(len(marks), -1, np.int64)
    for cpu, own_wakes in zip(cpus, woken, strict=True):
        mine = np.flatnonzero(raw["depends"][marks] == cpu)
        all_wakes = np.flatnonzero((raw["cpu"] == cpu) & _is_a(raw, MissFlag.WAKE))
        following = all_wakes[np.searchsorted(all_wakes, marks[mine])]
        meets = np.isin(following, own_wakes)
        meeting[mine[meets]] = np.searchsorted(wakes, following[meets])
    return meeting


def _meets(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return the wake-ups of one CPU after which it does more than to handle an interrupt."""
    wake = np.flatnonzero(_is_a(rows, MissFlag.WAKE))
    halt = np.append(np.flatnonzero(_is_a(rows, MissFlag.HALT)), len(rows))
    until = halt[np.searchsorted(halt, wake)]
    others = MissFlag.KERNEL | MissFlag.HALT | MissFlag.WRITE_BACK
    in_user = np.append(0, np.cumsum((rows["flags"] & np.uint8(others)) == 0))
    last = np.minimum(until, len(rows) - 1)
    executed = rows["instructions"][last] - rows["instructions"][wake]
    short = (in_user[until] == in_user[wake]) & (executed < _INTERRUPT_INSTRUCTIONS)
    found = np.zeros(len(rows), np.bool_)
    found[wake[~short]] = True
    return found
