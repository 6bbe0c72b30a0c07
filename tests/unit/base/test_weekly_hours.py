# SPDX-License-Identifier: MIT
"""Hours of the week: what is written, and which times are within."""

from __future__ import annotations

from datetime import datetime

import pytest

from hmd.base.quantities import parse_hours

MONDAY = 5
"""Of January 2026."""


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, MONDAY + day, hour, minute)


@pytest.mark.parametrize(
    ("text", "within", "outside"),
    [
        ("Mon-Fri 08:00-18:00", [at(0, 8), at(4, 17, 59)], [at(0, 7, 59), at(4, 18), at(5, 12)]),
        ("22:00-06:00", [at(6, 22), at(0, 0), at(3, 5, 59)], [at(3, 6), at(3, 21, 59)]),
        # What begins on Friday ends on Saturday, and no other day does.
        ("Fri 22:00-06:00", [at(4, 22), at(5, 5, 59)], [at(4, 5), at(5, 22), at(3, 23)]),
        ("Sun 22:00-06:00", [at(6, 23), at(0, 5)], [at(1, 5)]),
        ("Sat-Mon,Wed 00:00-24:00", [at(5, 0), at(6, 9), at(0, 23, 59), at(2, 12)], [at(1, 0)]),
    ],
)
def test_hours_contain_times_of_their_days(
    text: str, within: list[datetime], outside: list[datetime]
) -> None:
    hours = parse_hours(text)
    assert hours.text == text
    assert [hours.contains(moment) for moment in within] == [True] * len(within)
    assert [hours.contains(moment) for moment in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    "wrong",
    ["", "Mon", "8:00-18:00", "mon 08:00-18:00", "08:00-08:00", "24:00-06:00", "08:60-09:00", 8],
)
def test_hours_of_another_form_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="as in Mon-Fri 08:00-18:00"):
        parse_hours(wrong)
