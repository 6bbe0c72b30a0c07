# SPDX-License-Identifier: MIT
"""What a profile expects: before samples come, with them, and against them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.profiles.prior import ProfilePrior
from tests.unit.profiles.test_profile import MIB, mapped, run

Values = npt.NDArray[np.float64]


def began(hot_mib: int) -> tuple[ProfilePrior, Values, npt.NDArray[np.int32]]:
    """Return a prior of runs with a hot MiB, resident pages and the blocks of each MiB."""
    prior = ProfilePrior(run(0.9, hot_mib, 16))
    prior.set_mappings(mapped((2048, 2064)))
    block = prior.blocks_at((2048 + np.arange(16)).astype(np.uint64) * np.uint64(MIB))
    return prior, np.full(prior.profile.counts.shape[1], 16.0), block


def feed(prior: ProfilePrior, resident: Values, hot_mib: int, ticks: int) -> None:
    """Let a run whose hot MiB is at ``hot_mib`` go on."""
    rng = np.random.default_rng(2)
    for _ in range(ticks):
        place = 2048 + np.where(
            rng.random(150) < 0.9, hot_mib + rng.random(150), rng.random(150) * 16
        )
        prior.advance(0.5)
        prior.learn(resident, (place * MIB).astype(np.uint64), np.ones(150))


def test_the_hot_part_is_expected_without_samples() -> None:
    prior, resident, block = began(hot_mib=3)
    prior.advance(0.5)
    prior.learn(resident, np.empty(0, np.uint64), np.empty(0))
    expected = prior.relative_rates(prior.ahead())[block]
    assert expected.argmax() == 3 and expected[3] > 5 * np.delete(expected, 3).max()


def test_a_right_profile_is_trusted_after_a_tick() -> None:
    prior, resident, _ = began(hot_mib=3)
    assert prior.trust < 0.1
    feed(prior, resident, hot_mib=3, ticks=1)
    assert prior.trust > 0.9


def test_a_wrong_profile_has_no_weight_and_a_trusted_one_loses_it_within_ticks() -> None:
    prior, resident, _ = began(hot_mib=3)
    feed(prior, resident, hot_mib=12, ticks=1)
    assert prior.trust < 0.05
    feed(prior, resident, hot_mib=3, ticks=12)
    assert prior.trust > 0.9
    feed(prior, resident, hot_mib=12, ticks=3)
    assert prior.weights[1:] @ [1.0, 4.0] < 2.0


def test_memory_that_the_profile_does_not_know_has_no_block() -> None:
    prior, _, _ = began(hot_mib=3)
    assert prior.blocks_at(np.array([5 * MIB, 3000 * MIB], np.uint64)).tolist() == [-1, -1]
