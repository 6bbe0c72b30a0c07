# SPDX-License-Identifier: MIT
"""The plugin's translation cache compared with a complete table."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PAGE = 4096
PAGES = st.integers(0, 600).map(lambda n: 0x7F00_0000_0000 + n * PAGE)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PAGES, st.integers(0, 1 << 20), st.integers(0, PAGE - 1)),
        st.tuples(st.just("find"), PAGES, st.just(0), st.integers(0, PAGE - 1)),
        st.tuples(st.just("forget"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@given(steps=STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_table_key_added_twice_last_value_found(parts: Any, steps: list[Any]) -> None:
    known = parts.ffi.new("struct translations *")
    parts.lib.translations_forget(known)
    truth: dict[int, int] = {}
    for verb, page, frame, offset in steps:
        if verb == "add":
            parts.lib.translations_add(known, page + offset, frame * PAGE + offset)
            truth[page] = frame * PAGE
            # The last one is always there.
            assert parts.lib.translations_find(known, page + 7) == frame * PAGE + 7
        elif verb == "forget":
            parts.lib.translations_forget(known)
            truth.clear()
        else:
            found = parts.lib.translations_find(known, page + offset)
            assert found in (parts.lib.TRANSLATION_EMPTY, truth.get(page, -1) + offset)


def test_table_empty_finds_no_address(parts: Any) -> None:
    known = parts.ffi.new("struct translations *")
    parts.lib.translations_forget(known)
    for address in (0, PAGE, 0x7FFF_FFFF_F000, (1 << 64) - PAGE - 1):
        assert parts.lib.translations_find(known, address) == parts.lib.TRANSLATION_EMPTY
