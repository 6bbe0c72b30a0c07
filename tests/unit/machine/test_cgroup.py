from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hmd.machine.cgroup import (
    cgroup_selector,
    in_cgroup,
    in_unit,
    parse_cgroup,
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


def test_version_2() -> None:
    assert parse_cgroup(V2) == (
        ("system.slice", "system-postgresql.slice", "postgresql@15-main.service"),
    )


def test_version_1_has_a_path_for_each_hierarchy() -> None:
    assert set(parse_cgroup(V1)) == {("system.slice", "redis.service"), ("jobs", "42"), ()}


def test_a_cgroup_takes_in_those_below_it() -> None:
    paths = parse_cgroup(V1)
    assert in_cgroup(paths, cgroup_selector("/jobs"))
    assert in_cgroup(paths, cgroup_selector("jobs/42/"))
    assert not in_cgroup(paths, cgroup_selector("/jobs/4"))
    assert not in_cgroup(paths, cgroup_selector("/jobs/42/7"))
    assert in_cgroup(parse_cgroup(V2), cgroup_selector("/sys/fs/cgroup/system.slice"))
    assert in_cgroup(parse_cgroup(V2), cgroup_selector("/system.slice/*postgres*"))
    assert in_cgroup(parse_cgroup(V2), cgroup_selector("/"))


def test_removed_cgroup() -> None:
    assert parse_cgroup(b"0::/jobs/42 (deleted)\n") == (("jobs", "42"),)


def test_path_with_colons() -> None:
    assert parse_cgroup(b"4:cpu,cpuacct:/a:b/c\n") == (("a:b", "c"),)


def test_units() -> None:
    assert in_unit(parse_cgroup(V1), unit_selector("redis"))
    assert in_unit(parse_cgroup(V1), unit_selector("redis.service"))
    assert not in_unit(parse_cgroup(V1), unit_selector("redis.scope"))
    assert not in_unit(parse_cgroup(V1), unit_selector("edis"))
    assert in_unit(parse_cgroup(V2), unit_selector("postgresql@15-main"))
    assert in_unit(parse_cgroup(V2), unit_selector("postgresql@*.service"))
    assert in_unit(parse_cgroup(V2), "system.slice")


def test_escaped_unit_is_found_by_both_names() -> None:
    paths = parse_cgroup(rb"0::/user.slice/app-my\x2dgame-7.scope")
    assert in_unit(paths, r"app-my\x2dgame-7.scope")
    assert in_unit(paths, "app-my-game-7.scope")


def test_name_that_looks_like_a_control_file_is_found() -> None:
    # systemd calls the cgroup of memory.service "_memory.service".
    assert in_unit(parse_cgroup(b"0::/system.slice/_memory.service"), unit_selector("memory"))


@given(st.binary(max_size=300))
def test_garbage_gives_paths_or_nothing(data: Any) -> None:
    for parts in parse_cgroup(data):
        assert all(part and "/" not in part for part in parts)
        in_unit((parts,), "x.service")


@given(st.text(max_size=60))
def test_unescape_takes_anything(name: Any) -> None:
    assert isinstance(unescape_unit(name), str)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="/\n\0."), min_size=1)))
def test_paths_come_back(parts: Any) -> None:
    line = "0::/" + "/".join(parts) + "\n"
    if not line.endswith(" (deleted)\n"):
        assert parse_cgroup(line.encode()) == (tuple(parts),)
