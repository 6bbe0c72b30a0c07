# SPDX-License-Identifier: MIT
"""Limits that a bench raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scale.tick_cost import raised


def test_limits_raised_where_lower_and_put_back(tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    low.write_text("10\n")
    high.write_text("1000\n")

    def use() -> None:
        with raised({"low": 100, "high": 100}, tmp_path):
            assert (low.read_text(), high.read_text()) == ("100\n", "1000\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert (low.read_text(), high.read_text()) == ("10\n", "1000\n")
