# SPDX-License-Identifier: MIT
"""Learns a profile from the samples of a running process, and merges the profiles of runs.

Takes the samples of each tick; gives a profile when the process has ended. Until then they are
counted by address, in grains of 64 KiB, twice as large whenever a process has samples on more than
``MAX_GRAINS``; and by time, in ``SLICES`` parts, twice as long whenever a run is longer. What they
belong to is known at the end, when all objects are. Keeps at most 1 MiB.

Of a merged profile the latest run gives the objects, and the others their samples by relative place
and by the share of the run that has passed; a run counts less with each one that follows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.linux.mappings import Mappings
from hmd.profiles.objects import MAX_OBJECTS, Objects, match, objects_of
from hmd.profiles.profile import MAX_BLOCKS, Profile, ProfileObject

MAX_GRAINS: Final = 4096
SLICES: Final = 64
MIN_SAMPLES: Final = 100
"""A run with fewer samples tells nothing."""

_GRAIN_SHIFT: Final = 16
_KEEP: Final = 0.6
"""What is left of a run's samples when the next one is merged."""

Floats = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


class RunLearner:
    """What the samples of a process say of its program: one per running process."""

    def __init__(self) -> None:
        self._objects = Objects.none()
        self._shift = _GRAIN_SHIFT
        self._grain = np.empty(0, np.uint64)
        self._counts = np.zeros((SLICES, 0), np.float32)
        self._begun_s: float | None = None
        self._last_s = 0.0
        self._slice_s = self._accesses = 0.0

    def set_mappings(self, mappings: Mappings) -> None:
        """Take the mappings of the process as they are now: in each tick, or every few."""
        self._objects = objects_of(mappings, self._objects)

    def observe(
        self, address: npt.NDArray[np.uint64], weight: npt.NDArray[np.floating], now_s: float
    ) -> None:
        """Add the samples of a tick, which ended at ``now_s`` and may have none.

        Both have shape ``(samples,)``; ``weight`` is how many accesses each stands for.
        """
        if self._begun_s is None:
            self._begun_s = self._last_s = now_s
        if not self._slice_s:
            self._slice_s = now_s - self._begun_s
        self._last_s = max(now_s, self._last_s)
        while self._slice_s and (self._last_s - self._begun_s) / self._slice_s >= SLICES:
            self._slice_s *= 2
            paired = self._counts.reshape(SLICES // 2, 2, -1).sum(axis=1)
            self._counts = np.concatenate([paired, np.zeros_like(paired)])
        total = float(weight.sum())
        if not len(address) or total <= 0:
            return
        self._accesses += total
        grain = np.unique(address >> np.uint64(self._shift))
        while len(known := np.union1d(self._grain, grain)) > MAX_GRAINS:
            self._coarsen()
            grain = np.unique(grain >> np.uint64(1))
        if len(known) > len(self._grain):
            grown = np.zeros((SLICES, len(known)), np.float32)
            grown[:, np.searchsorted(known, self._grain)] = self._counts
            self._grain, self._counts = known, grown
        at = np.searchsorted(known, address >> np.uint64(self._shift))
        now = int((self._last_s - self._begun_s) / self._slice_s) if self._slice_s else 0
        # Accesses in samples: a tick counts by their number, a sample in it by its weight.
        count = np.bincount(at, weight, len(known)) * (len(address) / total)
        self._counts[min(now, SLICES - 1)] += count

    def _coarsen(self) -> None:
        """Make grains twice as large."""
        self._shift += 1
        self._grain, at = np.unique(self._grain >> np.uint64(1), return_inverse=True)
        merged = np.zeros((len(self._grain), SLICES), np.float32)
        np.add.at(merged, at, self._counts.T)
        self._counts = merged.T.copy()

    def finish(self) -> Profile | None:
        """Return the run's profile; None if too little is known of it."""
        count = float(self._counts.sum())
        if self._begun_s is None or not len(self._objects) or count < MIN_SAMPLES:
            return None
        size = self._objects.size_bytes
        grain_bytes = float(1 << self._shift)
        wanted = np.maximum(size // max(grain_bytes, size.sum() / (MAX_BLOCKS - len(size))), 1)
        blocks = wanted.astype(np.int64)
        first = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        middle = (self._grain << np.uint64(self._shift)) + np.uint64(1 << (self._shift - 1))
        block = self._objects.blocks_at(middle, first[:-1], blocks)
        inside = np.flatnonzero(block >= 0)
        if not len(inside):
            return None
        used = int((self._last_s - self._begun_s) / self._slice_s) + 1 if self._slice_s else 1
        used = min(used, SLICES)
        counts = np.zeros((int(first[-1]), used), np.float32)
        np.add.at(counts, block[inside], self._counts[:used, inside].T)
        objects = tuple(
            ProfileObject(key, bytes_, each)
            for key, bytes_, each in zip(
                self._objects.keys, size.tolist(), blocks.tolist(), strict=True
            )
        )
        seconds = self._last_s - self._begun_s
        return Profile(objects, counts.T.copy(), 1.0, seconds, accesses=self._accesses)


def merge(former: Profile | None, run: Profile) -> Profile:
    """Return the profile of a program after a run; ``former`` is that of earlier ones.

    Objects that the run did not have stay, with what is left of their samples.
    """
    if former is None:
        return run
    partner = match(run.sides, former.sides)
    old = _KEEP * _of_phases(former.counts, len(run.counts))
    old_first, first = former.first_block, run.first_block
    parts, objects = [], []
    for at, one in enumerate(run.objects):
        new = run.counts[:, first[at] : first[at + 1]]
        if partner[at] >= 0:
            begin, end = old_first[partner[at]], old_first[partner[at] + 1]
            known = _of_blocks(old[:, begin:end], one.blocks)
            new = new + known
        objects.append(one)
        parts.append(new)
    left, room = MAX_OBJECTS - len(objects), MAX_BLOCKS - int(first[-1])
    for at in [at for at in range(len(former.objects)) if at not in partner][:left]:
        if former.objects[at].blocks <= room:
            room -= former.objects[at].blocks
            objects.append(former.objects[at])
            parts.append(old[:, old_first[at] : old_first[at + 1]])
    counts = np.concatenate(parts, axis=1).astype(np.float32)
    old_part = _KEEP / (1 + _KEEP)
    return replace(
        run, objects=tuple(objects), counts=counts, runs=1 + _KEEP * former.runs,
        seconds=run.seconds + old_part * (former.seconds - run.seconds),
        accesses=run.accesses + old_part * (former.accesses - run.accesses),
        saved_s=run.saved_s + _KEEP * former.saved_s,
    )  # fmt: skip


def _of_phases(counts: Floats, phases: int) -> Floats:
    """Return the counts of other phases, each of which is an equal part of the run."""
    return np.asarray(_of_blocks(counts.T, phases).T)


def _of_blocks(counts: Floats, blocks: int) -> Floats:
    """Return the counts of another number of blocks, each of which is an equal part."""
    before = counts.shape[1]
    if before == blocks:
        return counts
    sums = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    place = np.linspace(0, before, blocks + 1)
    whole = np.minimum(place.astype(np.int64), before - 1)
    until = sums[:, whole] + (sums[:, whole + 1] - sums[:, whole]) * (place - whole)
    return np.asarray(np.diff(until, axis=1), np.float32)
