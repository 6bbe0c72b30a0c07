# SPDX-License-Identifier: MIT
"""What the comparison runs of a program that the suite has in a short form."""

from __future__ import annotations

import pytest

from bench.compare.comparison_case import can_be_simulated, compared_digest, compared_program
from bench.suite.ground_truth import program_digest
from bench.suite.program import load_program


def test_compared_program_long_command_taken() -> None:
    short, compared = load_program("ranks"), compared_program("ranks")
    assert compared.command == short.long_command != short.command
    assert compared.threads == short.threads == 2


def test_compared_program_without_long_command_as_in_suite() -> None:
    assert compared_program("gups") == load_program("gups")
    assert compared_digest("gups") == program_digest("gups")


def test_compared_digest_depends_on_long_command(monkeypatch: pytest.MonkeyPatch) -> None:
    before, recorded = compared_digest("ranks"), program_digest("ranks")
    longer = load_program("ranks").model_copy(update={"long_command": ("{program}", "2", "9")})
    monkeypatch.setattr("bench.compare.comparison_case.load_program", lambda _name: longer)
    monkeypatch.setattr("bench.suite.ground_truth.load_program", lambda _name: longer)
    assert program_digest("ranks") == recorded, "a recording is of the short run"
    assert compared_digest("ranks") != before


@pytest.mark.parametrize(("name", "simulated"), [("gups", True), ("ranks", False)])
def test_compared_program_of_threads_has_no_simulation(name: str, simulated: bool) -> None:
    assert can_be_simulated(name) is simulated
