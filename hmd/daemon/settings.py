"""The configuration translated into each stage's own settings."""

from __future__ import annotations

from hmd.config import Config
from hmd.decide import registry
from hmd.decide.plan import Policy
from hmd.heat.residency import SweepSettings
from hmd.heat.settings import HeatSettings
from hmd.machine.targets import TargetSpec
from hmd.migrate import MoverSettings
from hmd.observe.observer import Setting
from hmd.sample.choose import SampleSettings
from hmd.sample.period import PeriodSettings

QUERY_S = 0.25e-6
"""What it costs to ask where a page is."""

LEAST_QUERIES, MOST_QUERIES = 1 << 12, 1 << 18


def target_specs(config: Config) -> tuple[TargetSpec, ...]:
    """Return the targets as the machine room selects them."""
    return tuple(
        TargetSpec(
            name=target.name,
            pids=target.pid,
            exe=target.exe,
            cmdline=target.cmdline,
            user=target.user,
            cgroup=target.cgroup,
            unit=target.unit,
            min_rss_bytes=target.min_rss,
            follow_children=target.follow_children,
        )
        for target in config.targets
    )


def sample_settings(config: Config) -> SampleSettings:
    """Return what is to be sampled."""
    sample = config.sample
    return SampleSettings(
        sampler=sample.sampler,
        period=sample.period,
        loads=sample.loads,
        ldlat_cycles=sample.ldlat,
        stores=sample.stores,
    )


def heat_settings(config: Config) -> HeatSettings:
    """Return how samples become heat."""
    return HeatSettings(cooling_samples=config.heat.cooling, store_weight=config.heat.store_weight)


def sweep_settings(config: Config) -> SweepSettings:
    """Return how many pages a tick asks for: what half of the CPU quota pays for, within bounds."""
    pages = int(config.sample.cpu_quota * config.tick / 2 / QUERY_S)
    return SweepSettings(pages_per_step=min(max(pages, LEAST_QUERIES), MOST_QUERIES))


def mover_settings(config: Config) -> MoverSettings:
    """Return how pages move; a tick may spend a tick's worth of the rate, and of time."""
    migrate = config.migrate
    return MoverSettings(
        rate_bytes_per_s=migrate.rate,
        burst_s=config.tick,
        call_target_s=migrate.batch,
        apply_limit_s=config.tick,
        move_shared=migrate.move_all,
        dry_run=migrate.dry_run,
    )


def period_settings(config: Config) -> PeriodSettings:
    """Return what holds the sampling period."""
    return PeriodSettings(quota=config.sample.cpu_quota)


def policy(config: Config) -> Policy:
    """Return the policy that the configuration names."""
    return registry.make(config.decide.policy, config.decide.policy_settings())


def observer_setting(config: Config, file: str) -> Setting:
    """Return what is told of the configuration."""
    return Setting(
        config_file=file,
        dry_run=config.migrate.dry_run,
        tick_s=config.tick,
        policy=config.decide.policy,
        targets=tuple(target.name for target in config.targets),
    )
