# SPDX-License-Identifier: MIT
"""bench/compare/campaign.py: which cases a boot has, and what stops them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.compare import campaign
from bench.compare.comparison_case import ComparisonCase
from bench.suite.program import SuiteProgram
from hmd.base.errors import ConfigError, HmdError
from hmd.emulate.vm.guest import Command

CASES = [ComparisonCase.parse(f"{name}:1:2:first-touch") for name in ("cg", "pagerank", "index")]


def test_program_that_cannot_be_prepared_fails_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    booted: list[int] = []

    def prepare(program: SuiteProgram, _inputs: Path) -> Command:
        if program.name == "pagerank":
            raise ConfigError("pagerank needs python3-igraph")
        return Command(("true",), {}, "")

    def boot(commands: Sequence[Command], *_: object) -> None:
        booted.append(len(commands))
        raise HmdError("no machine here")

    monkeypatch.setattr(campaign, "prepare", prepare)
    monkeypatch.setattr(campaign, "stage", boot)

    outcomes = campaign.run_cases(CASES, tmp_path, tmp_path, lambda _line: None)

    assert booted == [2]
    assert {case.program: why for case, why in outcomes.failed.items()} == {
        "cg": "no machine here",
        "pagerank": "pagerank needs python3-igraph",
        "index": "no machine here",
    }


def test_programs_of_more_threads_have_boots_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    booted: list[list[int]] = []

    def boot(commands: Sequence[Command], *_: object) -> None:
        booted.append([command.threads for command in commands])
        raise HmdError("no machine here")

    monkeypatch.setattr(campaign, "stage", boot)
    monkeypatch.setattr(
        campaign, "prepare", lambda program, _: Command(("true",), {}, "", threads=program.threads)
    )
    names = ("cg", "ranks", "diffusion", "index")
    cases = [ComparisonCase.parse(f"{name}:1:2:first-touch") for name in names]

    campaign.run_cases(cases, tmp_path, tmp_path, lambda _line: None)

    assert booted == [[1, 1], [2], [4]]
