# SPDX-License-Identifier: MIT
"""Trust in the network: how far its answers are taken, by what they proved on this very program.

Takes the network's answers of each tick and the samples that follow; gives rates. A network may be
wrong of a program that is unlike those of its training. Its answers, octaves on a rate, are
therefore taken times a factor of 0, 1/4, 1/2, 3/4 or 1: the one under which the samples of the
ticks that followed were the most likely, of the last ticks, per process. This is a choice among
experts by their likelihood (Vovk, "Aggregating strategies", COLT 1990). Rates keep their sum per
process, so that the likelihood of Poisson counts does not depend on it. Costs 8 bytes per page, and
about 15 ns.

The kernels of the trust in the network: rates by its answers, and what samples say of those.

About 8 ns per row, and 25 ns per sampled row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import (
    Float32s,
    Float64Plane,
    Float64s,
    Int32s,
    Int64s,
    Layout,
    Uint16s,
    inline,
    kernel,
)
from hmd.heat.counting import run_end
from hmd.linux.process_table import ProcessTable, carry_over
from hmd.linux.procfs import ProcessId

if TYPE_CHECKING:
    from hmd.heat.page_state import PageState
    from hmd.heat.view import PageView

LEVELS: Final = 5
"""Factors on an answer: 0, 1/4, 1/2, 3/4, 1."""
FOLLOWED: Final = 8
"""Ticks whose answers samples are compared with."""
MAX_OCTAVES: Final = 7.9
"""Answers are taken as far as this, in octaves above or below 0."""

# Answers are kept in 16ths of an octave.
_STEPS: Final = np.float32(16)
_QUARTER: Final = np.float32(1 / 4)
# Above all quarters of answers, so that what is added to them is positive.
_ABOVE: Final = 4

Int8Plane: TypeAlias = Annotated[npt.NDArray[np.int8], Layout(2)]


def _power() -> tuple[float, ...]:
    """Return a polynomial for 2**x on [-1/2, 1/2], highest power first; its error is below 1e-8."""
    nodes = 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    return tuple(float(c) for c in np.polyfit(nodes, np.exp2(nodes), 6))


_P6, _P5, _P4, _P3, _P2, _P1, _P0 = (np.float32(c) for c in _power())


class AnsweredRows(NamedTuple):
    """Columns of the rows of a view, and the network's answers, ``octaves``; shape ``(n,)``."""

    rate: Float32s
    octaves: Float32s
    size: Uint16s
    process: Int32s
    number: Int64s


@inline
def _exp2(x: np.float32) -> np.float32:
    """Return 2**x of a quarter of an answer, without a call or branch: loops vectorise."""
    whole = np.int32(np.int32(x + np.float32(_ABOVE + 0.5)) - np.int32(_ABOVE))
    f = x - np.float32(whole)
    part = (((((_P6 * f + _P5) * f + _P4) * f + _P3) * f + _P2) * f + _P1) * f + _P0
    return part * np.int32(np.int32(whole + np.int32(127)) << np.int32(23)).view(np.float32)


@inline
def _add_sums(rows: AnsweredRows, quarter: Float32s, begin: int, end: int, sums: Float64s) -> None:
    """Add what each factor would give of rows of one process; sums stay in registers."""
    none, one, two, three, four = 0.0, 0.0, 0.0, 0.0, 0.0
    for row in range(begin, end):
        each, accesses = quarter[row], rows.rate[row] * np.float32(rows.size[row])
        none += accesses
        one += accesses * each
        two += accesses * (each * each)
        three += accesses * (each * each * each)
        four += accesses * (each * each) * (each * each)
    sums[0] += none
    sums[1] += one
    sums[2] += two
    sums[3] += three
    sums[4] += four


@kernel
def correct_rates(
    rows: AnsweredRows,
    level: Int64s,
    kept: Int8Plane,
    slot: int,
    sums: Float64Plane,
    corrected: Float32s,
) -> None:
    """Fill ``corrected``, shape ``(n,)``: ``rate`` times 2 to the power of octaves times a factor.

    The factor is ``level`` of its process over 4. Each process's sum over its pages is as before.
    ``sums``, shape ``(processes, LEVELS)`` and 0, becomes the sums that each factor would give.
    Answers are kept in column ``slot``, unless it is below 0.
    """
    one, most, count = np.float32(1), np.float32(MAX_OCTAVES), len(rows.rate)
    for row in range(count):
        corrected[row] = _exp2(min(max(rows.octaves[row], -most), most) * _QUARTER)
    if slot >= 0:
        for row in range(count):
            octave = min(max(rows.octaves[row], -most), most)
            kept[rows.number[row], slot] = np.int8(np.rint(octave * _STEPS))
    begin = 0
    while begin < count:
        end = run_end(rows.process, begin, count)
        _add_sums(rows, corrected, begin, end, sums[rows.process[begin]])
        begin = end
    begin = 0
    while begin < count:
        p, end = rows.process[begin], run_end(rows.process, begin, count)
        chosen, total = level[p], sums[p, level[p]]
        scale = np.float32(sums[p, 0] / total) if total > 0.0 else one
        for row in range(begin, end):
            each = corrected[row]
            power = (each if chosen & 1 else one) * (each * each if chosen & 2 else one)
            power *= each * each * each * each if chosen & 4 else one
            corrected[row] = rows.rate[row] * power * scale
        begin = end


@kernel
def weigh_answers(
    samples: Float32s,
    number: Int64s,
    process: Int32s,
    kept: Int8Plane,
    known: Float64Plane,
    said: Float64Plane,
) -> None:
    """Add to ``said``, shape ``(processes, 2)``: octaves of answers times samples, and samples.

    Octaves are summed over the ticks that are followed, as far as ``known``, shape
    ``(processes, FOLLOWED)``, is 1 for them and not 0.
    """
    for row in range(len(samples)):
        if samples[row] > 0:
            p, at, octaves = process[row], number[row], 0.0
            for slot in range(FOLLOWED):
                octaves += kept[at, slot] * known[p, slot]
            said[p, 0] += samples[row] * octaves / _STEPS
            said[p, 1] += samples[row]


# What a tick keeps of earlier evidence.
_MEMORY: Final = 0.95
# In bits, by factor: before there are samples, half of an answer is taken.
_PRIOR: Final = np.array([-8.0, -2.0, 0.0, -2.0, -8.0])
_FACTORS: Final = np.linspace(0.0, 1.0, len(_PRIOR))

Values = npt.NDArray[np.float64]


class NetworkTrust:
    """Keeps the answers of the last ticks, and how likely they made the samples since."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:

        self._tick = -1
        self._kept: PageState | None = None
        self._table = ProcessTable()
        # By process: bits by factor; of each tick that is followed, what factors did to sums.
        self._evidence = np.zeros((0, LEVELS))
        self._norms = np.zeros((0, FOLLOWED, LEVELS))
        self._known = np.zeros((0, FOLLOWED))

    def factor(self, process: ProcessId) -> float:
        """Return the factor at which answers for a process are taken."""
        slot = self._table.slot_of(process)
        evidence = self._evidence[slot] if slot >= 0 else np.zeros_like(_PRIOR)
        return float(_FACTORS[np.argmax(evidence + _PRIOR)])

    def corrected(
        self, pages: PageView, octaves: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the rates of a view, corrected by ``octaves``, both of shape ``(n,)``.

        The first call of a tick learns from its samples, and its answers are kept.
        """
        from hmd.heat.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._kept is None:
            self._kept = PageState(np.int8, 0, FOLLOWED)
        kept, number = self._kept.in_place(pages)
        self._follow(pages.processes)
        news = pages.tick != self._tick
        if news:
            self._learn(pages, kept, number)
            self._tick = pages.tick
        level = np.argmax(self._evidence + _PRIOR, axis=1)
        sums, rate = np.zeros((len(level), LEVELS)), np.empty(len(pages), np.float32)
        slot = pages.tick % FOLLOWED
        rows = AnsweredRows(pages.rate, octaves, pages.size, pages.process, number)
        correct_rates(rows, level, kept, slot if news else -1, sums, rate)
        if news:
            before = np.where(sums[:, :1] > 0, sums[:, :1], 1.0)
            self._norms[:, slot] = np.log2(np.where(sums > 0, sums, before) / before)
            self._known[:, slot] = 1.0
        return rate

    def _follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Bring what is known of processes to their present slots."""
        before = self._table.replace(processes)
        if before is not None:
            self._evidence = carry_over(self._evidence, before)
            self._norms = carry_over(self._norms, before)
            self._known = carry_over(self._known, before)

    def _learn(
        self, pages: PageView, kept: npt.NDArray[np.int8], number: npt.NDArray[np.int64]
    ) -> None:
        """Add the evidence of a tick's samples."""
        said = np.zeros((len(pages.processes), 2))
        weigh_answers(pages.tick_samples, number, pages.process, kept, self._known, said)
        said /= FOLLOWED
        # Log likelihoods in bits relative to factor 0, the mean over the ticks followed.
        norms = (self._norms * self._known[:, :, None]).sum(axis=1)
        self._evidence *= _MEMORY
        self._evidence += said[:, :1] * _FACTORS - said[:, 1:] * norms
