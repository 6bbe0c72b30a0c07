# SPDX-License-Identifier: MIT
"""Arguments that several commands take."""

import argparse
from pathlib import Path

import pytest

from hmd.base.units import MIB
from hmd.cli.arguments import add_options, duration_or_seconds, whole_number


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600.0), ("0.5", 0.5), ("500ms", 0.5), ("10min", 600.0)]
)
def test_duration_or_seconds_number_or_unit_in_seconds(text: str, seconds: float) -> None:
    assert duration_or_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "5ms", "10 parsecs", "1e9"])
def test_duration_or_seconds_no_time_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write a time from 10ms"):
        duration_or_seconds(text)


def parser_of(text: str, *required: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_options(parser, text, required, steps=whole_number(9))
    return parser


def test_options_are_read_as_their_text_says() -> None:
    text = """\
FILE         a file
[PID|TARGET]  a process
--rw DIR ...
             a folder; may be repeated
pages:
| --limit SIZE  so much, 50% at most
| --all      all of them
--by {phase,region}  by what
--json [FILE]  as JSON
--steps N    steps
--secret     (hidden)
"""
    parser = parser_of(text)
    found = parser.parse_args(["x", "7", "--rw", "a", "--rw", "b", "--limit", "1MiB", "--json"])
    assert (found.file, found.subject, found.rw) == (Path("x"), "7", [Path("a"), Path("b")])
    assert (found.limit, found.all, found.by, found.json) == (MIB, False, None, "-")
    shown = parser.format_help()
    assert "a folder; may be repeated" in shown and "50% at most" in shown and "pages:" in shown
    assert "--secret" not in shown


@pytest.mark.parametrize(
    "words", [[], ["--to", "1", "--a", "--b"], ["--to", "x"], ["--to", "1", "--steps", "10"]]
)
def test_options_wrong_values_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parser_of("--to NODE\n| --a  a\n| --b  b\n--steps N", "to").parse_args(words)
