# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.tensors.publications.published_g10 import library_order, sort_highest_first


@given(keys=st.lists(st.integers(0, 9), max_size=300))
def test_order_of_keys_is_a_sorted_permutation(keys: list[int]) -> None:
    order = library_order(np.array(keys, np.float64))
    assert sorted(order.tolist()) == list(range(len(keys)))
    assert [keys[at] for at in order] == sorted(keys)


def test_order_of_sixteen_equal_keys_stays() -> None:
    assert library_order(np.ones(16)).tolist() == list(range(16))


def test_order_of_seventeen_equal_keys_is_that_of_the_library() -> None:
    # As printed by a program that g++ 12 compiled.
    expected = [8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]
    assert library_order(np.ones(17)).tolist() == expected


def test_equal_keys_are_sorted_by_tie_unless_zero() -> None:
    order = np.arange(4)
    sort_highest_first(order, np.array([0.0, 5.0, 5.0, 0.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert order.tolist() == [2, 1, 0, 3]
