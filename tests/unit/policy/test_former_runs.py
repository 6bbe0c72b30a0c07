# SPDX-License-Identifier: MIT
"""Moves by former runs: hot memory is found sooner, and losses are bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import BASE, PROCESS, SyntheticRun, Tier, hot_blocks
from hmd.base.units import PAGE_BYTES
from hmd.linux.mappings import MappingKind, anonymous_mappings
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.profiles.objects import ObjectKey
from hmd.profiles.prior import FORMER_SHARE, START_SHARE, ProfilePrior
from hmd.profiles.profile import Profile, ProfileObject

PAGES, FAST, HEADROOM, BLOCKS = 8192, 2048, 16, 512
RUN_S, ACCESSES = 60.0, 1e9
WEIGHTS = hot_blocks(PAGES, 1536, 16, seed=3)


def prior_of(
    weights: npt.NDArray[np.float64], saved_s: float = 0.0, run_s: float = RUN_S
) -> ProfilePrior:
    """Return what is known from a run with these weights."""
    size_bytes = PAGES * PAGE_BYTES
    counts = weights.reshape(BLOCKS, -1).sum(axis=1) / weights.sum() * 20_000.0
    known = ProfileObject(ObjectKey(int(MappingKind.ANON), ""), float(size_bytes), BLOCKS)
    prior = ProfilePrior(
        Profile(
            (known,), np.tile(counts / 8, (8, 1)).astype(np.float32), 1.0, run_s, saved_s, ACCESSES
        )
    )
    start = np.array([BASE], np.uint64)
    prior.set_mappings(anonymous_mappings(start, start + np.uint64(size_bytes)))
    return prior


def fast_shares(prior: ProfilePrior | None, ticks: int) -> list[float]:
    """Return the fast share after each tick of a run with few samples."""
    kept = {"headroom": 0.0, "headroom_min": HEADROOM * PAGE_BYTES}
    node = (np.arange(PAGES) >= FAST).astype(np.int8)
    run = SyntheticRun(
        Benefit(BenefitSettings.model_validate(kept)),
        (Tier(FAST + HEADROOM), Tier(2 * PAGES)),
        WEIGHTS,
        node,
        samples_per_tick=60,
    )
    if prior is not None:
        run.ticks.inputs = replace(run.ticks.inputs, priors={PROCESS: prior})
    return [run.tick().fast_share for _ in range(ticks)]


def test_right_profile_brings_hot_memory_sooner_and_earns() -> None:
    prior = prior_of(WEIGHTS)
    assert sum(fast_shares(prior, 40)[:12]) > 1.1 * sum(fast_shares(None, 12))
    assert prior.saved_s > 0


def stake_s(prior: ProfilePrior) -> float:
    """Return what moves by a profile may cost before any have saved time."""
    return START_SHARE * (ACCESSES + prior.accesses) * prior.access_s


def test_wrong_profile_costs_no_more_than_its_credit() -> None:
    prior = prior_of(np.random.default_rng(5).permutation(WEIGHTS.reshape(BLOCKS, -1)).reshape(-1))
    shares = fast_shares(prior, 12)
    assert prior.saved_s >= -stake_s(prior)
    assert sum(shares) > 0.97 * sum(fast_shares(None, 12))


@pytest.mark.parametrize("saved_s", [-1.0, -1e9])
def test_profile_that_did_not_pay_is_not_used(saved_s: float) -> None:
    prior = prior_of(WEIGHTS, saved_s)
    assert fast_shares(prior, 12) == fast_shares(None, 12)
    assert prior.trust > 0.5 and prior.saved_s == 0.0 < stake_s(prior) < 1.0


def test_former_savings_may_be_spent_up_to_a_bound() -> None:
    prior = prior_of(WEIGHTS, 1e9)
    prior.access_s = 5e-8
    assert prior.credit_s == pytest.approx((START_SHARE + FORMER_SHARE) * ACCESSES * 5e-8)


def test_stake_is_the_same_whatever_the_clock_says() -> None:
    found = []
    for run_s in (RUN_S, 75 * RUN_S):
        prior = prior_of(WEIGHTS, run_s=run_s)
        fast_shares(prior, 1)
        found.append(prior.credit_s - prior.saved_s)
    assert found[0] == found[1] > 0


def test_stake_grows_with_the_run() -> None:
    prior = prior_of(WEIGHTS, -1e9)
    fast_shares(prior, 2)
    early_s = prior.credit_s
    fast_shares(prior, 2)
    assert prior.access_s > 0 and prior.credit_s > early_s
