# SPDX-License-Identifier: MIT
"""Programs made of parts of recorded ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hmd.base.errors import UsageError
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import ThreadOrder
from hmd.emulate.recordings.replay import replayed
from hmd.learn.episodes import StreamPart, in_turns, stitched
from tests.unit.simulate.conftest import APART, PAGES, hot_set, stream_of

ROWS = 4000
FIRST, SECOND = (stream_of(hot_set(ROWS, first, first)) for first in (0, 1000))


def test_stitched_whole_program_equals_itself_but_for_loads_before_it() -> None:
    again = stitched([StreamPart(FIRST, 0, len(FIRST))])
    for one, two in zip(again.columns(), FIRST.columns(), strict=True):
        assert one.dtype == two.dtype
        # The first load's address comes from no load of the recording.
        assert np.array_equal(one[1:], two[1:])
    assert again.page[0] == FIRST.page[0]
    assert np.array_equal(again.page_address, FIRST.page_address)


def test_stitched_two_programs_have_pages_apart_and_time_goes_on() -> None:
    preset = load("dram-pm")
    parts = [StreamPart(each, PAGES, PAGES + ROWS) for each in (FIRST, SECOND)]
    both = stitched(parts)
    assert len(both) == 2 * ROWS
    assert (np.diff(both.instructions.astype(np.int64)) == APART).all()
    assert not set(both.page[:ROWS].tolist()) & set(both.page[ROWS:].tolist())
    assert (np.diff(both.page_address) > 0).all()
    assert both.user_pages == both.pages == len(np.unique(both.page))
    slow = np.zeros(both.user_pages, np.bool_)
    alone_ps = sum(
        replayed(one, preset, np.zeros(one.user_pages, np.bool_))
        for one in (stitched([part]) for part in parts)
    )
    assert replayed(both, preset, slow) == pytest.approx(alone_ps, rel=0.01)


def test_stitched_parts_of_one_program_share_its_pages() -> None:
    parts = [StreamPart(FIRST, 2000, 3000), StreamPart(SECOND, 0, 10), StreamPart(FIRST, 0, 1500)]
    joined = stitched(parts)
    first = joined.page_address[joined.page[:1000]]
    assert np.array_equal(first, FIRST.page_address[FIRST.page[2000:3000]])
    last = joined.page_address[joined.page[-1500:]]
    assert np.array_equal(last, FIRST.page_address[FIRST.page[:1500]])


def test_stitched_load_whose_address_came_before_the_part_depends_on_none() -> None:
    far = replace(FIRST, depends=np.full(len(FIRST), 5, np.uint16))
    depends = stitched([StreamPart(far, 100, 200)]).depends
    assert depends.tolist() == [0] * 5 + [5] * 95


def test_in_turns_unequal_parts_keep_all_rows_in_order() -> None:
    parts = [StreamPart(FIRST, 0, 2500), StreamPart(SECOND, 100, 900)]
    turns = in_turns(parts, 1000)
    assert [(turn.stream is FIRST, turn.begin, turn.end) for turn in turns] == [
        (True, 0, 1000),
        (False, 100, 900),
        (True, 1000, 2000),
        (True, 2000, 2500),
    ]


def test_stitched_program_of_several_cpus_refused() -> None:
    order = ThreadOrder(np.array([0, 10, len(FIRST)]), np.empty((0, 2), np.uint64))
    with pytest.raises(UsageError, match="record them on one CPU"):
        stitched([StreamPart(replace(FIRST, threads=order), 0, 10)])
