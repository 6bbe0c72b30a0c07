# SPDX-License-Identifier: MIT
"""Stored trials: read back run by run, and apart from those of other digests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.compare.campaign import TrialStore
from bench.compare.comparison_case import CaseResult, ComparisonCase, ComparisonTrial

CASE = ComparisonCase.parse("updates_moving:1:8:hmd:histogram")
RUNS = tuple(ComparisonTrial(s, 60 * s, 4096, 0, 0.5, 8192, 0) for s in (1.9, 1.2, 1.5))


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    made = TrialStore(tmp_path / "cases")
    for count in range(1, len(RUNS) + 1):
        made.add(CASE, CaseResult(RUNS[:count], "d1", f"commit{count}"))
    return made


def test_store_runs_read_back_in_order(store: TrialStore) -> None:
    assert store.read(CASE, "d1") == CaseResult(RUNS, "d1", "commit3")


def test_store_other_digest_reads_nothing(store: TrialStore) -> None:
    assert store.read(CASE, "d2") is None


def test_store_forget_drops_all_runs_of_a_digest_only(store: TrialStore) -> None:
    store.add(CASE, CaseResult(RUNS[:1], "d2", "commit4"))
    store.forget(CASE, "d1")
    assert store.read(CASE, "d1") is None
    assert store.read(CASE, "d2") == CaseResult(RUNS[:1], "d2", "commit4")


def test_store_latest_is_the_newest_digest(store: TrialStore, tmp_path: Path) -> None:
    store.add(CASE, CaseResult(RUNS[:1], "d2", "commit4"))
    for path in (tmp_path / "cases").glob("*-d1-*"):
        os.utime(path, (0, 0))
    assert store.latest(CASE) == CaseResult(RUNS[:1], "d2", "commit4")


def test_store_latest_of_system_with_longer_namesake_is_none(store: TrialStore) -> None:
    longer = ComparisonCase.parse("drift:1:2:kernel-tiering-defaults")
    store.add(longer, CaseResult(RUNS[:1], "d1", "commit4"))
    assert store.latest(longer) is not None
    assert store.latest(ComparisonCase.parse("drift:1:2:kernel-tiering")) is None
