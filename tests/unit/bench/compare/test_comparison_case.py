"""Cases as text, and how much fast memory they mean."""

from __future__ import annotations

import pytest

from bench.compare.comparison_case import ComparisonCase
from bench.compare.systems import DAMON, PEERS, cases_of, system_named, systems
from hmd.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    ["drift:1:2:first-touch", "drift:1:16:hmd:benefit", "sat:whole:all-fast"],
)
def test_a_case_is_what_it_says(text: str) -> None:
    assert str(ComparisonCase.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "drift", "drift:1:2", "drift:2:hmd", "drift:1:0:hmd", "a:1:2:"]
)
def test_what_is_no_case_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a case"):
        ComparisonCase.parse(text)


def test_fast_and_slow_memory_are_the_footprint() -> None:
    assert ComparisonCase.parse("drift:1:2:hmd:age").fast_bytes(30 << 20) == 10 << 20
    assert ComparisonCase.parse("drift:1:16:hmd:age").fast_bytes(17 << 20) == 1 << 20
    assert ComparisonCase.parse("drift:whole:all-slow").fast_bytes(17 << 20) is None


def test_every_system_has_cases_and_is_found_by_name() -> None:
    cases = cases_of("drift")
    assert {case.system for case in cases} == {system.name for system in systems()}
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert case.ratio in system_named(case.system).ratios


def test_peers_start_where_hmd_starts() -> None:
    """A memory policy would make kernel tiering and DAMON leave the pages alone."""
    for name in (*PEERS, "hmd:histogram"):
        assert system_named(name).start.mode == "default"
        assert system_named(name).scarce


def test_an_unknown_system_is_told() -> None:
    with pytest.raises(ConfigError, match=f"no system 'hmd:x'.*{DAMON.name}"):
        system_named("hmd:x")
