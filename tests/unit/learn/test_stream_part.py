# SPDX-License-Identifier: MIT
"""Parts of recorded programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hmd.learn.episodes import part_of
from tests.unit.simulate.conftest import PAGES, hot_set, stream_of

PROGRAM = stream_of(hot_set(2000, 0, 1))


def test_part_whole_program_equals_itself() -> None:
    whole = part_of(PROGRAM, 0, len(PROGRAM))
    for name in ("instructions", "page", "line", "flags", "page_address"):
        assert np.array_equal(getattr(whole, name), getattr(PROGRAM, name)), name
    assert whole.user_pages == PROGRAM.user_pages


def test_part_has_the_pages_that_it_accesses_and_its_own_time() -> None:
    part = part_of(PROGRAM, 500, 520)
    assert part.user_pages == len(np.unique(PROGRAM.page[500:520])) < PAGES
    assert np.array_equal(part.page_address[part.page], PROGRAM.page_address[PROGRAM.page[500:520]])
    assert np.array_equal(np.diff(part.instructions), np.diff(PROGRAM.instructions[500:520]))
    assert part.instructions[0] == PROGRAM.instructions[500] - PROGRAM.instructions[499]


def test_part_load_whose_address_came_before_it_depends_on_none() -> None:
    far = replace(PROGRAM, depends=np.full(len(PROGRAM), 50, np.uint16))
    depends = part_of(far, 100, 200).depends
    assert not depends[:50].any()
    assert (depends[50:] == 50).all()
