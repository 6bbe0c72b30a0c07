# SPDX-License-Identifier: MIT
"""Patterns of the configuration on text that another user chooses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.linux.targets import MAX_TEXT_BYTES, SafeRegex


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+b", b"a"),
        ("(a|a)*b", b"a"),
        ("(a|aa)+$x", b"a"),
        ("(.*)*,(.*)*,(.*)*;", b","),
        (r"(\w+\s?)*!", b"word "),
        ("java.*java.*java.*java.*server", b"java "),
    ],
)
def test_pattern_that_backtracks_for_ever_elsewhere_returns(pattern: str, text: bytes) -> None:
    """An engine that backtracks does not end on any of these."""
    assert not SafeRegex(pattern).search(text * (MAX_TEXT_BYTES // len(text)))


@settings(deadline=None)
@given(
    st.from_regex(r"(?:[ab.]|\[ab\]|a[*+?]|\(a\|b\)[*+?]?){1,6}", fullmatch=True),
    st.text(alphabet="abc", max_size=12),
)
def test_pattern_agrees_with_python_on_common_syntax(pattern: str, text: str) -> None:
    found = re.search(pattern, text) is not None
    assert SafeRegex(pattern).search(text.encode()) == found


def test_pattern_beyond_searched_bytes_not_found() -> None:
    server = SafeRegex("server")
    assert server.search(b"x" * (MAX_TEXT_BYTES - 6) + b"server")
    assert not server.search(b"x" * (MAX_TEXT_BYTES - 5) + b"server")


def test_pattern_on_invalid_utf8_matches_the_rest() -> None:
    assert SafeRegex("caf. ok").search(b"caf\xff ok")
    assert SafeRegex("café").search("café".encode())


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "unclosed group"),
        (r"(a)\1", "backreferences are not supported"),
        ("(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("(a{1000}){1000}", "Compiled regex exceeds size limit of 10485760 bytes"),
    ],
)
def test_pattern_without_linear_bound_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        SafeRegex(pattern)
