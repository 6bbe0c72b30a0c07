# SPDX-License-Identifier: MIT
"""Arguments that several commands take."""

import argparse

import pytest

from hmd.cli.arguments import duration_or_seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600.0), ("0.5", 0.5), ("500ms", 0.5), ("10min", 600.0)]
)
def test_duration_or_seconds_number_or_unit_in_seconds(text: str, seconds: float) -> None:
    assert duration_or_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "5ms", "10 parsecs", "1e9"])
def test_duration_or_seconds_no_time_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write a time from 10ms"):
        duration_or_seconds(text)
