# SPDX-License-Identifier: MIT
"""Ablation of the learned policy's features, on made rows of which one feature knows the future."""

import numpy as np

from bench.learned_policy.feature_ablation import GROUPS, held_out_bits, table
from hmd.learn.rows import TrainingRows
from hmd.policy.learned.features import FEATURES

TELLS = "block_next"
ROWS = 60_000  # fewer are too few steps for a fit of four epochs


def made_rows(seed: int) -> TrainingRows:
    random = np.random.default_rng(seed)
    features = random.normal(size=(ROWS, len(FEATURES))).astype(np.float32)
    base = np.ones(len(features), np.float32)
    future = random.poisson(np.exp2(features[:, FEATURES.index(TELLS)])).astype(np.float32)
    return TrainingRows(features, base, future, np.full(len(features), seed, np.int32))


def test_held_out_bits_without_the_feature_that_tells_lost() -> None:
    rows = {name: made_rows(seed) for seed, name in enumerate(("one", "two", "three"))}
    whole = held_out_bits(rows, "one", ())
    assert whole > 0.3
    assert held_out_bits(rows, "one", ("rate",)) > 0.8 * whole
    assert held_out_bits(rows, "one", (TELLS,)) < 0.1 * whole


def test_groups_every_feature_once() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(FEATURES)


def test_table_programs_that_lose_most_named() -> None:
    rows = [
        {"without": "nothing", "bits": {"cg": 0.5, "sat": 0.1}},
        {"without": "rate", "bits": {"cg": 0.2, "sat": 0.1}},
    ]
    assert table(rows).splitlines()[2:] == [
        "| nothing | 0.300 |  |",
        "| `rate` | 0.150 | cg 0.30 |",
    ]
