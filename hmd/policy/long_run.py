# SPDX-License-Identifier: MIT
"""Mean rates over the long run, mixed with present rates where the heat of a process recurs.

Takes the page view of each tick; gives the rates by which moves have to pay. Where the samples of a
process refute its rates, the heat table discards them (:mod:`hmd.heat.changes`), so that it follows
a hot set that moves. But a program that alternates between phases ends each phase before the moves
to it have paid; its moves should pay by the mean over all phases.

When the heat of a process changes, the rates known until then are added to a mean of earlier times,
weighted by their samples, so that the mean covers some 64 ticks. Present rates are mixed with the
mean by a weight from 0 to 1 per process, the one that predicts samples best: every few ticks a
cohort is formed of the pages whose mean is the furthest above or below their present rate, and its
samples in the following ticks are regressed on the difference. The weight begins at 0, and stays
there where a hot set moved for good; phases that return bring it to 1. A process whose heat has not
changed has no mean.

Costs 2 bytes and about 1 ns per page, 4 bytes and 3 ns where there is a mean, and 50 ns per page of
a cohort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Float32s, Int32s, Int64s, Layout, inline, kernel
from hmd.heat.counting import run_end
from hmd.heat.page_state import PageState
from hmd.linux.process_table import ProcessTable, carry_over
from hmd.linux.procfs import ProcessId
from hmd.policy.horizon import Cohorts, Purpose, busiest_processes

if TYPE_CHECKING:
    from hmd.heat.view import PageView

#: Columns of the samples behind rates: of the present, and of earlier times.
_PRESENT, _EARLIER = range(2)
# Ticks whose samples the mean has.
_MEAN_TICKS: Final = 64
# Ticks between two cohorts.
_STRIDE: Final = 4
# Pages of a cohort, and how many rows are looked at for each that may belong to one.
_MAX_COHORT_PAGES: Final = 128
_ROWS_APART: Final = 8
# What a tick keeps of earlier evidence, and the evidence that there is for a weight of 0.
_RETENTION: Final = 0.95
_PRIOR_EVIDENCE: Final = 16.0
_MIN_SAMPLES: Final = 1e-9
# Rounds a float32 to bfloat16: half of the lower 16 bits, which are dropped.
_HALF: Final = np.uint32(1 << 15)
_BITS: Final = np.uint32(16)

# Rows at a time.
_BLOCK: Final = 64

Bfloat16s: TypeAlias = Annotated[npt.NDArray[np.uint16], Layout()]
Rates = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


class RateRows(NamedTuple):
    """Columns of the rows of a view, shape ``(n,)``; ``number`` is the index of stored values."""

    number: Int64s
    process: Int32s
    rate: Float32s


@inline
def _to_bfloat16(value: np.float32) -> np.uint16:
    """Return a float32 rounded to bfloat16, as bits."""
    return np.uint16((np.float32(value).view(np.uint32) + _HALF) >> _BITS)


@inline
def _from_bfloat16(half: np.uint16) -> np.float32:
    return np.uint32(np.uint32(half) << _BITS).view(np.float32)


@inline
def _in_order(number: Int64s) -> bool:
    """Return whether indices are consecutive, as those of most rows are: loops vectorise then."""
    first, apart = number[0], 0
    for i in range(len(number)):
        apart |= (number[i] - first) ^ i
    return apart == 0


@kernel
def update_means(last: Bfloat16s, mean: Bfloat16s, rows: RateRows, part: Float32s) -> None:
    """Move means toward the last tick's shares, by ``part`` of each process; 0: not at all."""
    for row in range(len(rows.number)):
        at, share = np.uint64(rows.number[row]), part[rows.process[row]]
        if share > 0.0 and last[at] > 0:
            new, old = _from_bfloat16(last[at]), _from_bfloat16(mean[at])
            mean[at] = _to_bfloat16(old + share * (new - old) if old > 0.0 else new)


@kernel
def store_shares(last: Bfloat16s, rows: RateRows, inverse: Float32s) -> None:
    """Store the rates of rows times ``inverse`` of their process: shares of its accesses."""
    begin = 0
    while begin < len(rows.process):
        p, end = rows.process[begin], run_end(rows.process, begin, len(rows.process))
        for first in range(begin, end, _BLOCK):
            number = rows.number[first : min(first + _BLOCK, end)]
            rate = rows.rate[first : first + len(number)]
            if _in_order(number):
                into = last[number[0] : number[0] + len(number)]
                for i in range(len(rate)):
                    into[i] = _to_bfloat16(rate[i] * inverse[p])
            else:
                for i in range(len(rate)):
                    last[np.uint64(number[i])] = _to_bfloat16(rate[i] * inverse[p])
        begin = end


@kernel
def fill_mixed(
    mean: Bfloat16s, rows: RateRows, total: Float32s, weight: Float32s, mixed: Float32s
) -> None:
    """Fill ``mixed`` with rates, mixed by ``weight`` with means times the process's ``total``."""
    begin, none = 0, np.float32(0)
    while begin < len(rows.process):
        p, end = rows.process[begin], run_end(rows.process, begin, len(rows.process))
        for first in range(begin, end, _BLOCK):
            number = rows.number[first : min(first + _BLOCK, end)]
            rate, into = rows.rate[first : first + len(number)], mixed[first : first + len(number)]
            if _in_order(number):
                kept = mean[number[0] : number[0] + len(number)]
                for i in range(len(rate)):
                    long = _from_bfloat16(kept[i]) * total[p]
                    into[i] = rate[i] + (weight[p] * (long - rate[i]) if long > none else none)
            else:
                for i in range(len(rate)):
                    long = _from_bfloat16(mean[np.uint64(number[i])]) * total[p]
                    into[i] = rate[i] + (weight[p] * (long - rate[i]) if long > none else none)
        begin = end


class LongRun:
    """The mean rates of pages over the long run, and the evidence for their weight."""

    def __init__(self, cohorts: Cohorts | None = None) -> None:
        self._cohorts = cohorts or Cohorts()
        self._clear()

    def _clear(self) -> None:
        self._tick = -1
        self._last: PageState | None = None
        self._mean: PageState | None = None
        self._processes = ProcessTable()
        # By process: samples behind present rates and behind the mean of earlier ones; the sums of
        # the regression, products and squares.
        self._samples_behind, self._sums = np.zeros((0, 2)), np.zeros((0, 2))

    def weight(self, process: ProcessId) -> float:
        """Return the weight of the mean for a process."""
        slot = self._processes.slot_of(process)
        return float(self._weights()[slot]) if slot >= 0 else 0.0

    def mix_rates(self, pages: PageView) -> Rates:
        """Return accesses per second and page of each row; the first call of a tick learns."""
        rate = pages.rate
        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        before = self._processes.replace(pages.processes)
        if before is not None:
            self._samples_behind = carry_over(self._samples_behind, before)
            self._sums = carry_over(self._sums, before)
        if pages.tick != self._tick:
            self._learn(pages)
        weight = self._weights()
        if self._mean is None or not weight.any():
            return rate
        mean, number = self._mean.in_place(pages)
        accesses = pages.accesses.astype(np.float32)
        part = (weight * self._earlier_share()).astype(np.float32)
        mixed = np.empty(len(pages), np.float32)
        fill_mixed(mean, RateRows(number, pages.process, rate), accesses, part, mixed)
        return mixed

    def _earlier_share(self) -> Values:
        """Return which share of each process's samples is from before its heat changed."""
        part: Values = self._samples_behind[:, _EARLIER] / np.maximum(
            self._samples_behind.sum(axis=1), _MIN_SAMPLES
        )
        return part

    def _weights(self) -> Values:
        """Return the weight of the mean by process."""
        weight: Values = np.clip(self._sums[:, 0] / (self._sums[:, 1] + _PRIOR_EVIDENCE), 0.0, 1.0)
        return weight

    def _learn(self, pages: PageView) -> None:
        """Update weights by the samples of a tick, and store its rates."""
        self._sums *= _RETENTION
        for each in self._cohorts.compare(pages, Purpose.LONG_RUN):
            now, mean = each.predicted
            # The variance of a count is its mean.
            apart, variance = mean - now, max((now + mean) / 2, 1.0)
            self._sums[each.slot] += np.array([each.counted - now, apart]) * apart / variance
        changed = pages.unchanged_ticks < pages.tick - self._tick
        self._tick = pages.tick
        if self._last is None:
            self._last = PageState(np.uint16, 0)
        last, number = self._last.in_place(pages)
        rows = RateRows(number, pages.process, pages.rate)
        if changed.any():
            self._close_period(pages, changed, last, rows)
        self._samples_behind *= 1 - 1 / _MEAN_TICKS
        self._samples_behind[:, _PRESENT] += pages.process_samples
        accesses = pages.accesses
        inverse = np.divide(1.0, accesses, out=np.zeros(len(accesses)), where=accesses > 0)
        store_shares(last, rows, inverse.astype(np.float32))
        if self._tick % _STRIDE == 0 and self._mean is not None:
            self._form_cohorts(pages, last, self._mean.in_place(pages)[0])

    def _close_period(
        self, pages: PageView, changed: npt.NDArray[np.bool_], last: Bfloat16s, rows: RateRows
    ) -> None:
        """Add the rates of the last tick to the means of processes whose heat has ``changed``."""
        if self._mean is None:
            self._mean = PageState(np.uint16, 0)
        behind = self._samples_behind
        behind[changed, _EARLIER] += behind[changed, _PRESENT]
        part = changed * behind[:, _PRESENT] / np.maximum(behind[:, _EARLIER], _MIN_SAMPLES)
        update_means(last, self._mean.in_place(pages)[0], rows, part.astype(np.float32))
        behind[changed, _PRESENT] = 0.0

    def _form_cohorts(self, pages: PageView, last: Bfloat16s, mean: Bfloat16s) -> None:
        """Follow the pages whose means are furthest above, and below, their present rates."""
        # Of a part of the rows, which is another one each time.
        rows = slice(self._tick // _STRIDE % _ROWS_APART, None, _ROWS_APART)
        process, address, number = (
            pages.process[rows],
            pages.address[rows],
            pages.storage_index[rows],
        )
        now, earlier = (_to_float32(kept[number]) * pages.size[rows] for kept in (last, mean))
        part = self._earlier_share()
        apart = np.where(earlier > 0, part[process] * (earlier - now), 0.0)
        for slot in busiest_processes(pages.accesses * (part > 0)):
            of_process = np.flatnonzero(process == slot)
            count = min(_MAX_COHORT_PAGES, len(of_process) // 2)
            if not count:
                continue
            ends = np.argpartition(apart[of_process], (count, len(of_process) - count))
            for chosen in (of_process[ends[:count]], of_process[ends[-count:]]):
                share, more = float(now[chosen].sum()), float(apart[chosen].sum())
                one = pages.processes[slot], address[chosen]
                self._cohorts.form(Purpose.LONG_RUN, *one, share, share + more)


def _to_float32(kept: Bfloat16s) -> Rates:
    return (kept.astype(np.uint32) << _BITS).view(np.float32)
