# SPDX-License-Identifier: MIT
"""Address translation: hits of both TLB levels, page walks, and what they add to a load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.access_model import AccessCosts, AccessFlag, AccessModel
from hmd.base.errors import HmdError
from hmd.emulate.preset import load, preset_names
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes
from hmd.emulate.timing_params import ModelPart, TimingParams, timing_params
from tests.unit.timing.conftest import GIB, Columns, Machine
from tests.unit.timing.test_misses import FAST_PAGE, QUIET, busy_ns, stream_of

PAGE = 4096
FIRST, SECOND = 16, 64
SECOND_PS, WALK_PS, LATENCY_PS, HIT_PS = 3000, 11_000, 100_000, 5000
TLB = {
    "tlb_entries": FIRST,
    "tlb_ways": 4,
    "tlb_huge_entries": 8,
    "tlb_huge_ways": 4,
    "stlb_entries": SECOND,
    "stlb_ways": 4,
    "stlb_hit_ps": SECOND_PS,
    "walk_ps": WALK_PS,
}
PARTS = ModelPart.MLP | ModelPart.TLB


def one_per_page(pages: int, rounds: int) -> Any:
    """Addresses: one line of each page, another one in each round."""
    page = np.arange(pages, dtype=np.uint64) * np.uint64(PAGE)
    lines = np.arange(rounds, dtype=np.uint64)[:, None] * np.uint64(64)
    return (page + lines + np.uint64(FAST_PAGE)).ravel()


def latencies(model: AccessModel, stream: Any) -> Any:
    costs = AccessCosts.empty(len(stream))
    model.replay(stream, into=costs)
    return costs.latency_ps


def chain(address: Any) -> Any:
    return np.append(address[1:], 0) + np.uint64(1 << 40)


@pytest.mark.parametrize(
    ("pages", "delay_ps", "walks"),
    [(FIRST // 2, 0, 0), (SECOND // 2, SECOND_PS, 0), (4 * SECOND, WALK_PS, 4 * SECOND)],
)
def test_chained_load_is_later_by_its_translation(
    machine: Machine, columns: Columns, pages: int, delay_ps: int, walks: int
) -> None:
    """In the second round over its pages, by how many of them each TLB level holds."""
    model = machine(parts=PARTS, **TLB)
    address = one_per_page(pages, 2)
    model.replay(columns(address[:pages]))
    before = model.counters(0)
    model.idle(0, before.instructions)
    start_ps, rest = model.counters(0).busy_ps, address[pages:]
    model.replay(columns(rest, start=before.instructions + 1000, value=chain(rest)))
    after = model.counters(0)
    model.idle(0, after.instructions)
    assert after.page_walks - before.page_walks == walks
    busy_ps = model.counters(0).busy_ps - start_ps - 100 * (1000 + 4 * pages)
    assert busy_ps == pytest.approx(pages * (LATENCY_PS + delay_ps), rel=0.02)


def test_translation_costs_nothing_without_the_part(machine: Machine, columns: Columns) -> None:
    stream = columns(one_per_page(4 * SECOND, 2))
    plain, off = machine(parts=ModelPart.MLP), machine(parts=ModelPart.MLP, **TLB)
    assert plain.replay(stream) == off.replay(stream)
    assert off.counters(0).page_walks == 0


def test_kernel_accesses_are_not_translated(machine: Machine, columns: Columns) -> None:
    model = machine(**TLB)
    model.replay(columns(one_per_page(4 * SECOND, 2), flags=AccessFlag.KERNEL))
    assert model.counters(0).page_walks == 0


def test_flush_makes_translations_walk_again(machine: Machine, columns: Columns) -> None:
    model = machine(parts=PARTS, **TLB)
    address = one_per_page(8, 4)
    flushes: list[list[int | None]] = [[], [], [None], [(1 << 40) + FAST_PAGE]]
    walks = []
    for number, flushed in enumerate(flushes):
        for page in flushed:
            model.flush(0, page)
        part = address[8 * number : 8 * number + 8]
        model.replay(columns(part, start=1000 * number))
        walks.append(model.counters(0).page_walks)
    assert walks == [8, 8, 16, 17]
    model.flush(1)
    assert model.counters(1).page_walks == 0, "the other CPU's are its own"


def test_stream_does_not_wait_for_its_walks(machine: Machine, columns: Columns) -> None:
    """The prefetcher has translated the next page before (Ivy Bridge and later)."""
    parts = PARTS | ModelPart.PREFETCH
    stream = columns(FAST_PAGE + 64 * np.arange(64 * 256, dtype=np.uint64))
    plain, model = machine(parts=parts & ~ModelPart.TLB), machine(parts=parts, **TLB)
    assert model.replay(stream) == pytest.approx(plain.replay(stream), abs=10 * WALK_PS)
    assert model.counters(0).page_walks < 3


def test_leaf_entry_is_read_from_the_node_of_its_page(machine: Machine, columns: Columns) -> None:
    """Of so many pages that the cache does not keep the entries; an entry's line maps 8 pages."""
    model = machine(parts=PARTS | ModelPart.CACHE, **TLB)
    pages = 1 << 15
    address = GIB + GIB // 2 + PAGE * np.arange(pages, dtype=np.uint64)
    model.replay(columns(address, step=300))
    fast, slow = model.counters(0).nodes
    assert (fast.table_lines, slow.load_misses) == (0, pages)
    assert slow.table_lines == pages // 8


def test_load_waits_for_a_leaf_entry_from_memory(machine: Machine, columns: Columns) -> None:
    model = machine(parts=PARTS | ModelPart.CACHE, **TLB)
    address = GIB + PAGE * 8 * np.arange(50, dtype=np.uint64)
    latency = latencies(model, columns(address, step=3000))
    assert np.all(latency == 2 * 300_000)
    assert model.counters(0).nodes[1].table_lines == 50


def test_walk_of_a_store_costs_what_a_cache_hit_does(machine: Machine, columns: Columns) -> None:
    parts = PARTS | ModelPart.CACHE
    pages = 4 * SECOND
    address = one_per_page(pages, 2)
    plain, model = machine(parts=parts & ~ModelPart.TLB), machine(parts=parts, **TLB)
    for each in (plain, model):
        each.replay(columns(address[:pages], step=1000))
        each.replay(columns(address[pages:], step=1000, start=1000 * pages, flags=AccessFlag.STORE))
    walks = model.counters(0).page_walks
    assert walks == 2 * pages
    table = model.counters(0).nodes[0].table_lines
    added = model.counters(0).busy_ps - plain.counters(0).busy_ps
    # Of the loads, 7 of 8 walk to a cached entry, and each waits alone; the entries are misses.
    loads_ps = (pages - table) * WALK_PS + table * LATENCY_PS
    assert added == pytest.approx(loads_ps + pages * HIT_PS, rel=0.02)


@pytest.mark.parametrize(
    ("flag", "added_ns"), [(MissFlag.STLB_HIT, 3), (MissFlag.WALK, 11), (MissFlag.TABLE, 0)]
)
def test_replayed_miss_starts_later_by_its_translation(
    machine: Machine, flag: MissFlag, added_ns: int
) -> None:
    def run(flags: int) -> float:
        stream = stream_of(range(0, 4000, 40), depends=[0] + [1] * 99, flags=flags)
        return busy_ns(lambda **fields: machine(**fields, **TLB), stream, [FAST_PAGE], QUIET)

    # The last five are in the reorder window when the stream ends.
    assert run(int(flag)) - run(0) == 95 * added_ns


def test_replay_without_the_part_has_no_walks(machine: Machine) -> None:
    """A chain of which each load depends on the leaf entry read before it."""
    rows, without = range(0, 4000, 40), ModelPart.ALL & ~ModelPart.BANDWIDTH & ~ModelPart.TLB
    table = [int(MissFlag.TABLE) if row % 2 else 0 for row in range(1, 101)]
    chained = stream_of(rows, depends=[0] + [1] * 99, flags=table)
    loads = stream_of(rows[1::2], depends=[0] + [1] * 49)
    walked = stream_of(rows[1::2], depends=[0] + [1] * 49, flags=int(MissFlag.WALK))
    plain_ns = busy_ns(machine, loads, [FAST_PAGE], without)
    assert busy_ns(machine, walked, [FAST_PAGE], without) == plain_ns
    assert busy_ns(machine, chained, [FAST_PAGE], without) == pytest.approx(plain_ns, abs=8)
    assert busy_ns(machine, chained, [FAST_PAGE], QUIET) > 1.9 * plain_ns


def test_replayed_latency_includes_the_leaf_entry(machine: Machine) -> None:
    """As a PMU has it: from the load's issue to its data."""
    stream = stream_of([0, 0, 4000], flags=[int(MissFlag.TABLE), 0, 0], depends=[0, 1, 0])
    outcomes = MissOutcomes.empty(3)
    machine(parts=QUIET).replay_misses(stream, np.asarray([FAST_PAGE], np.uint64), outcomes)
    assert outcomes.latency_ps.tolist() == [LATENCY_PS, 2 * LATENCY_PS, LATENCY_PS]


def test_replayed_table_entries_count_apart(machine: Machine) -> None:
    model = machine(parts=QUIET, **TLB)
    stream = stream_of(range(0, 400, 40), flags=int(MissFlag.TABLE))
    model.replay_misses(stream, np.asarray([FAST_PAGE], np.uint64))
    fast = model.counters(0).nodes[0]
    assert (fast.table_lines, fast.load_misses, stream.sampled().sum()) == (10, 0, 0)


def test_shootdown_costs_sender_and_receivers(machine: Machine) -> None:
    costs = {"shootdown_send_ps": 2_700_000, "shootdown_receive_ps": 1_000_000}
    model = machine(vcpus=3, **costs)
    model.shootdown(0, [1, 2])
    model.shootdown(2, [1])
    assert [model.counters(cpu).shootdown_ps for cpu in range(3)] == [
        2_700_000,
        2_000_000,
        3_700_000,
    ]
    assert [model.counters(cpu).busy_ps for cpu in range(3)] == [2_700_000, 2_000_000, 3_700_000]
    free = machine(parts=ModelPart.ALL & ~ModelPart.SHOOTDOWN, **costs)
    free.shootdown(0, [1])
    assert free.clock_ps == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tlb_entries": 48, "tlb_ways": 4}, "tlb_entries must be tlb_ways times a power of two"),
        ({"tlb_ways": 0}, "tlb_entries must be"),
        ({"tlb_huge_entries": 512}, "tlb_huge_entries must be"),
        ({"stlb_entries": 8192}, "stlb_entries must be"),
        ({"stlb_ways": 64}, "stlb_entries must be"),
    ],
)
def test_tlb_out_of_range_is_refused_by_name(params: TimingParams, fields: Any, why: str) -> None:
    with pytest.raises(HmdError, match=why):
        AccessModel(replace(params, **(TLB | fields)))


@pytest.mark.parametrize("name", preset_names())
def test_preset_tlb_covers_what_was_published(name: str) -> None:
    params = timing_params(load(name))
    assert (params.tlb_entries, params.stlb_entries) in {(64, 1536), (96, 2048)}
    assert 0 < params.stlb_hit_ps < params.walk_ps
