# SPDX-License-Identifier: MIT
"""What former runs tell of a run's pages, and policies that use it.

``Former`` has misses of former runs by object, place and progress, and nothing of this run but its
mappings, when its pages are first accessed (as :mod:`bench.known_misses` keeps room for them) and
how far it is. Progress is a share of all misses, which no daemon knows exactly. ``Resolution`` is
how much of it a profile keeps: pages or blocks, phases, and rates in bits. ``Mixed`` is the
daemon's policy and that of the former runs, tick by tick the one whose rates made this run's
samples likelier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.known_misses import KnownMisses, Pages, PageValues, Values
from bench.second_run.objects import Objects, pages_in
from hmd.emulate.recordings.misses import MissStream
from hmd.heat.view import PageView
from hmd.learn.rows import MissValues
from hmd.policy.plan import MachineView, Plan, Policy
from hmd.simulate.machine import SimulatedMachine

Floats = npt.NDArray[np.float32]

PHASES: Final = 1000
"""Phases of a former run of which all misses are known: the slots of ``MissValues``."""
_HISTORY: Final = 0.8
"""What is left of a tick's evidence one tick later."""
_UNIFORM: Final = 0.1
"""Share of samples that either policy expects on any page alike."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """How much of a former run is kept.

    ``blocks``: how many the objects share, by their sizes; ``block_pages``: pages of a block, where
    ``blocks`` is 0. ``bits`` per block and phase, 0 for exact rates: a level more is a rate higher
    by ``2 ** (8 / 2 ** (bits - 1))``, and 0 stands for none.
    """

    blocks: int = 0
    block_pages: int = 1
    phases: int = PHASES
    bits: int = 0

    @property
    def profile_bytes(self) -> int:
        """Size of a profile of so many blocks."""
        return self.blocks * self.phases * self.bits // 8


@dataclass(frozen=True, slots=True)
class FormerStream:
    """A former run: its recording, what its misses save, its objects."""

    stream: MissStream
    values: MissValues
    objects: Objects


class Former:
    """Values of the pages of one run, by the mean of former ones: a ``PageValues``."""

    def __init__(
        self,
        own: FormerStream,
        former: Sequence[FormerStream],
        resolution: Resolution,
        shuffled: np.random.Generator | None = None,
    ) -> None:
        """``shuffled`` gives each block the rates of another one: a profile that is wrong."""
        self.first_row = own.values.first_row
        self._rows, self._phases = len(own.stream), resolution.phases
        pages = own.stream.user_pages
        self._sums = np.zeros((self._phases + 1, pages), np.float32)
        for each in former:
            saved = _by_phase(each, resolution)
            if shuffled is not None:
                saved = saved[:, shuffled.permutation(saved.shape[1])]
            page, factor = pages_in(own.objects, each.objects)
            known = np.flatnonzero(page >= 0)
            share = factor[known] / len(former)
            # A run of more misses has more of each page.
            share *= len(own.stream) / len(each.stream)
            self._sums[1:, known] += saved[:, page[known]] * share.astype(np.float32)
        np.cumsum(self._sums, axis=0, out=self._sums)

    def between(self, begin: int, end: int) -> Values:
        """Return the seconds that each page's misses of these rows are expected to save."""
        saved: Values = self._until(end) - self._until(begin)
        return saved

    def _until(self, row: int) -> Values:
        place = min(max(row / self._rows, 0.0), 1.0) * self._phases
        whole = min(int(place), self._phases - 1)
        first, last = self._sums[whole].astype(np.float64), self._sums[whole + 1]
        return np.asarray(first + (last - first) * (place - whole))


def _by_phase(former: FormerStream, resolution: Resolution) -> Floats:
    """Return the seconds that each page's misses save in each phase, as a profile has them."""
    rows, phases = len(former.stream), resolution.phases
    ends = [rows * phase // phases for phase in range(phases + 1)]
    saved = np.stack([former.values.between(*span) for span in pairwise(ends)])
    block = blocks_of(former.objects, resolution)
    of_block = np.bincount(block)
    for phase in saved:
        phase[:] = (np.bincount(block, phase) / of_block)[block]
    return quantised(saved, resolution.bits).astype(np.float32)


def blocks_of(objects: Objects, resolution: Resolution) -> Pages:
    """Return the block of each page, numbered from 0; pages of no object share the last."""
    sizes = objects.sizes
    if resolution.blocks:
        counts = np.maximum(resolution.blocks * sizes // max(int(sizes.sum()), 1), 1)
    else:
        counts = -(-sizes // resolution.block_pages)
    counts = np.minimum(counts, sizes)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    of = np.maximum(objects.number, 0)
    block = np.full(len(of), first[-1], np.int64)
    if len(sizes):
        within = first[of] + objects.offset * counts[of] // sizes[of]
        block = np.where(objects.number >= 0, within, first[-1])
    return np.unique(block, return_inverse=True)[1].astype(np.int64)


def quantised(rates: npt.NDArray[np.float64], bits: int) -> npt.NDArray[np.float64]:
    """Return rates as a profile of so many bits has them: logarithmic below the highest."""
    most = float(rates.max(initial=0.0))
    if not bits or most <= 0:
        return rates
    step = 8 / 2 ** (bits - 1)
    with np.errstate(divide="ignore"):
        level = np.round(np.log2(rates / most) / step)
    return np.where(level > -(2**bits - 1), most * 2.0 ** (level * step), 0.0)


class Mixed:
    """Two policies, of which the likelier one's plan is taken: the former runs' before samples."""

    def __init__(
        self,
        machine: SimulatedMachine,
        values: PageValues,
        former: KnownMisses,
        policy: Policy,
    ) -> None:
        self.name = "mixed"
        self._machine, self._values = machine, values
        self._former, self._policy = former, policy
        self._address = machine.stream.page_address[: machine.stream.user_pages]
        self._evidence, self._row = 0.0, 0
        self._seen: Values | None = None
        self._ticks = self._former_ticks = self._left_at = 0
        self._bits = self._samples = 0.0

    def evidence(self) -> dict[str, float]:
        """Return what samples said of the former runs.

        ``left_at`` is the first tick that did not follow them, 0 for none; ``bits_per_sample`` by
        how much they made the mean sample likelier than the policy's own rates did.
        """
        return {
            "ticks": self._ticks,
            "former_ticks": self._former_ticks,
            "left_at": self._left_at,
            "samples_per_tick": round(self._samples / max(self._ticks, 1), 1),
            "bits_per_sample": round(self._bits / max(self._samples, 1.0), 3),
        }

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the plan of the likelier policy; both see the tick."""
        row = self._machine.row
        at = np.minimum(np.searchsorted(self._address, pages.address), len(self._address) - 1)
        samples = np.bincount(at, pages.tick_samples, len(self._address))
        resident = self._values.first_row < row
        if self._seen is not None:
            known = self._values.between(self._row, row)
            gain = np.log2(_shares(known, resident) / _shares(self._seen, resident))
            bits = float(samples @ gain)
            self._evidence = _HISTORY * self._evidence + bits
            self._bits, self._samples = self._bits + bits, self._samples + float(samples.sum())
        self._seen = np.bincount(at, pages.rate, len(self._address)).astype(np.float64)
        self._row = row
        trusted = self._evidence >= 0
        self._ticks, self._former_ticks = self._ticks + 1, self._former_ticks + trusted
        if not trusted:
            self._left_at = self._left_at or self._ticks
        known_plan = self._former.plan(pages, machine)
        plan = self._policy.plan(pages, machine)
        # The heat table takes moves of the pages that it has, and these are not all: it sweeps.
        listed = np.flatnonzero(np.isin(known_plan.address, pages.address))
        return known_plan.take(listed) if trusted else plan


def _shares(rates: Values, resident: npt.NDArray[np.bool_]) -> Values:
    """Return the share of samples that is expected on each page, never 0."""
    here = np.where(resident, rates, 0.0)
    uniform = 1 / max(len(rates), 1)
    total = here.sum()
    return (1 - _UNIFORM) * here / total + _UNIFORM * uniform if total > 0 else here + uniform
