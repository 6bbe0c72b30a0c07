"""Comparison cases as text, and the size of their fast memory."""

from __future__ import annotations

import pytest

from bench.compare.comparison_case import RATIOS, ComparisonCase
from bench.compare.systems import DAMON, HMD_DEFAULT, PEERS, cases_of, system_named, systems
from hmd.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    ["drift:1:2:first-touch", "drift:1:16:hmd:benefit", "sat:whole:all-fast"],
)
def test_case_parsed_and_printed_equal(text: str) -> None:
    assert str(ComparisonCase.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "drift", "drift:1:2", "drift:2:hmd", "drift:1:0:hmd", "a:1:2:"]
)
def test_case_invalid_text_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a case"):
        ComparisonCase.parse(text)


def test_case_fast_bytes_from_ratio_and_footprint() -> None:
    assert ComparisonCase.parse("drift:1:2:hmd:age").fast_bytes(30 << 20) == 10 << 20
    assert ComparisonCase.parse("drift:1:16:hmd:age").fast_bytes(17 << 20) == 1 << 20
    assert ComparisonCase.parse("drift:whole:all-slow").fast_bytes(17 << 20) is None


def test_cases_of_program_cover_every_system() -> None:
    cases = cases_of("drift")
    assert {case.system for case in cases} == {system.name for system in systems()}
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert case.ratio in system_named(case.system).ratios


def test_peers_start_as_hmd_without_memory_policy() -> None:
    """A memory policy would make kernel tiering and DAMON leave the pages alone."""
    for name in (*PEERS, "hmd:histogram"):
        assert system_named(name).start.mode == "default"
        assert system_named(name).scarce


def test_systems_that_move_pages_run_each_case_several_times() -> None:
    repeated = {system.name for system in systems() if system.runs > 1}
    moving = {name for name in PEERS if name != "first-touch"}
    assert repeated == moving | {s.name for s in systems() if s.name.startswith("hmd:")}


def test_hmd_other_policies_compared_at_first_ratio_only() -> None:
    cases = cases_of("drift")
    ratios = {s.name: [c.ratio for c in cases if c.system == s.name] for s in systems()}
    assert ratios.pop(HMD_DEFAULT) == list(RATIOS)
    others = [found for name, found in ratios.items() if name.startswith("hmd:")]
    assert others and all(found == [RATIOS[0]] for found in others)


def test_system_unknown_name_error_lists_systems() -> None:
    with pytest.raises(ConfigError, match=f"no system 'hmd:x'.*{DAMON.name}"):
        system_named("hmd:x")
