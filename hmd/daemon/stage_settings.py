"""The settings of each stage, from the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hmd.config import Config
from hmd.decide import registry
from hmd.decide.plan import FastLimits, Policy
from hmd.errors import UsageError
from hmd.heat.geometry import CHUNK_BYTES
from hmd.heat.heat_settings import HeatSettings
from hmd.machine.damon.cache_kdamond import CacheWatch
from hmd.machine.linear_pattern import LinearPattern
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import ProcessId
from hmd.machine.targets import TargetSpec
from hmd.migrate import APPLY_TICKS, MoverSettings, PageoutSettings
from hmd.migrate.cache_demotion import CacheSettings
from hmd.observe.observer import ObservedConfig
from hmd.pipeline.cpu_budget import SHARE_MOST, BudgetSettings
from hmd.pipeline.quota_control import swept_within
from hmd.quantities import Amount
from hmd.residency.residency_sweep import SweepSettings
from hmd.residency.space_outline import Patterns
from hmd.sample.auto_select import SampleSettings
from hmd.sample.period_control import PeriodSettings

DETAIL_BYTES = 6 << 10
"""Memory of a chunk whose pages are counted one by one: 12 bytes for each of 512 pages."""

NO_LIMIT = 1 << 62
"""A limit in bytes that no machine reaches."""

NO_LIMITS = (Amount(size=0), Amount(share=1.0))
"""The least and the most that a target without limits may have."""


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


def weights(
    config: Config, names: Sequence[str]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the weights of processes of these targets: priority, and weight of stores."""
    by_name = {target.name: target for target in config.targets}
    common = config.heat.store_weight
    stores = [by_name[name].store_weight for name in names]
    return (
        np.array([by_name[name].priority for name in names], np.float64),
        np.array([common if own is None else own for own in stores], np.float64),
    )


def fast_limits(config: Config, names: Sequence[str]) -> FastLimits | None:
    """Return the limits that processes of these targets share, None without any."""
    row = {target.name: number for number, target in enumerate(config.targets)}
    amounts = [(target.fast_min, target.fast_max) for target in config.targets]
    return limits_of(amounts, [row[name] for name in names])


def limits_of(amounts: Sequence[tuple[Amount, Amount]], group: Sequence[int]) -> FastLimits | None:
    """Return limits of the fastest tier, None where no group has any.

    ``amounts`` are the least and the most of each group, ``group`` is the group of each process.
    """
    if all(each == NO_LIMITS for each in amounts):
        return None
    least, most = zip(*amounts, strict=True)
    return FastLimits(
        group=np.array(group, np.int32),
        least_bytes=np.array([_or(each.size, 0) for each in least], np.int64),
        least_share=np.array([_or(each.share, 0.0) for each in least]),
        most_bytes=np.array([_or(each.size, NO_LIMIT) for each in most], np.int64),
        most_share=np.array([_or(each.share, 1.0) for each in most]),
    )


def kept_mappings(config: Config, processes: Mapping[ProcessId, str]) -> dict[ProcessId, Patterns]:
    """Return the patterns of mappings to keep, for each process whose target has any."""
    patterns = {
        target.name: tuple(LinearPattern(one) for one in target.keep)
        for target in config.targets
        if target.keep
    }
    return {process: patterns[name] for process, name in processes.items() if name in patterns}


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def sample_settings(config: Config) -> SampleSettings:
    """Return what to sample, and how."""
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
    heat = config.heat
    return HeatSettings(
        cooling_samples=heat.cooling,
        store_weight=heat.store_weight,
        detail_chunks=heat.detail // DETAIL_BYTES,
    )


def budget_settings(config: Config) -> BudgetSettings:
    """Return the CPU quota, and the lengths of ticks that keep it."""
    return BudgetSettings(config.sample.cpu_quota, config.tick, config.tick_most, config.tick_least)


def sweep_settings(config: Config, topology: Topology) -> SweepSettings:
    """Return the time and the pages of the first ticks' sweeps: half of the CPU quota.

    All memory of the machine may be shared.
    """
    units = sum(node.total_bytes for node in topology.nodes) // CHUNK_BYTES
    settings = SweepSettings(
        shared_units=max(SweepSettings().shared_units, units), move_shared=config.migrate.move_all
    )
    return swept_within(settings, SHARE_MOST * config.sample.cpu_quota * config.tick)


def mover_settings(config: Config) -> MoverSettings:
    """Return how pages move: at the rate of one tick, in the time of two."""
    migrate = config.migrate
    return MoverSettings(
        rate_bytes_per_s=migrate.rate,
        burst_s=config.tick,
        call_target_s=migrate.batch,
        apply_limit_s=APPLY_TICKS * config.tick,
        move_shared=migrate.move_all,
        dry_run=migrate.dry_run,
    )


def cache_settings(config: Config) -> CacheSettings | None:
    """Return which page cache to demote for headroom, None for none: at a quarter of the rate."""
    migrate = config.migrate
    if migrate.cache_headroom == 0 or migrate.dry_run:
        return None
    watch = CacheWatch(migrate.cache_age, max(1, migrate.rate // 4), config.sample.cpu_quota)
    return CacheSettings(migrate.cache_headroom, watch)


def pageout_settings(config: Config) -> PageoutSettings:
    """Return how pages are paged out: in half of a tick at most."""
    return PageoutSettings(limit_s=config.tick / 2, dry_run=config.migrate.dry_run)


def period_settings(config: Config) -> PeriodSettings:
    """Return what controls the sampling period."""
    return PeriodSettings(quota=config.sample.cpu_quota, overhead=config.sample.overhead)


def policy(config: Config) -> Policy:
    """Return the policy that the configuration names, guarded if it says so."""
    decide = config.decide
    return registry.guarded(decide.policy, decide.policy_settings(), decide.guard)


def with_policy(config: Config, name: str | None) -> Config:
    """Return the configuration with another policy, at its settings for that one; None: as it is.

    Raises ``UsageError`` for an unknown name.
    """
    if name is None:
        return config
    if name not in registry.names():
        raise UsageError(f"no policy {name[:80]!r}: there are {', '.join(registry.names())}")
    decide = config.decide.model_copy(update={"policy": name})
    return config.model_copy(update={"decide": decide})


def observer_setting(config: Config, file: str) -> ObservedConfig:
    """Return what status and metrics show of the configuration."""
    return ObservedConfig(
        config_file=file,
        dry_run=config.migrate.dry_run,
        tick_s=config.tick,
        cpu_quota=config.sample.cpu_quota,
        overhead=config.sample.overhead,
        policy=config.decide.policy,
        targets=tuple(target.name for target in config.targets),
    )
