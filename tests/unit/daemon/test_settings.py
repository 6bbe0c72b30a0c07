"""What the configuration says reaches the stages, in their units."""

from typing import get_args

import pytest

from hmd.config import Config, loads
from hmd.config.schema import SampleSection
from hmd.daemon import settings
from hmd.decide import registry
from hmd.decide.histogram import Histogram, Settings
from hmd.heat.settings import HeatSettings
from hmd.machine.targets import TargetSpec
from hmd.migrate import MoverSettings
from hmd.sample.choose import SampleSettings


def test_defaults_are_the_stages_own() -> None:
    config = Config()
    policy = settings.policy(config)
    assert isinstance(policy, Histogram)
    assert policy.settings == Settings()
    assert settings.heat_settings(config) == HeatSettings()
    assert settings.sample_settings(config) == SampleSettings()
    mover, own = settings.mover_settings(config), MoverSettings()
    assert mover.rate_bytes_per_s == own.rate_bytes_per_s
    assert mover.call_target_s == pytest.approx(own.call_target_s)
    assert mover.move_shared == own.move_shared


def test_every_policy_can_be_named() -> None:
    for name in registry.names():
        assert settings.policy(loads(f"decide: {{policy: {name}}}")).name == name


def test_every_sampler_can_be_named() -> None:
    names = get_args(SampleSection.model_fields["sampler"].annotation)
    assert set(names) == {"auto", "pmu", "emulated", "faults"}


def test_a_target_arrives_whole() -> None:
    config = loads(
        "targets: [{name: t, pid: [1, 2], exe: e, cmdline: c, user: 7, cgroup: /g, unit: u.service,"
        " min_rss: 1MiB, follow_children: false}]"
    )
    assert settings.target_specs(config) == (
        TargetSpec("t", (1, 2), "e", "c", "7", "/g", "u.service", 1 << 20, False),
    )


def test_a_tick_may_spend_its_rate_and_its_time_on_moves() -> None:
    config = loads("tick: 1min\nmigrate: {rate: 1MiB/s}")
    mover = settings.mover_settings(config)
    assert (mover.apply_limit_s, mover.burst_s) == (60, 60)


@pytest.mark.parametrize(("text", "pages"), [("tick: 10ms", 1 << 12), ("tick: 1h", 1 << 18)])
def test_sweeps_are_bounded(text: str, pages: int) -> None:
    assert settings.sweep_settings(loads(text)).pages_per_step == pages
