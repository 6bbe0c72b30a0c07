# SPDX-License-Identifier: MIT
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.cgroups import (
    allowed_nodes,
    cgroup_selector,
    in_unit,
    parse_cgroup,
    pids_in,
    selected_group,
    unescape_unit,
    unit_selector,
)

V2 = b"0::/system.slice/system-postgresql.slice/postgresql@15-main.service\n"
V1 = (
    b"9:name=systemd:/system.slice/redis.service\n"
    b"4:memory:/jobs/42\n"
    b"3:cpuset:/\n"
    b"0::/system.slice/redis.service\n"
)


def test_cgroup_v2_line_parsed_to_one_path() -> None:
    assert parse_cgroup(V2) == (
        ("system.slice", "system-postgresql.slice", "postgresql@15-main.service"),
    )


def test_cgroup_v1_lines_parsed_to_path_per_hierarchy() -> None:
    assert set(parse_cgroup(V1)) == {("system.slice", "redis.service"), ("jobs", "42"), ()}


def test_cgroup_selector_matches_cgroup_and_descendants() -> None:
    paths = parse_cgroup(V1)
    assert selected_group(paths, cgroup_selector("/jobs"))
    assert selected_group(paths, cgroup_selector("jobs/42/"))
    assert not selected_group(paths, cgroup_selector("/jobs/4"))
    assert not selected_group(paths, cgroup_selector("/jobs/42/7"))
    assert selected_group(parse_cgroup(V2), cgroup_selector("/sys/fs/cgroup/system.slice"))
    assert selected_group(parse_cgroup(V2), cgroup_selector("/system.slice/*postgres*"))
    assert selected_group(parse_cgroup(V2), cgroup_selector("/"))


def test_cgroup_line_of_removed_cgroup_deleted_suffix_stripped() -> None:
    assert parse_cgroup(b"0::/jobs/42 (deleted)\n") == (("jobs", "42"),)


def test_cgroup_line_with_colons_in_path_parsed() -> None:
    assert parse_cgroup(b"4:cpu,cpuacct:/a:b/c\n") == (("a:b", "c"),)


def test_unit_selector_matches_unit_names_and_patterns() -> None:
    assert in_unit(parse_cgroup(V1), unit_selector("redis"))
    assert in_unit(parse_cgroup(V1), unit_selector("redis.service"))
    assert not in_unit(parse_cgroup(V1), unit_selector("redis.scope"))
    assert not in_unit(parse_cgroup(V1), unit_selector("edis"))
    assert in_unit(parse_cgroup(V2), unit_selector("postgresql@15-main"))
    assert in_unit(parse_cgroup(V2), unit_selector("postgresql@*.service"))
    assert in_unit(parse_cgroup(V2), "system.slice")


def test_unit_with_escaped_name_matches_both_spellings() -> None:
    paths = parse_cgroup(rb"0::/user.slice/app-my\x2dgame-7.scope")
    assert in_unit(paths, r"app-my\x2dgame-7.scope")
    assert in_unit(paths, "app-my-game-7.scope")


def test_unit_named_like_control_file_matches() -> None:
    # systemd calls the cgroup of memory.service "_memory.service".
    assert in_unit(parse_cgroup(b"0::/system.slice/_memory.service"), unit_selector("memory"))


@given(st.binary(max_size=300))
def test_cgroup_lines_of_random_bytes_give_paths_or_nothing(data: Any) -> None:
    for parts in parse_cgroup(data):
        assert all(part and "/" not in part for part in parts)
        in_unit((parts,), "x.service")


@given(st.text(max_size=60))
def test_unescape_unit_of_any_text_returns_string(name: Any) -> None:
    assert isinstance(unescape_unit(name), str)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="/\n\0."), min_size=1)))
def test_cgroup_path_round_trips(parts: Any) -> None:
    line = "0::/" + "/".join(parts) + "\n"
    if not line.endswith(" (deleted)\n"):
        assert parse_cgroup(line.encode()) == (tuple(parts),)


def test_allowed_nodes_are_those_of_the_nearest_cpuset(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    assert allowed_nodes("/a/b", tmp_path) == ()
    (tmp_path / "cpuset.mems.effective").write_text("0-1\n")
    (tmp_path / "a/cpuset.mems.effective").write_text("0\n")
    assert allowed_nodes("/a/b", tmp_path) == (0,)
    assert allowed_nodes("/c", tmp_path) == allowed_nodes("/", tmp_path) == (0, 1)


def test_processes_of_a_group_include_those_below(tmp_path: Path) -> None:
    for pid, path in {1: "/", 2: "/a", 3: "/a/b", 4: "/ab"}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/cgroup").write_text(f"0::{path}\n")
    assert list(pids_in("/a", tmp_path)) == [2, 3]
    assert list(pids_in("/", tmp_path)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("selector", "group"),
    [("/a/*", "/a/b"), ("/a", "/a"), ("/a/*/*", "/a/b/c"), ("/a/*/*/*", None), ("/x", None)],
)
def test_selected_group_is_as_deep_as_its_pattern(selector: str, group: str | None) -> None:
    assert selected_group((("y",), ("a", "b", "c")), cgroup_selector(selector)) == group
