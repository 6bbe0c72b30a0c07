# SPDX-License-Identifier: MIT
"""Figures in documents: found in the results, filled in, and the same as the results now."""

from __future__ import annotations

import json

import pytest

from bench.documents import figures
from bench.documents.markdown import measured_with

RESULTS = {"cost": {"mean": 0.00733, "cases": [{"ms": 3.0}, {"ms": 4.5}], "by": {"a:b": 2}}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cost[mean]:.1%", "0.7 %"),
        ("cost[mean]:.3f", "0.007"),
        ("cost[cases][1][ms]:.1f", "4.5"),
        ("cost[cases][*][ms]!max:.1f", "4.5"),
        ("cost[cases]!len", "2"),
        ("cost[by][a:b]", "2"),
    ],
)
def test_figure_name_in_results_formatted(name: str, text: str) -> None:
    assert figures.figure(name, RESULTS) == text


@pytest.mark.parametrize("name", ["cost[median]:.1%", "other[mean]", "cost[cases]:.1f", "!", ""])
def test_figure_name_not_in_results_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"not in the results|not of the form"):
        figures.figure(name, RESULTS)


def test_document_stale_figure_reported_and_filled() -> None:
    text = "x\nIt is <!-- {cost[mean]:.1%} -->0.9 %<!-- / --> off.\n"
    assert figures.differences(text, RESULTS) == [(2, "cost[mean]:.1% is 0.7 %, not 0.9 %")]
    filled = figures.filled(text, RESULTS)
    assert filled == text.replace("0.9", "0.7")
    assert figures.differences(filled, RESULTS) == []


def test_documents_committed_figures_equal_results() -> None:
    found = figures.results()
    texts = {file: file.read_text() for file in figures.documents()}
    assert any("<!-- {" in text for text in texts.values())
    wrong = {str(file): figures.differences(text, found) for file, text in texts.items()}
    assert {file: lines for file, lines in wrong.items() if lines} == {}


def test_each_file_of_results_says_what_it_was_measured_with() -> None:
    files = [json.loads(path.read_text()) for path in sorted(figures.RESULTS.glob("*.json"))]
    assert len(files) > 30
    assert [each for each in files if figures.unexplained(each)] == []


def test_results_without_commit_host_or_date_are_named() -> None:
    whole = measured_with()
    assert whole["command"].startswith("python ")
    whole["command"] = "python -m bench.far drift --publish"
    assert figures.unexplained({**whole, "rows": [1]}) == []
    for name in ("command", "commit", "host", "date"):
        lacking = {key: value for key, value in whole.items() if key != name}
        assert figures.unexplained(lacking | {"rows": [1]}) == [name]
        assert figures.unexplained({"a": whole, "b": {**whole, name: "?!\n"}}) == [name]
    assert figures.unexplained({"rows": {"a": 1}}) == ["command", "commit", "host", "date"]
