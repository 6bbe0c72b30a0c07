# SPDX-License-Identifier: MIT
"""Trust in the network: answers that samples confirm are taken, others are not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from bench.synthetic.synthetic_run import SyntheticRun, Tier, hot_blocks
from hmd.policy.builtin.none import NonePolicy
from hmd.policy.learned.trust import NetworkTrust

PAGES, HOT, SAMPLES = 8192, 1536, 400
Floats = npt.NDArray[np.float32]


def program() -> SyntheticRun:
    """A program with a hot set, none of it on the fast node."""
    return SyntheticRun(
        NonePolicy(),
        (Tier(PAGES), Tier(2 * PAGES)),
        hot_blocks(PAGES, HOT, 16, seed=3),
        np.ones(PAGES, np.int8),
        samples_per_tick=SAMPLES,
    )


def answers(run: SyntheticRun, sign: float) -> Floats:
    """Octaves from the rates of the view to the true ones, or as far in the other direction."""
    rate = run.heat.view(run.machine.topology).rate
    truth = run.weights / run.weights.sum()
    return (sign * np.log2(truth * rate.sum() / rate)).astype(np.float32)


def follow(trust: NetworkTrust, run: SyntheticRun, sign: float, ticks: int) -> float:
    """Let a network answer for some ticks; return the factor after them."""
    for _ in range(ticks):
        run.tick()
        trust.corrected(run.heat.view(run.machine.topology), answers(run, sign))
    (process,) = run.heat.processes
    return trust.factor(process)


def test_factor_network_that_is_right_is_taken_whole() -> None:
    assert follow(NetworkTrust(), program(), 1.0, 20) == 1.0


def test_factor_network_that_is_wrong_is_not_taken() -> None:
    assert follow(NetworkTrust(), program(), -1.0, 20) == 0.0


def test_factor_without_evidence_is_half() -> None:
    assert follow(NetworkTrust(), program(), 1.0, 1) == 0.5


def test_factor_answers_exaggerated_are_taken_in_part() -> None:
    assert 0.0 < follow(NetworkTrust(), program(), 3.0, 20) < 0.75


def test_factor_network_turns_wrong_answers_are_dropped() -> None:
    trust, run = NetworkTrust(), program()
    assert follow(trust, run, 1.0, 20) == 1.0
    assert follow(trust, run, -4.0, 40) == 0.0


@pytest.mark.parametrize(("sign", "factor"), [(1.0, 1.0), (-1.0, 0.0)])
def test_corrected_rates_keep_their_sum(sign: float, factor: float) -> None:
    trust, run = NetworkTrust(), program()
    assert follow(trust, run, sign, 20) == factor
    pages, octaves = run.heat.view(run.machine.topology), answers(run, sign)
    rate = trust.corrected(pages, octaves)
    expected = pages.rate * np.exp2(octaves * factor)
    expected *= pages.rate.sum() / expected.sum()
    assert np.allclose(rate, expected, rtol=1e-4)
    assert rate.sum() == pytest.approx(pages.rate.sum(), rel=1e-4)


def test_corrected_extreme_answers_stay_finite() -> None:
    octaves = np.where(np.arange(PAGES) % 2 == 0, 1e9, -1e9).astype(np.float32)
    trust, run = NetworkTrust(), program()
    for _ in range(3):
        run.tick()
        rate = trust.corrected(run.heat.view(run.machine.topology), octaves)
    assert np.isfinite(rate).all()
    assert (rate >= 0).all()


def test_corrected_asked_twice_in_a_tick_keeps_the_first_answers() -> None:
    trust, run = NetworkTrust(), program()
    for _ in range(20):
        run.tick()
        pages = run.heat.view(run.machine.topology)
        first = trust.corrected(pages, answers(run, 1.0))
        trust.corrected(pages, answers(run, -1.0))
        assert np.array_equal(trust.corrected(pages, answers(run, 1.0)), first)
    (process,) = run.heat.processes
    assert trust.factor(process) == 1.0
