# SPDX-License-Identifier: MIT
"""Hostile clients stop, starve and blind nothing: `make test-hostile` runs this for ten minutes.

Another user holds 2,000 idle HTTP connections and 40 idle clients of the status socket, has 1,000
requests per second refused, and runs 40 busy processes per CPU every other 10 seconds. The daemon
may have 64 tasks and 1,024 files.
"""

from __future__ import annotations

import os

import pytest

from bench.hostile.clients import measure

SECONDS = float(os.environ.get("HMD_HOSTILE_SECONDS", "45"))


@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 600)
def test_service_under_hostile_clients_serves_root_and_scrapers() -> None:
    figures = measure(SECONDS)
    assert figures.refused > 100 * SECONDS / 10, "the attack did not take place"
    assert figures.scrapes_answered >= 0.99
    assert figures.stages_failed == 0
    assert figures.log_lines < 100
    # No clock decides this test: each pause was done, late or not, and none was withdrawn.
    assert figures.pause_worst_s < float("inf")
    assert figures.ticks > 0
