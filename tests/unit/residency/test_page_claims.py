# SPDX-License-Identifier: MIT
"""Which mapping counts each page of a file, compared with a dictionary of pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.base.units import PAGE_BYTES
from hmd.heat.settings import CHUNK_BYTES
from hmd.residency.shared_pages import SharedPageOwners

FILE_PAGES = 4 * CHUNK_BYTES // PAGE_BYTES
UNIT_PAGES = CHUNK_BYTES // PAGE_BYTES


class Counted:
    """The same as ``SharedPageOwners``, one page at a time."""

    def __init__(self) -> None:
        self.view: dict[tuple[int, int], int] = {}

    def claim(self, view: int, file: int, span: tuple[int, int], pages: list[int]) -> None:
        for page in range(span[0], span[1]):
            if page in pages:
                self.view.setdefault((file, page), view)
            elif self.view.get((file, page)) == view:
                del self.view[file, page]

    def release(self, views: list[int]) -> None:
        self.view = {place: view for place, view in self.view.items() if view not in views}


spans = st.tuples(st.integers(0, FILE_PAGES - 1), st.integers(1, FILE_PAGES)).map(
    lambda pair: (pair[0], min(pair[0] + pair[1], FILE_PAGES))
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(1, 3), st.integers(0, 1), spans, st.integers(1, 5)),
        st.tuples(st.just("release"), st.lists(st.integers(1, 3), max_size=2)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=40)
@given(steps)
def test_claims_of_any_steps_equal_a_dictionary(steps: list[tuple[object, ...]]) -> None:
    claims, counted = SharedPageOwners(), Counted()
    for kind, *rest in steps:
        if kind == "release":
            [views] = rest
            assert isinstance(views, list)
            claims.release(views)
            counted.release(views)
            continue
        view, file, span, every = rest
        assert isinstance(view, int) and isinstance(file, int)
        assert isinstance(span, tuple) and isinstance(every, int)
        pages = list(range(span[0], span[1], every))
        in_bytes = span[0] * PAGE_BYTES, span[1] * PAGE_BYTES
        claims.set_owner(view, file, in_bytes, np.array(pages, np.uint64) * np.uint64(PAGE_BYTES))
        counted.claim(view, file, span, pages)
    for file in (0, 1):
        expected = [counted.view.get((file, page), 0) for page in range(FILE_PAGES)]
        found = claims.find_owners(file, np.arange(FILE_PAGES, dtype=np.uint64) * PAGE_BYTES)
        assert found.tolist() == expected
        units = np.arange(4, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
        for view in (1, 2, 3):
            by_unit = [expected[at : at + UNIT_PAGES] for at in range(0, FILE_PAGES, UNIT_PAGES)]
            elsewhere = [0 not in unit and view not in unit for unit in by_unit]
            assert claims.owned_elsewhere(view, file, units).tolist() == elsewhere
            own = set(expected) <= {0, view}
            assert claims.owns_all(view, file, (0, FILE_PAGES * PAGE_BYTES)) == own


def offsets(*pages: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(pages, np.uint64) * np.uint64(PAGE_BYTES)


def test_claims_beyond_room_for_pages_one_mapping_counts_the_unit() -> None:
    claims = SharedPageOwners(max_page_units=1)
    whole = (0, 2 * CHUNK_BYTES)
    claims.set_owner(1, 0, whole, offsets(0, UNIT_PAGES))
    claims.set_owner(2, 0, whole, offsets(0, 1, UNIT_PAGES, UNIT_PAGES + 1))
    found = claims.find_owners(0, offsets(0, 1, 2, UNIT_PAGES, UNIT_PAGES + 1))
    assert found.tolist() == [1, 2, 0, 1, 1]
    # Where the mapping has no page of the unit any more, another counts it.
    claims.set_owner(1, 0, whole, offsets(0))
    claims.set_owner(2, 0, whole, offsets(1, UNIT_PAGES + 1))
    assert claims.find_owners(0, offsets(UNIT_PAGES)).tolist() == [2]


@pytest.mark.parametrize("apart", [CHUNK_BYTES, PAGE_BYTES])
def test_claims_released_memory_given_back(apart: int) -> None:
    claims = SharedPageOwners()
    empty = claims.nbytes
    pages = np.arange(0, 4000 * apart, apart, dtype=np.uint64)
    claims.set_owner(1, 0, (0, 4000 * apart), pages)
    # 4,000 pages 2 MiB apart: a unit each. Without a gap, eight units.
    assert claims.nbytes - empty < (4000 if apart == CHUNK_BYTES else 16) * 2200
    claims.release([1])
    for _ in range(12):
        claims.set_owner(1, 0, (0, PAGE_BYTES), offsets(0))
        claims.release([1])
    assert claims.nbytes <= 2 * empty
