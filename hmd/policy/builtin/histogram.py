# SPDX-License-Identifier: MIT
"""The histogram policy: fill the fast tiers, less headroom, with the hottest pages that fit.

The threshold between hot and cold follows from the histogram of heat and the free memory, never
from a setting (as in Lee et al., "MEMTIS", SOSP 2023). With more than two tiers, pages that do not
fit a tier compete for the next one. A resident page counts with the upper end of its confidence
interval, a candidate for promotion with the lower end; hysteresis and the wear of recent moves
separate the two further. So sampling noise moves nothing, and a page that has just moved stays
unless there is much to gain. The bin on the threshold is filled in part, resident pages first.
About 12 ns per tracked page and 0.4 µs per move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import numpy as np
from pydantic import Field

from hmd.base.numba_kernels import (
    Float32s,
    Float64s,
    Int8s,
    Int64Plane,
    Int64s,
    Uint8s,
    Uint16s,
    inline,
    kernel,
)
from hmd.heat.candidates import BINS, heat_bin
from hmd.heat.rates import ANSCOMBE
from hmd.heat.settings import MOVE_WEAR
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView, Plan, TierRequest
from hmd.policy.planning import build_plan
from hmd.policy.settings import SHARE, HeadroomSettings, PolicyInfo, Search

if TYPE_CHECKING:
    from hmd.heat.view import PageView


class HistogramSettings(HeadroomSettings):
    """How the histogram policy decides."""

    hysteresis: Annotated[
        float,
        Field(
            ge=1, description="How many times hotter a page must be than the one that it displaces."
        ),
        Search(1, 8, log=True),
    ] = 1.5
    confidence: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="How certain that must be, in standard deviations of each page's heat.",
        ),
        Search(0, 4),
    ] = 1.2
    samples_min: Annotated[
        float,
        Field(ge=0, le=1000, description="Samples that a page needs before it is promoted."),
        Search(1, 32, log=True),
    ] = 2.0
    worth: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="A page colder than this share of the faster tier's mean may use free"
            " memory there, but displaces no other page: the swap would cost more than it saves.",
        ),
        SHARE,
        Search(0, 0.5),
    ] = 0.1


# Columns of the histogram.
_RESIDENT: Final = 0
_CANDIDATE: Final = 1
_NOT_A_CANDIDATE: Final = np.float32(-1.0)
_STAYS: Final = -1


class FitPages(NamedTuple):
    """The columns of a page view that selection reads; shape ``(n,)``."""

    tier: Int8s
    size: Uint16s
    wear: Uint8s
    rate: Float32s
    support: Float32s


class FitRule(NamedTuple):
    """How sure and how large a difference must be; keys are accesses in ``tick_s`` seconds."""

    confidence: float
    hysteresis: float
    samples_min: float
    tick_s: float


class FitResult(NamedTuple):
    """What :func:`choose_tiers` fills.

    Per page: ``wanted``, the tier, -1 for pages that stay, and ``key``, the heat that decided. Per
    tier: ``served``, the accesses that it serves now, in the unit of ``key``.
    """

    wanted: Int8s
    key: Float32s
    served: Float64s


class _Threshold(NamedTuple):
    """The lowest bin that is selected, and how many pages of it are, by column."""

    bin: int
    resident: int
    candidate: int


@inline
def _candidate_key(
    heat: np.float32, support: np.float32, separation: float, resident: bool, confidence: float
) -> np.float32:
    """Return the heat with which a page competes for a tier; 0 if it was never sampled."""
    if support <= 0.0:
        return np.float32(0.0)
    root = np.sqrt(support + ANSCOMBE)
    if resident:
        bound = root + confidence / 2.0
        return np.float32(heat / support * bound * bound * separation)
    bound = max(root - confidence / 2.0, 0.0)
    return np.float32(heat / support * bound * bound / separation)


@inline
def _fill_histogram(
    tier: int, pages: FitPages, rule: FitRule, result: FitResult, histogram: Int64Plane
) -> None:
    """Compute the keys of the pages that are left, and count pages by bin and column."""
    wanted, key = result.wanted, result.key
    here, size = pages.tier, pages.size
    worn, rate, support = pages.wear, pages.rate, pages.support
    # Half of the hysteresis applies to either side.
    wear = np.arange(256) / MOVE_WEAR
    separation = np.sqrt(rule.hysteresis * 2.0**wear)
    histogram[:, :] = 0
    for row in range(len(wanted)):
        if here[row] < 0:
            key[row] = 0.0
            continue
        if wanted[row] >= 0:
            continue
        resident = here[row] <= tier
        if not resident and support[row] < rule.samples_min:
            key[row] = _NOT_A_CANDIDATE
            continue
        heat, apart = np.float32(rate[row] * rule.tick_s), separation[worn[row]]
        key[row] = _candidate_key(heat, support[row], apart, resident, rule.confidence)
        histogram[heat_bin(key[row]), _RESIDENT if resident else _CANDIDATE] += size[row]


@inline
def _threshold(histogram: Int64Plane, capacity: int) -> _Threshold:
    """Return the threshold above which pages fit into ``capacity`` pages."""
    lowest, left = BINS, max(capacity, 0)
    while lowest > 0 and histogram[lowest - 1].sum() <= left:
        lowest -= 1
        left -= histogram[lowest].sum()
    boundary = lowest - 1
    resident = 0 if boundary < 0 else min(left, histogram[boundary, _RESIDENT])
    return _Threshold(boundary, resident, left - resident)


@inline
def _select(tier: int, threshold: _Threshold, pages: FitPages, result: FitResult) -> int:
    """Want the pages above a threshold on ``tier``; returns how many would be promoted."""
    wanted, key = result.wanted, result.key
    here, size = pages.tier, pages.size
    resident, candidate = threshold.resident, threshold.candidate
    promoted = 0
    for row in range(len(wanted)):
        if wanted[row] >= 0 or here[row] < 0 or key[row] < 0.0:
            continue
        position = heat_bin(key[row])
        if position < threshold.bin:
            continue
        if position == threshold.bin:
            if here[row] <= tier:
                if size[row] > resident:
                    continue
                resident -= size[row]
            else:
                if size[row] > candidate:
                    continue
                candidate -= size[row]
        wanted[row] = tier
        promoted += here[row] > tier
    return promoted


@inline
def _count_served(pages: FitPages, rule: FitRule, served: Float64s) -> None:
    """Add up what each tier serves."""
    here, size, rate = pages.tier, pages.size, pages.rate
    for tier in range(len(served)):
        total = 0.0
        for row in range(len(rate)):
            total += rate[row] * size[row] if here[row] == tier else 0.0
        served[tier] = total * rule.tick_s


@kernel
def choose_tiers(pages: FitPages, capacity: Int64s, rule: FitRule, result: FitResult) -> int:
    """Fill ``result``; returns how many rows are wanted on a faster tier than theirs.

    ``capacity`` is what each tier can hold of these pages, in base pages; the last takes the rest.
    """
    wanted, last = result.wanted, len(capacity) - 1
    wanted[:] = _STAYS
    _count_served(pages, rule, result.served)
    histogram = np.zeros((BINS, 2), np.int64)
    promoted = 0
    for tier in range(last):
        _fill_histogram(tier, pages, rule, result, histogram)
        promoted += _select(tier, _threshold(histogram, capacity[tier]), pages, result)
    for row in range(len(wanted)):
        if wanted[row] < 0 and pages.tier[row] >= 0:
            wanted[row] = last
    return promoted


class Histogram:
    """Selects the hottest pages that fit, by a histogram of heat."""

    name = "histogram"

    def __init__(self, settings: HistogramSettings | None = None) -> None:
        self.settings = settings or HistogramSettings()

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the moves to make now; an empty plan where nothing pays."""
        settings = self.settings
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if not nodes.can_move(pages, machine):
            return Plan.empty(pages.processes)
        resident = pages.pages_by_node(len(nodes.tier))[0].sum(axis=0)
        rule = FitRule(
            float(settings.confidence),
            float(settings.hysteresis),
            float(settings.samples_min),
            float(machine.tick_s),
        )
        columns = FitPages(pages.tier, pages.size, pages.wear, pages.rate, pages.effective_samples)
        result = FitResult(
            np.empty(len(pages), np.int8), np.empty(len(pages), np.float32), np.zeros(nodes.tiers)
        )
        promoted = choose_tiers(columns, nodes.by_tier(resident + nodes.room), rule, result)
        if not promoted and not nodes.relieve[:-1].any() and nodes.limits is None:
            return Plan.empty(pages.processes)
        accesses, beyond_pages = pages.unshown
        served = result.served + nodes.tier_sums(accesses.sum(axis=0)) * machine.tick_s
        there = nodes.by_tier(resident) + nodes.tier_sums(beyond_pages.sum(axis=0))
        mean = served / np.maximum(there, 1)
        worth = settings.worth * mean
        wanted = TierRequest(result.wanted, result.key, worth=worth, fills=True)
        return build_plan(pages, nodes, wanted, machine.budget_bytes)


POLICY = PolicyInfo(
    name=Histogram.name,
    summary="Fills the fast tiers, less their headroom, with the hottest pages that fit.",
    suits="Programs whose hot set is small and stays: it knows no cost of moves.",
    settings_type=HistogramSettings,
    create=Histogram,
    kernels=(__name__,),
)
