# SPDX-License-Identifier: MIT
"""Schedules of migrations, and the price of one: pages, tiers and times.

A schedule in a file has one move per line, ``time_ms,address,fast`` or ``...,slow``.

The price takes a model, the layout at the start and moves in order of time; it is the run's windows
with the cost of the moves. A page's accesses in the window of its move are divided by the time of
the move. A window's time depends on the moves in it and vice versa, so both are iterated until they
agree to 0.01 % of the runtime: usually three or four times, each at the cost of a layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hmd.base.errors import ConfigError
from hmd.base.units import PAGE_BYTES, PAGE_MOVE_COST
from hmd.estimate.cost import add_slow
from hmd.estimate.layout import Layout, numbered_lines, read_text
from hmd.estimate.model import Estimate, RuntimeModel, SlowMass
from hmd.estimate.samples import PageIndex

PAGE_MOVE_NS = 2000.0 * PAGE_MOVE_COST
"""Time of a base page's move, in ns, during which the program waits. Published figures for 4 KiB
are 1 to 12 us (HeMem, SOSP '21; Nimble, ASPLOS '19); a copy at 4 GB/s is 1 us, unmapping and the
rest about as long."""

_ROUNDS = 12
_NEAR = 1e-4

_ADDRESS = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
_HEADER = "time_ms,address,tier"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Moves in order of time, columns of shape ``(moves,)``.

    ``time_ns`` is from the program's start, ``page`` indexes the model's pages, ``fast`` is the
    destination: the fast tier (True) or the slow one.
    """

    time_ns: npt.NDArray[np.float64]
    page: npt.NDArray[np.int32]
    fast: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        if not len(self.time_ns) == len(self.page) == len(self.fast):
            raise ValueError("a schedule's columns must have the same length")
        if np.any(self.time_ns[1:] < self.time_ns[:-1]):
            raise ValueError("a schedule's moves must be in order of time")

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """The run, its moves included: ``moved`` pages changed tier, which took ``moving_ns``."""

    estimate: Estimate
    moved: int
    moving_ns: float


def price_schedule(
    model: RuntimeModel, start: Layout, schedule: Schedule, move_ns: float = PAGE_MOVE_NS
) -> PricedSchedule:
    """Return the run that starts with pages placed as ``start`` says and then moves them.

    A move of a page to where it already is costs nothing. ``start`` may have more pages than the
    model: those were never sampled, so their moves only cost. Raises ValueError for a
    move of a page beyond ``start``.
    """
    if len(schedule) and int(schedule.page.max()) >= len(start):
        raise ValueError(f"page {schedule.page.max()}: the layout has {len(start)}")
    assumed_ns = model.estimate(start).window_ns
    before = np.zeros(model.windows)
    for _ in range(_ROUNDS):
        mass, moves = _played(model, start, schedule, assumed_ns)
        window_ns = model.price(mass).window_ns + moves * move_ns
        change = window_ns - assumed_ns
        if np.abs(change).sum() <= _NEAR * window_ns.sum():
            break
        # An oscillating window is damped: half of each step.
        assumed_ns = assumed_ns + np.where(change * before < 0, change / 2, change)
        before = change
    moved = int(moves.sum())
    return PricedSchedule(Estimate(float(window_ns.sum()), window_ns), moved, moved * move_ns)


def _played(
    model: RuntimeModel,
    start: Layout,
    schedule: Schedule,
    window_ns: npt.NDArray[np.float64],
) -> tuple[SlowMass, npt.NDArray[np.float64]]:
    """Return the slow accesses of each window as pages move, and the moves in each."""
    ends = np.cumsum(window_ns)
    # Moves after the end have no effect.
    of_move = np.searchsorted(ends, schedule.time_ns, side="right")
    cells, moves = np.zeros(len(model.total)), np.zeros(model.windows)
    pairs, parts = model.pairs, model.parts
    threads = parts // model.windows
    of_pair = np.searchsorted(pairs.part, np.arange(model.windows + 1) * threads)
    pair_a, pair_b = np.empty(len(pairs), np.float32), np.empty(len(pairs), np.float32)
    slow = (~start).astype(np.float32)
    for window in range(model.windows):
        low, high = np.searchsorted(of_move, [window, window + 1])
        share = slow
        if high > low:
            left = (ends[window] - schedule.time_ns[low:high]) / max(window_ns[window], 1e-9)
            slow, share, moves[window] = _moved(
                slow, schedule.page[low:high], schedule.fast[low:high], np.clip(left, 0.0, 1.0)
            )
        for first in range(window * threads, len(cells), parts):
            last = first + threads
            add_slow(model.page, model.accesses, model.begin, share, first, last, cells)
        near = slice(of_pair[window], of_pair[window + 1])
        pair_a[near], pair_b[near] = share[pairs.page_a[near]], share[pairs.page_b[near]]
    return SlowMass(cells, pair_a, pair_b), moves


def _moved(
    slow: npt.NDArray[np.float32],
    page: npt.NDArray[np.int32],
    fast: npt.NDArray[np.bool_],
    left: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], int]:
    """Return the slow pages after a window's moves, their slow share of it, and the moved pages.

    ``left`` is the share of the window after each move.
    """
    after, share, count = slow.copy(), slow.copy(), 0
    for number, to_fast, rest in zip(page.tolist(), fast.tolist(), left.tolist(), strict=True):
        wanted = 0.0 if to_fast else 1.0
        if after[number] != wanted:
            share[number] += (wanted - after[number]) * rest
            after[number] = wanted
            count += 1
    return after, share, count


def read_schedule(path: Path, pages: PageIndex, start: Layout) -> tuple[Schedule, Layout]:
    """Return a file's moves in order of time, and the layout that they start from.

    An address stands for its page in every process that has it. Pages that were never sampled
    come behind those of ``start``, each where its first move is one. Raises ConfigError, which
    names the wrong line.
    """
    known: dict[int, list[int]] = {}
    for number, address in enumerate(pages.address.tolist()):
        known.setdefault(address, []).append(number)
    beyond: list[bool] = []
    moves: list[tuple[float, int, bool]] = []
    for line, text in numbered_lines(read_text(path)):
        if line == 1 and text.startswith("time"):
            if text.replace(" ", "") != _HEADER:
                raise ConfigError(f"{path}:1: {text!r}: the columns are {_HEADER}")
            continue
        time_ns, address, fast = _move(text, f"{path}:{line}")
        if address not in known:
            known[address] = [len(pages) + len(beyond)]
            beyond.append(not fast)
        moves += [(time_ns, page, fast) for page in known[address]]
    moves.sort(key=lambda move: move[0])
    schedule = Schedule(
        np.array([time_ns for time_ns, _, _ in moves], np.float64),
        np.array([page for _, page, _ in moves], np.int32),
        np.array([fast for _, _, fast in moves], np.bool_),
    )
    return schedule, np.concatenate([start, np.array(beyond, np.bool_)])


def _move(text: str, where: str) -> tuple[float, int, bool]:
    """Return time, address of the page, and whether it goes to fast memory."""
    words = [word.strip() for word in text.split(",")]
    address = _ADDRESS.fullmatch(words[1]) if len(words) == 3 else None
    if address is None or words[2] not in ("fast", "slow"):
        raise ConfigError(
            f"{where}: {text!r} is no move, such as 1500,7f0000001000,fast "
            "(milliseconds, address, tier)"
        )
    try:
        time_ms = float(words[0])
    except ValueError:
        time_ms = -1.0
    if not 0 <= time_ms < 1e12:
        raise ConfigError(f"{where}: {words[0]!r} is no time in milliseconds from the start")
    page = int(address[1], 16) // PAGE_BYTES * PAGE_BYTES
    return time_ms * 1e6, page, words[2] == "fast"
