# SPDX-License-Identifier: MIT
"""The settings of the stages, converted from the configuration."""

import math
from datetime import datetime
from pathlib import Path
from typing import get_args

import pytest

from hmd.base.errors import ConfigError
from hmd.config import Config, loads
from hmd.config.schema import SampleSection
from hmd.daemon import settings
from hmd.heat.settings import CHUNK_BYTES, HeatSettings
from hmd.linux.procfs import ProcessId
from hmd.linux.targets import TargetSpec
from hmd.linux.topology import Node, Topology
from hmd.migrate import MoverSettings
from hmd.policy import registry
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.fast_limits import NO_LIMIT
from hmd.sample.sampler import SampleSettings
from hmd.tick.cpu_budget import CpuBudget


def test_settings_default_configuration_equals_stage_defaults() -> None:
    config = Config()
    policy = settings.policy(config)
    assert isinstance(policy, Benefit)
    assert policy.settings == BenefitSettings()
    assert settings.heat_settings(config) == HeatSettings()
    assert settings.sample_settings(config) == SampleSettings()
    mover, own = settings.mover_settings(config), MoverSettings()
    assert mover.rate_bytes_per_s == own.rate_bytes_per_s
    assert mover.call_target_s == pytest.approx(own.call_target_s)
    assert mover.move_shared == own.move_shared


def test_policy_setting_accepts_every_registered_policy() -> None:
    for name in registry.names():
        assert settings.policy(loads(f"decide: {{policy: {name}}}")).name == name


def test_sampler_setting_accepts_every_sampler() -> None:
    names = get_args(SampleSection.model_fields["sampler"].annotation)
    assert set(names) == {"auto", "pmu", "spe", "emulated", "damon", "idle", "faults"}


def test_target_specs_all_keys_set_converted() -> None:
    config = loads(
        "targets: [{name: t, pid: [1, 2], exe: e, cmdline: c, user: 7, cgroup: /g, unit:"
        " [u.service, v], min_rss: 1MiB, follow_children: false, exclude: x}]"
    )
    assert settings.target_specs(config) == (
        TargetSpec(
            "t",
            (1, 2),
            ("e",),
            "c",
            "7",
            ("/g",),
            ("u.service", "v"),
            min_rss_bytes=1 << 20,
            follow_children=False,
            exclude=("x",),
        ),
    )


def test_mover_settings_long_tick_burst_and_apply_time_follow_tick() -> None:
    config = loads("tick: 1min\nmigrate: {rate: 1MiB/s}")
    mover = settings.mover_settings(config)
    assert (mover.apply_limit_s, mover.burst_s) == (120, 60)


@pytest.mark.parametrize(("text", "pages"), [("tick: 10ms", 1 << 12), ("tick: 1h", 1 << 18)])
def test_budget_settings_extreme_ticks_pages_of_a_sweep_bounded(text: str, pages: int) -> None:
    limits = CpuBudget(settings.budget_settings(loads(text), Topology(()))).limits()
    assert limits.sweep is not None
    assert limits.sweep.pages == pages


@pytest.mark.parametrize(("gib", "shared_gib"), [(16, 128), (4096, 4096)])
def test_sweep_settings_shared_memory_of_all_nodes_counted_by_page(
    gib: int, shared_gib: int
) -> None:
    nodes = tuple(Node(i, (), gib << 29, (), 0) for i in (0, 1))
    sweep = settings.sweep_settings(loads(""), Topology(nodes))
    assert sweep.shared_units * CHUNK_BYTES == shared_gib << 30


PROCESSES = {ProcessId(1, 1): "a", ProcessId(2, 1): "b", ProcessId(3, 1): "a"}
NAMES = tuple(PROCESSES.values())
GROUPS = [(name, "") for name in NAMES]
NIGHT, NOON = datetime(2026, 1, 7, 3), datetime(2026, 1, 7, 12)


TWO_TIERS = Topology(tuple(Node(i, (), 1 << 30, (), i // 2) for i in (0, 1, 2)))


def test_rates_of_tiers_by_their_nodes_fastest_first() -> None:
    config = loads("migrate: {tier_rates: [1GiB/s, 200MiB/s, 1MiB/s]}")
    rates = {(0, 1): 1 << 30, (2,): 200 << 20}
    assert settings.tier_rates(config, TWO_TIERS) == rates
    assert settings.observer_setting(config, "f", TWO_TIERS).tier_rates == (1 << 30, 200 << 20)


def test_fast_limits_and_weights_not_configured_are_defaults() -> None:
    config = loads("targets: [{name: a, pid: 1}, {name: b, pid: 2}]")
    assert settings.fast_limits(config, GROUPS) is None
    assert settings.never_slow_mask(config, NAMES) is None
    assert settings.move_rates(config) == {}
    assert settings.tier_rates(config, TWO_TIERS) == {}
    assert settings.resting_targets(config, NIGHT) == frozenset()
    priority, stores = settings.weights(config, NAMES)
    assert (priority.tolist(), stores.tolist()) == ([1, 1, 1], [1, 1, 1])
    assert settings.kept_mappings(config, PROCESSES) == {}


def test_fast_limits_configured_grouped_by_target() -> None:
    config = loads(
        "targets: [{name: a, pid: 1, fast_min: 10%}, {name: b, pid: 2, fast_max: 3MiB,"
        " fast_min: 1MiB}]"
    )
    limits = settings.fast_limits(config, GROUPS)
    assert limits is not None
    assert limits.group.tolist() == [0, 1, 0]
    assert limits.least_bytes.tolist() == [0, 1 << 20]
    assert limits.least_share.tolist() == [0.1, 0.0]
    assert limits.most_bytes.tolist() == [NO_LIMIT, 3 << 20]
    assert limits.most_share.tolist() == [1.0, 1.0]


def test_weights_and_kept_mappings_configured_assigned_per_process() -> None:
    config = loads(
        "targets: [{name: a, pid: 1, priority: 2, keep: ['\\[stack\\]', /dev/shm/]},"
        " {name: b, pid: 2, store_weight: 0.5}]\nheat: {store_weight: 3}"
    )
    priority, stores = settings.weights(config, NAMES)
    assert (priority.tolist(), stores.tolist()) == ([2, 1, 2], [3, 0.5, 3])
    kept = settings.kept_mappings(config, PROCESSES)
    assert {process.pid for process in kept} == {1, 3}
    stack, shared = kept[ProcessId(1, 1)]
    assert stack.search(b"[stack]")
    assert shared.search(b"/dev/shm/x")


def test_policy_damaged_weights_configerror_in_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "weights.npz"
    damaged.write_bytes(b"PK damaged")
    text = f"decide: {{policy: learned, learned: {{weights: {damaged}}}}}"
    with pytest.raises(ConfigError, match="not usable") as error:
        settings.policy(loads(text))
    assert "\n" not in str(error.value)


def test_far_limits_without_page_out_of_any_target_are_none() -> None:
    config = loads("targets: [{name: a, pid: 1}, {name: b, pid: 2, pageout: never}]")
    assert settings.far_limits(config, ["a", "b"]) is None


def test_far_limits_of_targets_replace_that_of_decide() -> None:
    config = loads(
        "decide: {pageout: 10min}\n"
        "targets:\n"
        "  - {name: a, pid: 1}\n"
        "  - {name: b, pid: 2, pageout: never}\n"
        "  - {name: c, pid: 3, pageout: 1h, pageout_pressure: 100%, pageout_ahead: 0}\n"
    )
    far = settings.far_limits(config, ["c", "a", "b", "a"])
    assert far is not None
    assert far.idle_s.tolist() == [3600.0, 600.0, math.inf, 600.0]
    assert far.pressure.tolist() == [1.0, 0.01, 0.01, 0.01]
    assert far.ahead_bytes.tolist() == [0, 64 << 20, 64 << 20, 64 << 20]
    assert settings.far_limits(config, []) is not None
    written = config.model_dump(mode="json")
    assert [target["pageout"] for target in written["targets"]] == [None, "never", "1h"]


def test_limits_per_cgroup_are_of_each_matched_cgroup(tmp_path: Path) -> None:
    config = loads(
        "targets:\n"
        "- {name: pods, cgroup: /kubepods/*, per_cgroup: true, fast_max: 4MiB, rate: 1MiB/s}\n"
        "- {name: rest, user: '0', cgroup: /system, fast_max: 50%}\n"
    )
    paths = {1: "/kubepods/a/x", 2: "/kubepods/b", 3: "/kubepods/a", 4: "/", 5: "/system/c"}
    for pid, path in paths.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/cgroup").write_text(f"0::{path}\n")
    names = dict.fromkeys((ProcessId(pid, 1) for pid in (1, 2, 3, 4)), "pods")
    found = settings.limit_groups(config, {**names, ProcessId(5, 1): "rest"}, tmp_path)
    assert found == (
        ("pods", "/kubepods/a"),
        ("pods", "/kubepods/b"),
        ("pods", "/kubepods/a"),
        ("pods", ""),
        ("rest", ""),
    )
    limits = settings.fast_limits(config, found)
    assert limits is not None
    assert limits.group.tolist() == [0, 1, 0, 2, 3]
    assert limits.most_bytes.tolist() == [4 << 20] * 3 + [NO_LIMIT]
    assert limits.most_share.tolist() == [1, 1, 1, 0.5]
    assert limits.rate_bytes is not None
    assert limits.rate_bytes.tolist() == [1 << 20] * 3 + [NO_LIMIT]


def test_cgroups_beyond_the_most_share_one_limit(tmp_path: Path) -> None:
    config = loads("targets: [{name: pods, cgroup: /pods/*, per_cgroup: true, fast_max: 4MiB}]")
    processes = {ProcessId(pid, 1): "pods" for pid in range(1, settings.MAX_GROUPS + 9)}
    for process in processes:
        (tmp_path / str(process.pid)).mkdir()
        (tmp_path / f"{process.pid}/cgroup").write_text(f"0::/pods/{process.pid}\n")
    found = settings.limit_groups(config, processes, tmp_path)
    assert len(set(found)) == settings.MAX_GROUPS + 1
    assert found[-1] == found[-8] == ("pods", "")


def test_never_slow_targets_have_limits_and_are_not_paged_out() -> None:
    config = loads(
        "decide: {pageout: 10min}\n"
        "targets: [{name: a, pid: 1, never_slow: true, pageout: 1h}, {name: b, pid: 2}]"
    )
    mask = settings.never_slow_mask(config, NAMES)
    assert mask is not None
    assert mask.tolist() == [True, False, True]
    assert settings.fast_limits(config, GROUPS) is not None
    far = settings.far_limits(config, NAMES)
    assert far is not None
    assert far.idle_s.tolist() == [math.inf, 600, math.inf]


def test_targets_rest_outside_of_their_hours() -> None:
    config = loads(
        "targets: [{name: a, pid: 1, active: 08:00-18:00}, {name: c, pid: 3, active:"
        " [Sat 08:00-18:00, 22:00-06:00]}, {name: b, pid: 2}]"
    )
    assert settings.resting_targets(config, NOON) == {"a", "c"} - {"a"}
    assert settings.resting_targets(config, NIGHT) == {"a"}


def test_targets_learn_as_all_unless_they_say_otherwise() -> None:
    text = (
        "targets: [{name: a, exe: a}, {name: b, exe: b, learn: true},"
        " {name: c, exe: c, learn: false}]\n"
    )
    assert settings.learning_targets(loads(text)) == {"b"}
    assert settings.learning_targets(loads(f"learn: true\n{text}")) == {"a", "b"}


def test_profiles_are_in_the_state_folder_or_where_configured(tmp_path: Path) -> None:
    learns = f"targets: [{{name: a, exe: a}}]\nlearn: true\nstate_dir: {tmp_path}\n"
    store, *others = settings.profile_store(loads(learns))
    assert store is not None
    assert (store.folder, *others) == (tmp_path / "profiles", 600.0, 0.01)
    own = "profiles: {directory: /nowhere/profiles, owners: [root, 4711], save: 1min}\n"
    own += "sample: {cpu_quota: 50%}\n"
    store, *others = settings.profile_store(loads(learns + own))
    assert store is not None
    assert (store.folder, *others) == (Path("/nowhere/profiles"), 60.0, 0.5)


def test_profiles_are_nowhere_without_learning_or_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    text = "targets: [{name: a, exe: a}]\n"
    assert settings.profile_store(loads(f"{text}state_dir: {tmp_path}\n"))[0] is None
    assert settings.profile_store(loads(f"{text}learn: true\n"))[0] is None
