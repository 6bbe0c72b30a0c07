# SPDX-License-Identifier: MIT
"""The L1 filter and the last-level cache, compared with a plain model of both."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.access_model import AccessCosts, AccessFlag, AccessModel, CacheLevel
from hmd.emulate.timing_params import ModelPart, TimingParams
from tests.unit.timing.conftest import Columns, Machine

L1_BYTES = 32 << 10  # lines this far apart share their L1 set


class PlainCache:
    """Direct-mapped L1 over a set-associative LRU cache, as dictionaries."""

    def __init__(self, sets: Any, ways: Any) -> None:
        self.sets: list[OrderedDict[int, bool]] = [OrderedDict() for _ in range(sets)]
        self.ways = ways
        self.l1: dict[int, Any] = {}
        self.written: list[int] = []

    def touch(self, line: Any, store: Any) -> Any:
        cache = self.sets[line % len(self.sets)]
        hit = line in cache
        cache[line] = cache.pop(line, False) or store
        if len(cache) > self.ways:
            victim, dirty = cache.popitem(last=False)
            self.written += [victim] * dirty
        return CacheLevel.LLC if hit else CacheLevel.MEMORY

    def access(self, line: Any, store: Any) -> Any:
        held, dirty = self.l1.get(line % 512, (None, False))
        if held == line:
            if store and not dirty:
                self.touch(line, True)
                self.l1[line % 512] = (line, True)
            return CacheLevel.L1
        self.l1[line % 512] = (line, store)
        return self.touch(line, store)


@settings(max_examples=60, deadline=None)
@given(
    accesses=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 2), st.booleans()), max_size=400
    ),
    sets=st.sampled_from([1, 2, 3, 8, 13]),
    ways=st.sampled_from([1, 2, 3, 4, 5, 11, 16, 20]),
)
def test_cache_levels_and_write_backs_equal_plain_lru(
    params: TimingParams, accesses: Any, sets: Any, ways: Any
) -> None:
    plain = PlainCache(sets, ways)
    small = replace(params, llc_bytes=sets * ways * 64, llc_ways=ways, parts=ModelPart.CACHE)
    with AccessModel(small) as model:
        for count, (row, column, store) in enumerate(accesses):
            line = row * 512 + column
            expected = plain.access(line, store)
            outcome = model.access(0, count + 1, line * 64, line * 64, flags=AccessFlag(store))
            assert outcome.level == expected
        assert model.counters(0).nodes[0].write_bytes == 64 * len(plain.written)


def levels(model: Any, stream: Any) -> Any:
    outcomes = AccessCosts.empty(len(stream))
    model.replay(stream, into=outcomes)
    return outcomes.level.tolist()


def test_working_set_one_line_beyond_the_cache_thrashes(machine: Machine, columns: Columns) -> None:
    model = machine(llc_bytes=16 * 64, llc_ways=16, parts=ModelPart.CACHE)
    fits = L1_BYTES * np.arange(16)
    levels(model, columns(fits))
    assert set(levels(model, columns(np.tile(fits, 3), start=100))) == {CacheLevel.LLC}
    over = L1_BYTES * np.arange(17)
    levels(model, columns(over, start=1000))
    assert set(levels(model, columns(np.tile(over, 3), start=2000))) == {CacheLevel.MEMORY}


def test_cache_is_shared_by_cpus_and_l1_filter_is_private(
    machine: Machine, columns: Columns
) -> None:
    model = machine(parts=ModelPart.CACHE)
    assert levels(model, columns([0])) == [CacheLevel.MEMORY]
    assert levels(model, columns([0], vcpu=1)) == [CacheLevel.LLC]
    assert levels(model, columns([0], vcpu=1, start=100)) == [CacheLevel.L1]


def test_cache_two_caches_share_no_lines(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.CACHE, llcs=2, vcpus=3)
    assert levels(model, columns([0])) == [CacheLevel.MEMORY]
    assert levels(model, columns([0], vcpu=1)) == [CacheLevel.MEMORY]
    assert levels(model, columns([0], vcpu=2)) == [CacheLevel.LLC]


def test_line_evicted_from_one_cache_stays_in_the_other(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.CACHE, llcs=2, llc_bytes=16 * 64, llc_ways=16)
    mine = L1_BYTES * np.arange(16)
    levels(model, columns(mine))
    levels(model, columns(L1_BYTES * np.arange(100, 200), vcpu=1))
    assert set(levels(model, columns(mine, start=1000))) == {CacheLevel.LLC}


def test_first_cache_of_another_size_keeps_what_the_others_evict(
    machine: Machine, columns: Columns
) -> None:
    lines = 2 * L1_BYTES // 64
    model = machine(parts=ModelPart.CACHE, llcs=2, llc_bytes=lines * 32, first_llc_bytes=lines * 64)
    address = 64 * np.arange(lines)
    kept = []
    for vcpu in (0, 1):
        model.replay(columns(address, vcpu=vcpu))
        again = levels(model, columns(address, vcpu=vcpu, start=1000))
        kept.append(again.count(CacheLevel.LLC))
    assert kept == [lines, 0]


def test_cache_hit_costs_its_latency_and_l1_hit_nothing(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.CACHE)
    model.replay(columns([0, L1_BYTES]))
    before = model.clock_ps
    model.replay(columns([0, 0, 0, 0], start=8))
    assert model.clock_ps - before == 4 * 4 * 100 + 5000
    assert model.counters(0).llc_hits == 1


def test_cache_hit_within_a_stream_is_hidden(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.CACHE | ModelPart.PREFETCH)
    address = 64 * np.arange(2048)  # more than L1, less than the LLC
    model.replay(columns(address))
    before = model.clock_ps
    model.replay(columns(address, start=4 * 2048))
    assert model.clock_ps - before <= 4 * 2048 * 100 + 3 * 5000


def test_dirty_l1_line_without_cache_is_written_to_memory(
    machine: Machine, columns: Columns
) -> None:
    model = machine(parts=ModelPart(0))
    model.replay(columns([0, L1_BYTES, 0], flags=[AccessFlag.STORE, 0, 0]))
    counters = model.counters(0).nodes[0]
    assert (counters.load_misses, counters.store_misses) == (2, 1)
    assert counters.write_bytes == 64


@pytest.mark.parametrize(
    ("offset", "size", "lines"), [(0, 64, 1), (60, 8, 2), (63, 2, 2), (1, 128, 3), (4092, 8, 1)]
)
def test_access_over_two_lines_counts_both(
    machine: Machine, columns: Columns, offset: int, size: int, lines: int
) -> None:
    model = machine(parts=ModelPart(0))
    model.replay(columns([offset], size=size))
    assert model.counters(0).nodes[0].load_misses == lines
    assert model.counters(0).loads == 1
    assert model.clock_ps == 4 * 100 + lines * 100_000


def test_straddling_access_misses_again_for_an_evicted_line(
    machine: Machine, columns: Columns
) -> None:
    model = machine(parts=ModelPart(0))
    model.replay(columns([60, L1_BYTES + 64, 60], size=8))
    assert model.counters(0).nodes[0].load_misses == 2 + 1 + 1


def test_access_to_a_device_costs_nothing(machine: Machine, columns: Columns) -> None:
    model = machine(parts=ModelPart.ALL)
    assert levels(model, columns([0xFEE00000, 0xFEE00000])) == [CacheLevel.L1] * 2
    assert model.clock_ps == 8 * 100
