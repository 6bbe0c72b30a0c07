# SPDX-License-Identifier: MIT
"""Shares of memory that are out: the largest within the slowdown, and their table."""

from __future__ import annotations

from typing import Any

from bench import far


def _row(system: str, setting: float | None, out_share: float, slowdown: float) -> dict[str, Any]:
    figures = {"out_share": out_share, "slowdown": slowdown}
    return {"program": "drift", "system": system, "setting": setting, "seconds": 1.0} | figures


ROWS = [
    _row(far.NOTHING, None, 0.0, 0.0),
    _row(far.RECLAIM, 0.85, 0.1, 0.02),
    _row(far.RECLAIM, 0.6, 0.4, 0.2),
    _row(far.WATCHED, None, 0.0, 0.2),
    _row(far.HMD, 2.0, 0.3, 0.031),
    _row(far.HMD, 4.0, 0.25, -0.01),
    _row(far.HMD, 8.0, 0.2, 0.0),
]


def test_largest_share_is_of_runs_that_are_slower_by_no_more_than_the_most() -> None:
    assert far.largest_shares(ROWS) == {"drift": {far.RECLAIM: 0.1, far.HMD: 0.25}}


def test_largest_share_is_none_where_every_setting_is_slower() -> None:
    assert far.largest_shares(ROWS[2:5]) == {"drift": {far.RECLAIM: 0.0, far.HMD: 0.0}}


def test_table_has_a_line_per_setting() -> None:
    lines = far.far_table(ROWS).splitlines()
    assert lines[2] == "| drift | memory.reclaim | within 85 % | 10.0 % | 2.0 % |"
    assert lines[4] == "| drift | hmd | idle for 2 s | 30.0 % | 3.1 % |"
    assert len(lines) == 2 + 5
