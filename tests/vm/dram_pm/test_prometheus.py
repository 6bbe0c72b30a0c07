# SPDX-License-Identifier: MIT
"""A real Prometheus in the guest scrapes the daemon while it migrates.

tests/vm/programs/daemon.py runs both; these tests check the result.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from bench.monitoring.prometheus import find_tool

HOT_PAGES = (12 << 20) // 4096
"""Three quarters of the program's memory, all of which is hot."""

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def found(served: dict[str, Any]) -> dict[str, Any]:
    scraped: dict[str, Any] = served["scraped"]
    return scraped


def test_dashboard_every_query_has_data(found: dict[str, Any]) -> None:
    empty = [name for name, values in found["answers"].items() if not any_number(values)]
    # Its target is not never slow.
    assert empty == ["Targets: Never slow: memory off the fastest tier: {{target}}"]


def any_number(values: list[float | None]) -> bool:
    return any(value is not None for value in values)


def test_alerts_all_evaluated(found: dict[str, Any]) -> None:
    assert set(found["health"].values()) == {"ok"}


def test_stage_metrics_input_at_least_output(found: dict[str, Any]) -> None:
    stages = found["stages"]
    assert stages["sample in"] >= stages["sample out"] > 100
    assert stages["heat in"] >= stages["heat out"] > 100
    assert stages["decide in"] >= stages["decide out"] >= HOT_PAGES
    assert stages["migrate in"] >= stages["migrate out"] >= HOT_PAGES


def test_realised_saving_above_half_of_predicted(found: dict[str, Any]) -> None:
    answers = found["answers"]
    (predicted,) = answers["Decisions and moves: Predicted and realised saving: predicted saving"]
    (realised,) = answers["Decisions and moves: Predicted and realised saving: realised saving"]
    assert predicted is not None
    assert realised is not None
    # All of the program stays hot. Moves are decided by the first tick with samples, of which
    # modelled time covers but a part, so that heat is underrated.
    assert realised > predicted / 2 > 0


def test_scrapes_while_pages_move_all_succeed(found: dict[str, Any]) -> None:
    assert set(found["up"]) == {1}


def test_promtool_check_metrics_reports_nothing(found: dict[str, Any]) -> None:
    done = subprocess.run(
        [find_tool("promtool"), "check", "metrics"],
        input=found["metrics"],
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
