# SPDX-License-Identifier: MIT
"""The runs of the learned policy's study: which are made, and which are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.learned_policy import runs as learned_runs
from bench.learned_policy.networks import HeldOutNetworks
from bench.learned_policy.runs import HeldOutRun, HeldOutRuns, runs_of
from bench.suite.ground_truth import RecordedStream
from hmd.base.errors import UsageError
from hmd.emulate.preset import load
from hmd.simulate.executors import Journal
from tests.unit.simulate.conftest import PAGES, hot_set, stream_of


def test_runs_of_nothing_are_all_cases_with_one_seed_where_samples_do_not_matter() -> None:
    runs = runs_of("", 3, programs=("cg", "sat"), ratios=("1:2", "1:8"))
    # Tuned rules are of cg at 1:8 alone.
    assert len(set(runs)) == len(runs) == 4 * (4 + 3 * 3) + 3
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert {run.policy for run in runs if run.seed > 1} == {
        "histogram", "benefit", "learned", "tuned rule",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "number"),
    [("cg", 22), ("cg:1:8", 8), ("cg:1:2", 7), ("cg:1:16:learned,cg:1:2:tuned-rule", 2)],
)
def test_runs_of_cases_are_these(given: str, number: int) -> None:
    runs = runs_of(given, 1)
    assert len(runs) == number
    assert {run.program for run in runs} == {"cg"}


def test_runs_of_a_ratio_that_begins_as_another_are_of_that_ratio() -> None:
    (run,) = runs_of("cg:1:16:learned", 1, ratios=("1:1", "1:16"))
    assert run == HeldOutRun(1, "cg", "1:16", "learned")


@pytest.mark.parametrize("given", ["emacs", "cg:1:3", "cg:1:2:emacs", "cg:learned"])
def test_runs_of_what_is_no_case_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="is no case"):
        runs_of(given, 1)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes runs of a small program, with a journal of its own."""
    stream = stream_of(hot_set(60_000, PAGES // 2, 1))
    monkeypatch.setattr(learned_runs, "recorded", lambda *_: RecordedStream("cg", stream, 1.0))

    def maker() -> HeldOutRuns:
        networks = HeldOutNetworks(lambda _: None)
        return HeldOutRuns(load("dram-pm"), networks, Journal(tmp_path / "runs"), lambda _: None)

    return maker


def test_run_is_known_to_the_next_command_and_equal(made: Any) -> None:
    run = HeldOutRun(1, "cg", "1:2", "none")
    assert made().known(run) is None
    found = made().make(run)
    assert found["seconds"] > 0
    assert made().known(run) == found
    assert made().known(HeldOutRun(2, "cg", "1:2", "none")) is None


def test_run_of_a_bound_makes_both_and_none_is_slower_than_clairvoyant(made: Any) -> None:
    runs = made()
    still = runs.make(HeldOutRun(1, "cg", "1:2", "none"))["seconds"]
    assert runs.make(HeldOutRun(1, "cg", "1:2", "clairvoyant"))["seconds"] < still
    assert runs.known(HeldOutRun(1, "cg", "1:2", "exact-past")) is not None
