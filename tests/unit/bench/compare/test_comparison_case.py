# SPDX-License-Identifier: MIT
"""Comparison cases as text, and the size of their fast memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.compare.comparison_case import RATIOS, SWEPT, THP, ComparisonCase
from bench.compare.policies import LARGE, PROGRAMS, every_case
from bench.compare.systems import DAMON, HMD_DEFAULT, PEERS, cases_of, system_named, systems
from hmd.base.errors import ConfigError


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


def test_systems_run_each_case_several_times_but_swept_ones() -> None:
    once = {system.name for system in systems() if system.runs == 1}
    assert once == {system.name for system in systems() if system.swept}
    assert not once & {*PEERS, HMD_DEFAULT}


def test_hmd_other_policies_compared_at_first_ratio_only() -> None:
    cases = cases_of("drift")
    ratios = {s.name: [c.ratio for c in cases if c.system == s.name] for s in systems()}
    assert ratios.pop(HMD_DEFAULT) == list(RATIOS)
    names = [name for name in ratios if name.startswith("hmd:") and not name.endswith((SWEPT, THP))]
    others = [ratios[name] for name in names]
    assert others and all(found == [RATIOS[0]] for found in others)


def test_swept_systems_differ_in_the_start_of_the_fast_node_only() -> None:
    swept = [system for system in systems() if system.swept]
    assert {system.name for system in swept} >= {"first-touch@swept", f"{HMD_DEFAULT}@swept"}
    for system in swept:
        full = system_named(system.name.removesuffix(SWEPT))
        assert not full.swept
        assert replace(full, name=system.name, swept=True) == system


def test_system_unknown_name_error_lists_systems() -> None:
    with pytest.raises(ConfigError, match=f"no system 'hmd:x'.*{DAMON.name}"):
        system_named("hmd:x")


def test_huge_pages_are_added_to_what_a_system_sets() -> None:
    kernel, huge = system_named("kernel-tiering"), system_named("kernel-tiering@thp")
    assert huge.name == "kernel-tiering@thp"
    added = [path for path in huge.knobs if path not in kernel.knobs]
    assert added == [
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/proc/sys/vm/min_free_kbytes",
    ]
    assert {**huge.knobs, **kernel.knobs} == dict(huge.knobs)
    assert (huge.start, huge.ratios, huge.runs) == (kernel.start, RATIOS[:1], kernel.runs)
    assert system_named("hmd:benefit@swept@thp").swept
    with pytest.raises(ConfigError, match="no system 'mine'"):
        system_named("mine@thp")


def test_huge_pages_compared_under_peers_and_the_default_policy() -> None:
    huge = {case.system for case in every_case() if case.system.endswith(THP)}
    assert huge == {f"{name}{THP}" for name in (*PEERS, HMD_DEFAULT) if "defaults" not in name}


def test_programs_for_huge_pages_run_with_both_sizes_and_are_in_no_mean() -> None:
    cases = [case for case in every_case() if case.program in LARGE]
    assert {case.system for case in cases if not case.system.endswith(THP)} == {
        case.system.removesuffix(THP) for case in cases if case.system.endswith(THP)
    }
    assert not {*LARGE} & {*PROGRAMS}
