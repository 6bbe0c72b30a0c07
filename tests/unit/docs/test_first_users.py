# SPDX-License-Identifier: MIT
"""The note on first users' defects names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOTE = ROOT / "docs/lab/2026-11-first-users.md"


def test_note_on_first_users_names_existing_tests() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", NOTE.read_text())
    assert len(named) > 60
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).is_file()
        or f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert not missing


def test_rows_of_the_note_without_a_test_say_so() -> None:
    rows = [line for line in NOTE.read_text().splitlines() if line.startswith("| ")]
    without = [row for row in rows if row.endswith("| |")]
    assert all("open" in row or "when measured again" in row for row in without), without
