# SPDX-License-Identifier: MIT
"""Pauses of the cyclic collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from hmd.policy.registry import collector_paused


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_cycle_of_a_pause_is_not_looked_for() -> None:
    with collector_paused():
        assert not gc.isenabled()
        left = weakref.ref(Cycle())
    assert gc.isenabled()
    gc.collect()
    assert left() is not None


def test_cycle_after_a_pause_is_collected() -> None:
    with collector_paused():
        pass
    left = weakref.ref(Cycle())
    gc.collect()
    assert left() is None


def test_pause_within_a_pause_does_not_end_it() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
