# SPDX-License-Identifier: MIT
"""The memory of a program's sequence: what followed ticks like the present one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmd.policy.learned.sequence_memory import AHEAD, TICKS, SequenceMemory

PARTS = 64


def phase(number: int) -> npt.NDArray[np.float32]:
    """Shares of a tick that uses a quarter of the parts."""
    share = np.zeros(PARTS, np.float32)
    share[number * PARTS // 4 : (number + 1) * PARTS // 4] = 4 / PARTS
    return share


def test_phase_prediction_first_ticks_is_the_tick_itself() -> None:
    memory = SequenceMemory(PARTS, PARTS)
    for _ in range(2):
        found = memory.update(phase(1))
        assert np.array_equal(found.share, phase(1))
        assert found.similarity == 0.0


def test_phase_prediction_phases_that_return_in_turns_next_ones_known_before_they_begin() -> None:
    memory = SequenceMemory(PARTS, PARTS)
    for tick in range(48):
        found = memory.update(phase(tick // 4 % 4))
    # The last tick of phase 3: phases 0 and 1 follow.
    following = [float(found.share[phase(number) > 0].sum()) for number in range(4)]
    assert following[0] > 0.4
    assert following[1] > 0.2
    assert following[2] < 0.05
    assert following[3] < 0.3
    assert found.similarity == pytest.approx(1.0, abs=1e-4)


def test_phase_prediction_first_tick_of_known_phase_is_of_that_phase() -> None:
    memory = SequenceMemory(PARTS, PARTS)
    for tick in range(8 * AHEAD + 1):
        found = memory.update(phase(tick // AHEAD % 4))
    assert found.share[phase(0) > 0].sum() > 0.5


def test_phase_prediction_samples_at_random_is_the_mean_of_all_ticks() -> None:
    random = np.random.default_rng(1)
    memory, total = SequenceMemory(PARTS, PARTS), np.zeros(PARTS)
    for _ in range(60):
        share = (random.multinomial(200, np.full(PARTS, 1 / PARTS)) / 200).astype(np.float32)
        total += share
        found = memory.update(share)
    assert np.allclose(found.share, total / 60, atol=0.004)
    assert found.ticks == 59


def test_phase_prediction_more_ticks_than_are_remembered_shares_add_up_to_one() -> None:
    memory = SequenceMemory(PARTS, PARTS)
    for tick in range(2 * TICKS + 5):
        found = memory.update(phase(tick // 3 % 4))
        assert found.share.sum() == pytest.approx(1.0, abs=1e-4)
    assert found.ticks == TICKS - 1


def test_phase_prediction_signed_parts_alone_decide_what_is_alike() -> None:
    memory = SequenceMemory(PARTS, PARTS // 4)
    for tick in range(40):
        both = (phase(0) + phase(1 + tick % 2)) / np.float32(2)
        found = memory.update(both)
    # The first quarter is always the same: parts beyond it distinguish no ticks.
    assert found.share[phase(1) > 0].sum() == pytest.approx(0.25, abs=0.03)
