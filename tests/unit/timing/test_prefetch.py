# SPDX-License-Identifier: MIT
"""The stride prefetcher: covered and uncovered misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.access_model import AccessCosts, CacheLevel
from hmd.emulate.timing_params import ModelPart
from tests.unit.timing.conftest import Columns, Machine

PARTS = ModelPart.MLP | ModelPart.PREFETCH


def levels(model: Any, stream: Any) -> Any:
    outcomes = AccessCosts.empty(len(stream))
    model.replay(stream, into=outcomes)
    return outcomes.level


@pytest.mark.parametrize("stride", [64, -64, 128, 512, -512])
def test_prefetcher_covers_a_stream_after_three_misses(
    machine: Machine, columns: Columns, stride: int
) -> None:
    address = (1 << 20) + stride * np.arange(1000)
    found = levels(machine(parts=PARTS), columns(address))
    assert found[:3].tolist() == [CacheLevel.MEMORY] * 3
    assert set(found[3:].tolist()) == {CacheLevel.PREFETCHED}


def test_prefetcher_ignores_strides_over_eight_lines(machine: Machine, columns: Columns) -> None:
    found = levels(machine(parts=PARTS), columns(64 * 9 * np.arange(1000)))
    assert set(found.tolist()) == {CacheLevel.MEMORY}


def test_prefetched_stream_costs_no_latency(machine: Machine, columns: Columns) -> None:
    model = machine(parts=PARTS)
    stream = columns(64 * np.arange(10_000))
    assert model.replay(stream) < 40_000 * 100 + 100_000
    assert model.counters(0).nodes[0].prefetched_lines == 10_000 - 3


def test_prefetcher_covers_no_random_misses(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    found = levels(machine(parts=PARTS), columns(scattered(20_000)))
    assert set(found.tolist()) == {CacheLevel.MEMORY}


@pytest.mark.parametrize(("streams", "covered"), [(8, True), (16, True), (24, False)])
def test_prefetcher_follows_as_many_streams_as_its_table(
    machine: Machine, columns: Columns, streams: int, covered: bool
) -> None:
    address = (np.arange(200)[:, None] * 64 + np.arange(streams) * (1 << 24)).reshape(-1)
    found = levels(machine(parts=PARTS, prefetch_streams=16), columns(address))
    assert (np.count_nonzero(found == CacheLevel.PREFETCHED) == streams * 197) == covered


def test_prefetcher_keeps_a_stream_among_random_misses(
    machine: Machine, columns: Columns, scattered: Any
) -> None:
    noise = scattered(4000, start=1 << 30).reshape(200, 20)
    address = np.concatenate([64 * np.arange(200, dtype=np.uint64)[:, None], noise], axis=1)
    address[:3, 1:] = address[:3, :1]  # the prefetcher trains first
    found = levels(machine(parts=PARTS), columns(address.reshape(-1))).reshape(200, 21)
    assert set(found[3:, 0].tolist()) == {CacheLevel.PREFETCHED}


def test_prefetcher_trains_two_streams_in_a_page_apart(machine: Machine, columns: Columns) -> None:
    up, down = 64 * np.arange(30), 4096 - 64 * np.arange(1, 31)
    found = levels(machine(parts=PARTS), columns(np.stack([up, down], axis=1).reshape(-1)[:40]))
    assert set(found[6:].tolist()) == {CacheLevel.PREFETCHED}


def test_prefetcher_keeps_a_stream_over_l1_hits(machine: Machine, columns: Columns) -> None:
    model = machine(parts=PARTS)
    model.replay(columns(64 * np.array([10, 11, 13, 40, 41, 42])))
    found = levels(model, columns(64 * np.arange(60), start=1000))
    missed = np.flatnonzero(found == CacheLevel.MEMORY)
    assert missed.tolist() == [0, 1, 2]
