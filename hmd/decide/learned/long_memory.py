"""The long memory: what pages had over many ticks, mixed with what they have now.

Takes the page view of each tick and rates for the next ticks; gives rates that revert to the mean.
The heat table forgets what recent samples contradict, so that it follows hot sets that move. But
much of what changes comes back: a program that alternates between phases, or walks through its
data, has the same pages hot over many ticks that no single phase shows. Moves then pay by the mean
over all of them, and not by the phase that is about to end.

The mean of a page is over some 64 ticks or, with few samples, over as many as the heat table halves
its history after: its posterior mean under a Gamma-Poisson model that shares samples within blocks
of 64 KiB, as in :mod:`hmd.heat.rates.posterior_rates`. It is mixed with the given rates. The
weight, 0 to 1 in quarters per process, is the one under which the samples of the 16 ticks that
followed were the most likely: a choice among experts by their likelihood (Vovk, "Aggregating
strategies", COLT 1990). Moves have to pay within about so many ticks. Where a hot set moves for
good the weight becomes 0.

Costs 12 bytes per page, and about 20 ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.process_slots import ProcessSlots, carried
from hmd.heat.heat_settings import HeatSettings
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.decide.learned.long_kernel import LongRows
    from hmd.heat.view.page_state import PageState
    from hmd.heat.view.page_view import PageView

# What a tick keeps of earlier samples: half after so many per page, as the heat table does, but not
# less than this.
_STAY: Final = 1 - 1 / 64
_COOLING: Final = HeatSettings().cooling_samples_per_page
# Ticks between two snapshots of rates.
_STRIDE: Final = 4
# What a tick keeps of earlier evidence.
_MEMORY: Final = 0.95
# In bits, by weight: before there are samples, a quarter is taken.
_PRIOR: Final = np.array([-1.0, 0.0, -1.0, -2.0, -4.0])
# As for the rates of the view: the prior of blocks weighs this part of what their spread says.
_PRIOR_PART: Final = 0.25
_LEAST_SPREAD: Final = 1e-3
_LEAST: Final = 1e-12

Rates = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LongRates:
    """The mean ``rate`` of each row over the long run, the samples behind it, and its ``weight``.

    ``rate``, in accesses per second and 4 KiB, and ``support`` have shape ``(n,)``; ``weight`` is
    by process.
    """

    rate: Rates
    support: Rates
    weight: Values

    def mixed(self, pages: PageView, rate: Rates) -> Rates:
        """Return rates of a view, mixed with those of the long run; shape ``(n,)``."""
        return self._mixed(pages, self.rate, rate)

    def mixed_support(self, pages: PageView) -> Rates:
        """Return the samples behind mixed rates; shape ``(n,)``."""
        return self._mixed(pages, self.support, pages.support)

    def _mixed(self, pages: PageView, long: Rates, now: Rates) -> Rates:
        from hmd.decide.learned.long_kernel import mix_rates

        mixed = np.empty(len(now), np.float32)
        mix_rates(pages.process, self.weight, long, now, mixed)
        return mixed


class LongMemory:
    """Keeps the samples of many ticks, and how likely rates made those that followed."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._tick, self._ticks = -1, 0
        self._counts: PageState | None = None
        self._ratios: PageState | None = None
        self._slots = ProcessSlots()
        # By process: bits by weight, and the pid.
        self._evidence = np.zeros((0, len(_PRIOR)))
        self._pid = np.zeros(0, np.uint64)

    def weight(self, process: ProcessId) -> float:
        """Return the weight of the long run for a process."""
        slot = self._slots.find(process)
        evidence = self._evidence[slot : slot + 1] if slot >= 0 else np.zeros((1, len(_PRIOR)))
        return float(weights_of(evidence)[0])

    def rates(self, pages: PageView, rate: Rates) -> LongRates:
        """Return the rates of the long run; ``rate`` has those that they are to be mixed with.

        The first call of a tick learns from its samples.
        """
        from hmd.decide.learned.long_kernel import KEPT, SNAPSHOTS, keep_ratios
        from hmd.heat.view.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._counts is None or self._ratios is None:
            self._counts = PageState(np.float32, 0, KEPT)
            self._ratios = PageState(np.int8, 0, SNAPSHOTS)
        self._follow(pages.processes)
        news = pages.tick != self._tick
        ratios, number = self._ratios.in_place(pages)
        if news:
            self._tick = pages.tick
            self._learn(pages, ratios, number)
        counts, number = self._counts.in_place(pages)
        rows = self._rows(pages, number)
        long, support = self._means(pages, rows, counts, news)
        if news:
            if self._ticks % _STRIDE == 0:
                keep_ratios(rows, long, rate, ratios, self._ticks // _STRIDE % SNAPSHOTS)
            self._ticks += 1
        return LongRates(long, support, weights_of(self._evidence))

    def _follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Bring what is known of processes to their present slots."""
        before = self._slots.follow(processes)
        if before is not None:
            self._evidence = carried(self._evidence, before)
            self._pid = np.array([process.pid for process in processes], np.uint64)

    def _rows(self, pages: PageView, number: npt.NDArray[np.int64]) -> LongRows:
        from hmd.decide.learned.long_kernel import LongRows, number_blocks

        block = np.empty(len(pages), np.int32)
        number_blocks(pages.address, pages.process, self._pid, _bits(len(pages)), block)
        return LongRows(number, pages.process, block, pages.size, pages.tick_samples, pages.rate)

    def _means(
        self,
        pages: PageView,
        rows: LongRows,
        counts: npt.NDArray[np.float32],
        news: bool,
    ) -> tuple[Rates, Rates]:
        """Return the rates of the long run and their support, with a tick's samples if ``news``."""
        from hmd.decide.learned.long_kernel import (
            BLOCK_EXCESS,
            BLOCK_SCALE,
            BLOCK_SUMS,
            EXPOSURE,
            PAGE_EXCESS,
            PAGE_SCALE,
            SUMS,
            TOTAL,
            count_samples,
            fill_long,
            sum_deviations,
        )  # fmt: skip
        from hmd.decide.process_sums import add_sizes

        by_block = np.zeros((1 << _bits(len(pages)), BLOCK_SUMS))
        sums = np.zeros((len(pages.processes), SUMS))
        heard = pages.process_samples.astype(np.float64)
        if not news:
            heard = np.zeros(len(heard))
            rows = rows._replace(samples=np.zeros(len(pages), np.float32))
        resident = np.zeros(len(heard))
        add_sizes(pages.process, pages.size, resident)
        stay = np.exp2(-heard / np.maximum(_COOLING * resident, 1.0))
        stay = np.maximum(stay, _STAY) if news else np.ones(len(heard))
        count_samples(counts, rows, heard, stay, by_block, sums)
        mean = sums[:, TOTAL] / np.maximum(sums[:, EXPOSURE], _LEAST)
        sum_deviations(counts, rows, mean, by_block, sums)
        blocks = _spread(sums[:, BLOCK_EXCESS], sums[:, BLOCK_SCALE])
        each = _spread(sums[:, PAGE_EXCESS], sums[:, PAGE_SCALE])
        prior = np.stack([mean, _PRIOR_PART / blocks, 1.0 / each], axis=1)
        rate, support = np.empty(len(pages), np.float32), np.empty(len(pages), np.float32)
        fill_long(counts, rows, prior, by_block, sums, rate, support)
        return rate, support

    def _learn(
        self, pages: PageView, ratios: npt.NDArray[np.int8], number: npt.NDArray[np.int64]
    ) -> None:
        """Add the evidence of a tick's samples."""
        from hmd.decide.learned.long_kernel import weigh_ratios

        self._evidence *= _MEMORY
        weigh_ratios(pages.tick_samples, number, pages.process, ratios, self._evidence)


def weights_of(evidence: Values) -> Values:
    """Return the weight under which samples were the most likely, by process; ``(processes,)``.

    ``evidence`` has the log likelihoods of samples in bits, ``(processes, 5)``.
    """
    found: Values = np.argmax(evidence + _PRIOR, axis=1) / (len(_PRIOR) - 1)
    return found


def _bits(rows: int) -> int:
    """Return how many bits number blocks, so that few of them share a number."""
    return max(rows // 4, 1024).bit_length()


def _spread(excess: Values, scale: Values) -> Values:
    """Return how far rates differ from a mean, relative to it, squared; the method of moments."""
    found: Values = np.maximum(excess / np.maximum(scale, _LEAST), _LEAST_SPREAD)
    return found
