"""The features of the learned policy: scale-free figures per row.

Takes the page view of each tick, gives a column per feature
(:data:`hmd.decide.learned.feature_kernel.FEATURES`, in version :data:`VERSION`). Figures of earlier
ticks are kept per page, 20 bytes each, and by part of memory: blocks of 64 KiB or, beyond 128 MiB,
a 2048th of the memory, and areas of eight blocks. The first call of a tick learns from it; a second
gives the same. About 40 ns per page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.learned.sequence_memory import PhasePrediction, SequenceMemory
from hmd.decide.process_slots import ProcessSlots, carried
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.decide.learned.feature_kernel import RowColumns, Surroundings
    from hmd.heat.view.page_state import PageState
    from hmd.heat.view.page_view import PageView

VERSION: Final = 2
"""Version of the features: weights are of one version, and a change of a feature is another."""

_BLOCK_SHIFT: Final = 16
# Averages over about 2 and 16 ticks, of parts and of processes.
_NOW: Final = 0.4
_LONG: Final = 1 / 16
_LEAST: Final = 1e-12
_LEAST_MEAN: Final = 1e-20

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """The rows of a view; features are computed for some rows at a time.

    Valid until the features of the next tick.
    """

    _kept: npt.NDArray[np.float32]
    _rows: RowColumns
    _around: Surroundings

    def fill(self, begin: int, columns: npt.NDArray[np.float32]) -> None:
        """Fill ``columns``, shape ``(len(FEATURES), k)``, with those of the k rows from there."""
        from hmd.decide.learned.feature_kernel import fill_features

        fill_features(self._kept, self._rows, self._around, begin, columns)

    def columns(self) -> npt.NDArray[np.float32]:
        """Return the features of all rows, shape ``(len(FEATURES), n)``."""
        from hmd.decide.learned.feature_kernel import FEATURES

        every = np.empty((len(FEATURES), len(self._rows.rate)), np.float32)
        self.fill(0, every)
        return every


class LearnedFeatures:
    """Computes the features, tick by tick, of the processes of one heat table at a time."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._tick, self._ticks = -1, 0
        self._kept: PageState | None = None
        self._slots = ProcessSlots()
        # By process: its average rate, and its pid.
        self._rate, self._pid = np.zeros(0), np.zeros(0, np.uint64)
        self._forget_parts(_BLOCK_SHIFT)

    def _forget_parts(self, shift: int) -> None:
        """Begin with parts of another size."""
        from hmd.decide.learned.feature_kernel import BLOCKS, PARTS

        self._shift = shift
        self._sequence = SequenceMemory(PARTS, BLOCKS)
        self._now, self._past = np.zeros(PARTS), np.zeros(PARTS)
        self._prediction = PhasePrediction(np.zeros(PARTS, np.float32), 0.0, 0)

    def rows(self, pages: PageView) -> RowFeatures:
        """Learn from the tick of a view; return the features of its rows, not computed yet."""
        from hmd.decide.learned.feature_kernel import (
            BLOCKS,
            KEPT,
            PARTS,
            SUMS,
            RowColumns,
            age_kept,
            number_parts,
            sum_rows,
        )
        from hmd.heat.view.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._kept is None:
            self._kept = PageState(np.float32, 0, KEPT)
        kept, number = self._kept.in_place(pages)
        self._follow(pages)
        news = pages.tick != self._tick
        if news:
            self._tick = pages.tick
            age_kept(kept, number, pages.tick_samples, pages.tick)
            self._size_parts(pages)
        count = len(pages)
        block, area = np.empty(count, np.int32), np.empty(count, np.int32)
        number_parts(pages.address, pages.process, self._pid, self._shift, block, area)
        rows = RowColumns(
            number,
            pages.process,
            block,
            area,
            pages.tier,
            pages.size,
            pages.wear,
            pages.rate,
            pages.support,
            pages.tick_samples,
            pages.idle_ticks,
        )
        by_process, by_part = np.zeros((len(pages.processes), SUMS)), np.zeros((PARTS, 2))
        sum_rows(kept, rows, by_process, by_part)
        samples = float(by_part[:BLOCKS, 0].sum())
        if news:
            self._learn(pages, by_part[:, 0] / max(samples, 1.0), samples > 0)
        around = self._around(pages, by_process, by_part[:, 1], samples)
        return RowFeatures(kept, rows, around)

    def _size_parts(self, pages: PageView) -> None:
        """Make parts larger where there is so much memory that it does not fit into them."""
        from hmd.decide.learned.feature_kernel import BLOCKS

        memory = (float(pages.size.sum()) + float(pages.beyond.pages.sum())) * PAGE_BYTES
        shift = _BLOCK_SHIFT
        while memory > BLOCKS << shift:
            shift += 1
        # Not back again at once: what is known of parts is lost.
        if not self._shift - 1 <= shift <= self._shift:
            self._forget_parts(shift)

    def _learn(self, pages: PageView, share: Values, sampled: bool) -> None:
        """Remember what parts and processes had in the tick."""
        if sampled:
            self._ticks += 1
            self._now += _NOW * (share - self._now)
            self._past += _LONG * (share - self._past)
            self._prediction = self._sequence.update(share.astype(np.float32))
        self._rate += _LONG * (pages.process_rate - self._rate)

    def _follow(self, pages: PageView) -> None:
        """Bring what is known of processes to their present slots; new ones begin as they are."""
        before = self._slots.follow(pages.processes)
        if before is not None:
            self._pid = np.array([process.pid for process in pages.processes], np.uint64)
            self._rate = np.where(before < 0, pages.process_rate, carried(self._rate, before))

    def _around(
        self, pages: PageView, by_process: Values, part_pages: Values, samples: float
    ) -> Surroundings:
        """Return what the rows share."""
        from hmd.decide.learned.feature_kernel import FLOOR, SIZE, Surroundings

        mean = (by_process[:, :SIZE] / np.maximum(by_process[:, SIZE:], 1.0)).astype(np.float32)
        total = max(float(by_process[:, SIZE].sum()), 1.0)
        # Per page of a part, over the mean of all pages: an average begins with its first tick.
        over = total / np.maximum(part_pages, 1.0)
        begun = [max(1.0 - (1.0 - gain) ** self._ticks, _LEAST) for gain in (_NOW, _LONG)]
        shares = (self._prediction.share, self._now / begun[0], self._past / begun[1])
        parts = np.stack([np.log2(share * over + FLOOR) for share in shares], axis=1)
        change = np.log2((pages.process_rate + _LEAST) / (self._rate + _LEAST))
        density = np.log2(max(samples, 1.0) / total)
        common = [self._prediction.similarity, np.log2(1.0 + self._prediction.ticks), density]
        return Surroundings(
            mean,
            np.float32(1) / (mean + np.float32(_LEAST_MEAN)),
            parts.astype(np.float32),
            np.array(common, np.float32),
            change.astype(np.float32),
        )
