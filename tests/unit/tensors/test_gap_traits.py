# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import pytest

from bench.tensors.publications.deeptm import GapTraits, gap_traits
from bench.tensors.publications.residency_model import gap_kernels
from hmd.tensors.lifetimes import tensor_spans
from hmd.tensors.memory_system import STRICT
from hmd.tensors.planner import StepProblem
from tests.unit.tensors.conftest import small_system
from tests.unit.tensors.test_residency_model import chain


def test_traits_rank_the_longest_gap_of_equal_tensors_first() -> None:
    problem = StepProblem(chain(), small_system(44), STRICT)
    spans = tensor_spans(problem.trace, problem.life)
    traits = gap_traits(problem, spans)
    activations = ~problem.trace.tensor_persistent[spans.tensor[spans.before]]
    lengths = gap_kernels(spans, problem.trace.kernels)[activations]
    reuse = traits.ranks[activations, 3]
    assert np.argmax(reuse) == np.argmax(lengths)
    assert (traits.ranks >= 0).all()
    assert (traits.ranks <= 1).all()


def test_traits_of_step_with_room_have_no_relief() -> None:
    problem = StepProblem(chain(), small_system(500), STRICT)
    traits = gap_traits(problem, tensor_spans(problem.trace, problem.life))
    assert not traits.relief.any()


def test_weight_of_trait_that_follows_relief_grows() -> None:
    ranks = np.array([[0.0, 1.0, 0.5, 0.5], [1.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
    traits = GapTraits(ranks, np.array([4.0, 0.0, 2.0]))
    weights = traits.reweighed(np.full(4, 0.25), np.ones(3))
    assert weights[1] > weights[2] > weights[0]
    assert weights.sum() == pytest.approx(1.0)
