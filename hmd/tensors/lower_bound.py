# SPDX-License-Identifier: MIT
"""A lower bound of a step's time on a memory system.

When kernel k begins, all but the capacity of tier 0 of what is alive has left it, and all but the
capacity of tiers 0 and 1 has gone below tier 1, at the rates of the links; persistent tensors count
from their first use. What is used in kernels k to j must be in tier 0 by then: its bytes above the
capacity of the tiers before tier t return from t or below between the starts of k and j, at the
rate of those links. Later kernels take their times from there.

Where kernels compute while their pages arrive, all this is done by a kernel's end, not its start:
the kernels after it take their times from there. Plans that lose data that is read later are
outside the bound.
"""

from __future__ import annotations

import numpy as np

from hmd.base.errors import MissingError
from hmd.tensors.lifetimes import Vitality, vitality
from hmd.tensors.memory_system import MemorySystem, PricingRules
from hmd.tensors.split_program import SplitProgram
from hmd.tensors.trace import Floats, Ints, TensorTrace

_PROGRAM_S = 10.0
"""CPU time that the program of a bound takes at most."""


def lower_bound_seconds(trace: TensorTrace, system: MemorySystem, rules: PricingRules) -> float:
    """Return a time that no plan of a step undercuts where kernels compute from tier 0 alone.

    Where they compute in place, it is that of :class:`SplitProgram`; where that is not solved, the
    ideal, with all operands in tier 0.
    """
    life = vitality(trace)
    if system.in_place:
        if life.peak_bytes <= system.tiers[0].capacity:
            return trace.ideal_seconds
        try:
            found = SplitProgram(trace, life, system, repeats=False).bound_seconds(_PROGRAM_S)
        except (ArithmeticError, MissingError):
            return trace.ideal_seconds
        return max(trace.ideal_seconds, found)
    # What is left to compute once a kernel has what it needs, and when that is at the earliest.
    after = np.cumsum(trace.kernel_seconds[::-1])[::-1]
    if rules.overlap:
        after = np.append(after[1:], 0.0)
    earliest = _earliest(trace, life, system, rules)
    bound = max(trace.ideal_seconds, float((earliest + after).max()))
    return max(bound, _with_returns(trace, system, rules, earliest, after))


def _earliest(
    trace: TensorTrace, life: Vitality, system: MemorySystem, rules: PricingRules
) -> Floats:
    """Return when each kernel has what it needs at the earliest, (K,), in seconds.

    That is its start, or its end where it computes meanwhile, by what must have left tier 0.
    """
    live = _live_since_first_use(trace, life)
    needed = np.zeros(trace.kernels)
    kept = 0
    for tier in range(1, len(system.tiers)):
        kept += system.tiers[tier - 1].capacity
        rate = _rate_below(system, tier, inwards=False)
        needed = np.maximum(needed, (live - kept) / rate)
    ends = np.cumsum(trace.kernel_seconds)
    computed = ends if rules.overlap else ends - trace.kernel_seconds
    return computed + np.maximum.accumulate(np.maximum(needed - computed, 0.0))


def _rate_below(system: MemorySystem, first: int, *, inwards: bool) -> float:
    """Return the most bytes per second between tier 0 and the tiers from ``first`` on."""
    tiers = range(first, len(system.tiers))
    shared = set.intersection(*(set(system.path(tier)) for tier in tiers))
    total = sum(system.bandwidth(tier, inwards=inwards) for tier in tiers)
    rates = [
        link.inwards if inwards or link.half_duplex else link.outwards
        for number, link in enumerate(system.links)
        if number in shared
    ]
    return min([total, *(rate * 1e9 for rate in rates)])


def _live_since_first_use(trace: TensorTrace, life: Vitality) -> Ints:
    change = np.zeros(trace.kernels + 1, np.int64)
    used = life.first >= 0
    np.add.at(change, life.first[used], trace.tensor_bytes[used])
    mortal = used & (life.death >= 0)
    np.add.at(change, life.death[mortal], -trace.tensor_bytes[mortal])
    return np.cumsum(change[:-1])


def _with_returns(
    trace: TensorTrace,
    system: MemorySystem,
    rules: PricingRules,
    earliest: Floats,
    after: Floats,
) -> float:
    """Return the bound by what must return after each of the kernels with most bytes alive.

    What such a kernel uses itself must be there at its start, but need not be at its end.
    """
    life = vitality(trace)
    live = _live_since_first_use(trace, life)
    tiers = range(1, len(system.tiers))
    kept = np.cumsum([tier.capacity for tier in system.tiers])
    rates = [_rate_below(system, tier, inwards=True) for tier in tiers]
    best = 0.0
    order = np.lexsort((trace.use_kernel, trace.use_tensor))
    tensor, kernel = trace.use_tensor[order], trace.use_kernel[order]
    peaks = np.argsort(-(earliest + after), kind="stable")[:8]
    for peak in {int(np.argmax(live)), *peaks.tolist()}:
        alive = (life.first >= 0) & (life.first <= peak)
        alive &= (life.death > peak) | (life.death < 0)
        later = kernel > peak if rules.overlap else kernel >= peak
        owners, at = np.unique(tensor[later], return_index=True)
        uses = kernel[later][at]
        keep = alive[owners]
        size = np.bincount(uses[keep], trace.tensor_bytes[owners[keep]], trace.kernels)
        used = np.cumsum(size)
        for tier, rate in zip(tiers, rates, strict=True):
            returned = np.maximum(used - kept[tier - 1], 0) / rate
            best = max(best, float((earliest[peak] + returned + after)[peak:].max()))
    return best
