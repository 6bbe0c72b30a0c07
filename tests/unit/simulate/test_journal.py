# SPDX-License-Identifier: MIT
"""The journal of results: what is kept, and what a damaged file costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.simulate.executors import Journal


@pytest.mark.parametrize("line", ["[" * 9**6, "9" * 5000, '{"key": ', "[]", "{}"])
def test_journal_skips_lines_that_are_no_results(line: str, tmp_path: Path) -> None:
    file = tmp_path / "journal"
    Journal(file).put("before", 1.5)
    with file.open("a") as opened:
        opened.write(f"\n{line}")
    Journal(file).put("after", 2.5)
    journal = Journal(file)
    assert (journal.get("before"), journal.get("after")) == (1.5, 2.5)
