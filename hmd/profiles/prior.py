# SPDX-License-Identifier: MIT
"""What a profile expects of a running process, and how far this run's samples agree.

A process with a profile has one ``ProfilePrior``. In each tick it learns from the samples, by
blocks of the profile: how likely they were by the profile, held to be exact to several degrees, and
by this run's own counts alone. The likelier a degree has made the samples of the last ticks, the
more it counts in the rates that its moves (:mod:`hmd.policy.former_runs`) have to pay by: from a
weight of a half on, which no profile has before the first sample.

To a profile of strength S a page's rate has a Gamma distribution whose mean is the profile's rate,
and which is worth S samples: it is combined with the page's own as those of two runs would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.base.numba_kernels import Bools, Float32s, Float64Plane, Float64s, Int32s, Uint16s, kernel
from hmd.linux.mappings import Mappings
from hmd.linux.procfs import ProcessId
from hmd.profiles.objects import Blocks, Objects, match, objects_of
from hmd.profiles.profile import Profile

if TYPE_CHECKING:
    from hmd.heat.view import PageView

STRENGTHS: Final = np.array([1.0, 4.0])
"""Samples that a page of the profile is worth; what is not the profile's has none."""

START_SHARE: Final = 0.0003
"""What moves by a profile may cost before any have saved time: a share of what a former run and
this one so far would save if all accesses became fast ones, whatever the clock says."""
FORMER_SHARE: Final = 0.02
"""The same, of what they saved in former runs: the most that a program that has changed loses."""

# What is left of this run's counts a tick later.
_RETENTION: Final = 0.9
# Samples that this run's own rates of blocks begin with, all alike: a profile has to be better than
# memory that is accessed evenly, held to be so to the same degrees.
_OWN_STRENGTHS: Final = (0.5, 1.0, 4.0)
# Part of the weight that goes to all degrees alike in each tick, so that none is lost for good.
_SHARED: Final = 0.02
# Weight of a profile before the first sample.
_BEGIN: Final = 0.05
# Samples of one tick are not independent: so much of each counts.
_TEMPER: Final = 0.5
# Part of all samples that is expected on any block alike.
_UNIFORM: Final = 0.02
# Samples that a block of the profile has beside those counted, by the mean of its object.
_SMOOTH: Final = 1.0
# Samples that a phase of the profile has beside those counted, by the mean of all phases.
_PHASE_SMOOTH: Final = 100.0
# Most ticks for which moves by the profile pay.
_HORIZON_TICKS: Final = 64.0
# Part of the belief that a run may be in any phase when it begins, and after each tick.
_ANYWHERE: Final = 0.2
_JUMPS: Final = 0.02
# With more weight than this, this run's own samples decide alone.
_NO_TRUST: Final = 0.5
_MIN: Final = 1e-12

Addresses = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float64]
Rates = npt.NDArray[np.float32]


@kernel
def count_blocks(size: Uint16s, rate: Float32s, block: Int32s, into: Float64Plane) -> None:
    """Add up the pages of rows and their accesses by block; rows of block -1 have none."""
    for row in range(len(block)):
        at = block[row]
        if at >= 0:
            into[0, at] += size[row]
            into[1, at] += np.float64(rate[row]) * size[row]


@kernel
def mix_rates(
    block: Int32s, mean: Float64s, weights: Float64s, rate: Float32s, support: Float32s
) -> None:
    """Replace rates and support of rows with a block, of which the profile has the ``mean`` rate.

    ``weights`` are those of this run's own rates and of each strength of the profile.
    """
    more = np.float32((weights[1:] * STRENGTHS).sum())
    for row in range(len(block)):
        if block[row] >= 0:
            own, samples = np.float64(rate[row]), np.float64(support[row])
            exposure, each = samples / max(own, _MIN), 1.0 / max(mean[block[row]], _MIN)
            mixed = weights[0] * own
            for at in range(len(STRENGTHS)):
                post = (samples + STRENGTHS[at]) / (exposure + STRENGTHS[at] * each)
                mixed += weights[at + 1] * post
            rate[row] = mixed
            support[row] += more


class ProfilePrior:
    """What is expected of one running process; keeps its evidence from tick to tick."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.tick = -1
        """The tick of the heat table whose samples were learned last."""
        self._objects = Objects.none()
        self._partner = np.empty(0, np.int64)
        self._first = profile.first_block
        blocks, phases = int(self._first[-1]), len(profile.counts)
        self._shares = _smoothed(profile)
        self._until = np.concatenate([np.zeros((1, blocks)), np.cumsum(self._shares, axis=0)])
        self._belief = np.full(phases, _ANYWHERE / phases)
        self._belief[0] += 1.0 - _ANYWHERE
        self._step = 1.0
        self.access_s = self.accesses = 0.0
        """What a fast access saves now, and how many accesses this run has made."""
        self.saved_s = 0.0
        """What moves by the profile have saved in this run, less what they cost."""
        # By block: this run's counts, and resident pages.
        self._own, self._pages = np.zeros(blocks), np.zeros(blocks)
        strengths = len(STRENGTHS)
        own = len(_OWN_STRENGTHS)
        self._log = np.log([(1.0 - _BEGIN) / own] * own + [_BEGIN / strengths] * strengths)

    def set_mappings(self, mappings: Mappings) -> None:
        """Take the mappings of the process as they are now: in each tick, or every few."""
        before, self._objects = self._objects, objects_of(mappings, self._objects)
        keys, size = self._objects.keys, self._objects.size_bytes
        if keys != before.keys or (size != before.size_bytes).any():
            self._partner = match((keys, size), self.profile.sides)

    @property
    def weights(self) -> Values:
        """Weights of this run's own counts, and of each strength of the profile; sum 1."""
        weight = self._degrees()
        own = len(_OWN_STRENGTHS)
        return np.concatenate([[weight[:own].sum()], weight[own:]])

    def _degrees(self) -> Values:
        """Return the weight of each degree, of this run's own ones first."""
        weight = np.exp(self._log - self._log.max())
        return np.asarray(weight / weight.sum())

    @property
    def trust(self) -> float:
        """The weight of the profile, from 0 to 1."""
        return float(1.0 - self.weights[0])

    def blocks_at(self, address: Addresses, among: Bools | None = None) -> Blocks:
        """Return the profile's block of each address ``among`` all, -1 where it knows none."""
        count = np.where(self._partner < 0, 0, np.diff(self._first)[self._partner])
        return self._objects.blocks_at(address, self._first[self._partner], count, among)

    @property
    def credit_s(self) -> float:
        """Seconds that moves by the profile may cost now."""
        run_s = self.profile.accesses * self.access_s
        earned_s = min(self.profile.saved_s, FORMER_SHARE * run_s) + self.saved_s
        return START_SHARE * (run_s + self.accesses * self.access_s) + earned_s

    @property
    def horizon_ticks(self) -> float:
        """Ticks for which moves by the profile pay: those that former runs had left."""
        left = float(self._belief @ np.arange(len(self._belief), 0, -1)) / self._step
        return min(left, _HORIZON_TICKS)

    def advance(self, seconds: float) -> None:
        """Let so much of the run pass: a part of its phases, at up to twice the former pace."""
        phases = len(self._belief)
        self._step = seconds * phases / max(self.profile.seconds, seconds)
        reach = min(int(np.ceil(2 * self._step)) + 1, phases)
        moved = np.convolve(self._belief, np.full(reach, 1.0 / reach))
        moved[phases - 1] += moved[phases:].sum()
        self._belief = (1.0 - _JUMPS) * moved[:phases] + _JUMPS / phases

    def learn(self, pages: Values, address: Addresses, weight: Values) -> None:
        """Weigh the profile by the samples of a tick; ``pages`` are resident, ``(blocks,)``."""
        block = self.blocks_at(address)
        known = (block >= 0) & (pages[block] > 0)
        total = float(weight[known].sum())
        self._pages = pages
        if total > 0:
            scale = float(known.sum()) / total
            found = np.bincount(block[known], weight[known] * scale, len(pages))
            count = np.asarray(found, np.float64)
            self._weigh(count)
            self._own = self._own * _RETENTION + count

    def _weigh(self, count: Values) -> None:
        """Update weights, and which phase it is, by the samples of a tick on each block."""
        pages, total = self._pages, float(self._own.sum())
        alike = pages / pages.sum()
        mean = alike * total
        known = np.flatnonzero(count)
        guesses = [alike * (self._own + each) / (mean + each) for each in _OWN_STRENGTHS]
        rate = self.relative_rates(self._belief @ self._shares)
        for strength in STRENGTHS:
            with np.errstate(divide="ignore"):
                guess = (self._own + strength) / (mean + strength / rate)
            guesses.append(alike * guess)
        # Which phase it is, by the samples.
        likely = _TEMPER * (np.log(np.maximum(self._shares[:, known], _MIN)) @ count[known])
        belief = self._belief * np.exp(likely - likely.max())
        self._belief = belief / belief.sum()
        for at, guess in enumerate(guesses):
            share = (1 - _UNIFORM) * guess / guess.sum() + _UNIFORM * alike
            self._log[at] += _TEMPER * float(count[known] @ np.log(share[known]))
        weight = (1 - _SHARED) * self._degrees() + _SHARED / len(self._log)
        self._log = np.log(weight)

    def ahead(self) -> Values:
        """Return the share of the next accesses that each block is expected to have."""
        phases = len(self._belief)
        begin = np.minimum(np.arange(phases) + 1, phases - 1)
        end = np.minimum(begin + max(int(_HORIZON_TICKS * self._step), 1), phases)
        mean = (self._until[end] - self._until[begin]) / (end - begin)[:, None]
        return np.asarray(self._belief @ mean)

    def relative_rates(self, shares: Values) -> Values:
        """Return the rate of a page of each block, 1 in the mean of the resident pages."""
        pages = self._pages
        rate = np.divide(shares, pages, out=np.zeros(len(pages)), where=pages > 0)
        total = float(rate @ pages)
        return rate * (pages.sum() / total) if total > 0 else np.ones(len(pages))


def _smoothed(profile: Profile) -> Values:
    """Return the share of each phase's accesses that each block has, ``(phases, blocks)``."""
    first = profile.first_block
    counts = profile.counts.astype(np.float64)
    of_block = counts.sum(axis=0)
    for begin, end in pairwise(first.tolist()):
        of_block[begin:end] += _SMOOTH * (of_block[begin:end].mean() + 0.1)
    share = of_block / of_block.sum()
    mixed = counts + _PHASE_SMOOTH * share
    return np.asarray(mixed / mixed.sum(axis=1, keepdims=True))


def expect(
    pages: PageView, priors: Mapping[ProcessId, ProfilePrior], tick_s: float,
    earned: Values, access_s: Values,
) -> tuple[Rates, Rates, Values]:  # fmt: skip
    """Return what former runs say of the rows of a view; the first call of a tick learns.

    Accesses per second and samples behind them, ``(n,)``, and for how many ticks, by process: 0
    where nothing may be used. By process, their moves ``earned`` so many fast accesses in the last
    tick, each of which saves ``access_s``.
    """
    rate, support = pages.rate.copy(), pages.effective_samples.copy()
    horizon_ticks = np.zeros(len(pages.processes))
    for slot, known in enumerate(pages.processes):
        prior = priors.get(known)
        if prior is None:
            continue
        block = prior.blocks_at(pages.address, pages.process == slot)
        counted = np.zeros((2, len(prior.profile.counts[0])))
        count_blocks(pages.size, pages.rate, block, counted)
        resident, own = counted
        if not resident.any():
            continue
        if prior.tick != pages.tick:
            prior.tick = pages.tick
            prior.access_s = float(access_s[slot])
            prior.accesses += float(pages.process_rate[slot]) * tick_s
            prior.saved_s += float(earned[slot]) * prior.access_s
            prior.advance(tick_s)
            prior.learn(resident, *pages.samples_of(slot))
        if prior.weights[0] > _NO_TRUST or prior.credit_s <= 0.0:
            continue
        relative = prior.relative_rates(prior.ahead())
        mean = relative * (own.sum() / max(float(relative @ resident), _MIN))
        mix_rates(block, mean, prior.weights, rate, support)
        horizon_ticks[slot] = prior.horizon_ticks
    return rate, support, horizon_ticks
