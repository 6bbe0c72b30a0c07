"""Reinforcement learning of gaps: per gap, whether its tensor leaves the fastest tier.

A table of action values (Watkins and Dayan, 1992) over states of a gap: ranks of size and reuse
distance, and whether memory is short meanwhile. The simulator prices each episode's plan; a gap's
reward is the stall of the kernels that its action concerns, and less for more memory kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from hmd.tensors.gap_traits import GapTraits
from hmd.tensors.step_simulator import StepResult
from hmd.tensors.tensor_spans import TensorSpans
from hmd.tensors.tensor_trace import Bools, Floats, Ints

EPISODES: Final = 8
_LEVELS: Final = 4
_STEP: Final = 0.5
_EXPLORE: Final = 0.1
_SEED: Final = 1

Price = Callable[[Bools], StepResult | None]
"""Prices the plan in which the marked gaps' tensors leave; None where it cannot be carried out."""


def learned_gaps(
    spans: TensorSpans, traits: GapTraits, start: Bools, price: Price
) -> Iterator[Bools]:
    """Yield the gaps whose tensors leave, (G,), episode by episode; ``start`` is the first."""
    random = np.random.default_rng(_SEED)
    state = _states(traits)
    values = np.zeros((state.max(initial=0) + 1, 2))
    # The first plan is the prior of the table: its choice per state is worth a little more.
    for action, marked in ((1, start), (0, ~start)):
        values[:, action] = np.bincount(state[marked], minlength=len(values))
    values /= np.maximum(values.sum(axis=1, keepdims=True), 1)
    leaves = start
    for _ in range(EPISODES):
        found = price(leaves)
        if found is not None:
            reward = _rewards(spans, leaves, found)
            for action, marked in ((1, leaves), (0, ~leaves)):
                count = np.bincount(state[marked], minlength=len(values))
                total = np.bincount(state[marked], reward[marked], len(values))
                seen = count > 0
                values[seen, action] += _STEP * (total[seen] / count[seen] - values[seen, action])
            yield leaves
        greedy = values[state, 1] > values[state, 0]
        explore = random.random(len(state)) < _EXPLORE
        leaves = np.where(explore, start, greedy) & (traits.relief > 0)


def _states(traits: GapTraits) -> Ints:
    size, reuse = traits.ranks[:, 1], traits.ranks[:, 3]
    level = [np.minimum(each * _LEVELS, _LEVELS - 1).astype(np.int64) for each in (size, reuse)]
    short = (traits.relief > 0).astype(np.int64)
    return np.asarray((level[0] * _LEVELS + level[1]) * 2 + short, np.int64)


def _rewards(spans: TensorSpans, leaves: Bools, found: StepResult) -> Floats:
    """Return the reward of each gap: minus the stall of its fetch, or of the gap it filled."""
    stall = found.stall.astype(np.float64)
    total = np.concatenate([[0.0], np.cumsum(stall)])
    start, end = spans.last[spans.before] + 1, spans.first[spans.after]
    inside = np.where(start > end, total[-1] - total[start] + total[end], total[end] - total[start])
    length = spans.gap_kernels(len(stall))
    reward = np.where(leaves, -stall[end], -inside / np.maximum(length, 1))
    return np.asarray(reward / max(stall.mean(), 1.0), np.float64)
