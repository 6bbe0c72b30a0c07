# SPDX-License-Identifier: MIT
"""The settings of each stage, from the configuration.

A new setting is a field in :mod:`hmd.config.schema` and, here, its way to the stage that takes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import MissingError, UsageError
from hmd.config import Config
from hmd.heat.settings import CHUNK_BYTES, HeatSettings
from hmd.heat.table import DETAIL_BYTES
from hmd.linux.cgroups import cgroup_mounts, cgroup_selector, parse_cgroup, selected_group
from hmd.linux.damon import CacheWatch
from hmd.linux.procfs import PROC, ProcessId, read_bytes
from hmd.linux.targets import SafeRegex, TargetSpec, user_id
from hmd.linux.topology import Topology
from hmd.metrics.observer import ObservedConfig
from hmd.migrate import APPLY_TICKS, FarLimits, MoverSettings, PageoutSettings
from hmd.migrate.cache_demotion import CacheSettings
from hmd.policy import registry
from hmd.policy.fast_limits import share_limits
from hmd.policy.plan import FastLimits, Policy
from hmd.profiles.store import FOLDER, ProfileStore
from hmd.residency.address_spaces import Patterns
from hmd.residency.sweep import SweepSettings
from hmd.sample.periods import PeriodSettings
from hmd.sample.sampler import SampleSettings
from hmd.tick.cpu_budget import SEARCH_SHARE, BudgetSettings, CpuAllowance

MAX_GROUPS: Final = 1024
"""Targets and cgroups with limits of their own: users make cgroups, and each takes time."""


def state_folder(config: Config, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of what outlives a restart, None for none.

    Raises ``HmdError`` for a configured one that does not exist.
    """
    if config.state_dir is not None:
        if not config.state_dir.is_dir():
            raise MissingError(f"state_dir: there is no folder {config.state_dir}: create it")
        return config.state_dir
    # systemd names the folders of StateDirectory=, separated by colons (systemd.exec(5)).
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(given) if given and Path(given).is_dir() else None


def profile_store(config: Config) -> tuple[ProfileStore | None, float, float]:
    """Return where profiles are, None for nowhere; seconds between saves; a helper's CPU share.

    A folder that was configured is not looked at: its file system may not answer.
    """
    folder = config.profiles.directory
    if not learning_targets(config):
        return None, math.inf, helper_share(config)
    if folder is None and (state := state_folder(config)) is not None:
        folder = state / FOLDER
    found = [user_id(name) for name in config.profiles.owners]
    owners = [uid for uid in found if uid is not None]
    store = None if folder is None else ProfileStore(folder, owners)
    return store, config.profiles.save, helper_share(config)


def learning_targets(config: Config) -> frozenset[str]:
    """Return the targets whose programs are learned."""
    learns = {target.name: target.learn for target in config.targets}
    return frozenset(name for name, own in learns.items() if (config.learn if own is None else own))


def target_specs(config: Config) -> tuple[TargetSpec, ...]:
    """Return the targets as ``hmd.linux.targets`` selects them."""
    return tuple(
        TargetSpec(
            name=target.name,
            pids=target.pid,
            exe=target.exe or None,
            cmdline=target.cmdline,
            user=target.user,
            cgroup=target.cgroup or None,
            unit=target.unit or None,
            exclude=target.exclude,
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


def limit_groups(
    config: Config, processes: Mapping[ProcessId, str], proc: Path = PROC
) -> tuple[tuple[str, str], ...]:
    """Return with whom each process shares limits: its target, and its cgroup if it is by cgroup.

    A child of a process in a cgroup may be in none of the target's: these are one group, with those
    of the cgroups beyond ``MAX_GROUPS``.
    """
    patterns = {
        target.name: [cgroup_selector(path, cgroup_mounts(proc)) for path in target.cgroup]
        for target in config.targets
        if target.per_cgroup
    }

    def cgroup(process: ProcessId, target: str) -> str:
        if target not in patterns:
            return ""
        paths = parse_cgroup(read_bytes(f"{proc}/{process.pid}/cgroup") or b"")
        found = (selected_group(paths, pattern) for pattern in patterns[target])
        return next(filter(None, found), "")

    found = [(name, cgroup(process, name)) for process, name in processes.items()]
    own = set(islice(dict.fromkeys(found), MAX_GROUPS))
    return tuple(group if group in own else (group[0], "") for group in found)


def fast_limits(config: Config, groups: Sequence[tuple[str, str]]) -> FastLimits | None:
    """Return the limits that processes of these groups share, None without any."""
    by_name = {target.name: target for target in config.targets}
    row = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    of_group = [by_name[name] for name, _ in row]
    return share_limits(
        [(each.fast_min, each.fast_max, each.middle_max) for each in of_group],
        [row[group] for group in groups],
        [each.rate for each in of_group],
        always=any(each.never_slow for each in of_group),
    )


def never_slow_mask(config: Config, names: Sequence[str]) -> npt.NDArray[np.bool_] | None:
    """Return which processes of these targets stay on the fastest tier; None if none does."""
    kept = {target.name for target in config.targets if target.never_slow}
    mask = np.array([name in kept for name in names], np.bool_)
    return mask if mask.any() else None


def resting_targets(config: Config, now: datetime) -> frozenset[str]:
    """Return the targets that are outside of their hours at a local time."""
    return frozenset(
        target.name
        for target in config.targets
        if target.active and not any(hours.contains(now) for hours in target.active)
    )


def move_rates(config: Config) -> dict[str, int]:
    """Return the bytes per second that may move of each target that has a rate of its own."""
    return {target.name: target.rate for target in config.targets if target.rate is not None}


def tier_rates(config: Config, topology: Topology) -> dict[tuple[int, ...], int]:
    """Return the bytes per second that may move into and out of tiers, by the tier's nodes."""
    return dict(zip(topology.tiers, config.migrate.tier_rates, strict=False))


def dry_targets(config: Config) -> frozenset[str]:
    """Return the targets of which nothing moves: all in a dry run of the whole."""
    every = config.migrate.dry_run
    return frozenset(target.name for target in config.targets if every or target.dry_run)


def dry_mask(config: Config, names: Sequence[str]) -> npt.NDArray[np.bool_] | None:
    """Return which processes of these targets are in a dry run while others are not, else None."""
    dry = dry_targets(config)
    if config.migrate.dry_run or not dry:
        return None
    return np.array([name in dry for name in names], np.bool_)


def kept_mappings(config: Config, processes: Mapping[ProcessId, str]) -> dict[ProcessId, Patterns]:
    """Return the patterns of mappings to keep, for each process whose target has any."""
    patterns = {
        target.name: tuple(SafeRegex(one) for one in target.keep)
        for target in config.targets
        if target.keep
    }
    return {process: patterns[name] for process, name in processes.items() if name in patterns}


def sample_settings(config: Config) -> SampleSettings:
    """Return what to sample, and how."""
    sample = config.sample
    return SampleSettings(
        sampler=sample.sampler,
        period=sample.period,
        loads=sample.loads,
        ldlat_cycles=sample.ldlat,
        stores=sample.stores,
        kernel_mode=sample.kernel_mode,
    )


def heat_settings(config: Config) -> HeatSettings:
    """Return how samples become heat."""
    heat = config.heat
    return HeatSettings(
        cooling_samples=heat.cooling,
        max_page_slots=heat.detail // DETAIL_BYTES,
    )


def budget_settings(config: Config, topology: Topology) -> BudgetSettings:
    """Return the CPU quota, and the lengths of ticks that keep it."""
    return BudgetSettings(
        config.sample.cpu_quota,
        config.tick,
        config.tick_most,
        config.tick_least,
        cpus=sum(len(node.cpus) for node in topology.nodes),
    )


def helper_share(config: Config) -> float:
    """Return the share of a CPU for kernel threads and drains, each in addition to ticks."""
    return config.sample.cpu_quota or SEARCH_SHARE


def cpu_limit(config: Config, topology: Topology) -> float:
    """Return the most of a CPU that ticks may use: the quota, else 1 % of all CPUs."""
    return config.sample.cpu_quota or CpuAllowance(budget_settings(config, topology).cpus).max_share


def sweep_settings(config: Config, topology: Topology) -> SweepSettings:
    """Return how the sweep goes on; all memory of the machine may be shared."""
    units = sum(node.total_bytes for node in topology.nodes) // CHUNK_BYTES
    return SweepSettings(
        shared_units=max(SweepSettings().shared_units, units), move_shared=config.migrate.move_all
    )


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
    watch = CacheWatch(migrate.cache_age, max(1, migrate.rate // 4), helper_share(config))
    return CacheSettings(migrate.cache_headroom, watch)


def pageout_settings(config: Config) -> PageoutSettings:
    """Return how pages are paged out: in half of a tick at most, waiting for calls for a whole."""
    return PageoutSettings(config.tick / 2, config.migrate.dry_run, wait_s=config.tick)


def far_limits(config: Config, names: Sequence[str]) -> FarLimits | None:
    """Return what may be paged out of processes of these targets, None if nothing is of any."""
    default_s = math.inf if config.decide.pageout is None else config.decide.pageout
    rows = {
        target.name: (
            math.inf if target.never_slow else target.pageout or default_s,
            target.pageout_pressure,
            target.pageout_ahead,
        )
        for target in config.targets
    }
    if all(math.isinf(idle_s) for idle_s, _, _ in rows.values()):
        return None
    idle_s, pressure, ahead = np.array([rows[name] for name in names], np.float64).reshape(-1, 3).T
    return FarLimits(idle_s, pressure, ahead.astype(np.int64))


def period_settings(config: Config) -> PeriodSettings:
    """Return what controls the sampling period."""
    return PeriodSettings(quota=helper_share(config), overhead=config.sample.overhead)


def policy(config: Config) -> Policy:
    """Return the policy that the configuration names."""
    decide = config.decide
    return registry.create(decide.policy, decide.policy_settings())


def changes(before: Config, after: Config) -> list[str]:
    """Return which settings differ, a few words each."""

    def flat(value: object, path: str) -> Iterator[tuple[str, object]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from flat(inner, f"{path}.{key}")
        elif path == ".targets" and isinstance(value, list):
            for target in value:
                yield from flat(target, f"{path}[{target['name']}]")
        else:
            yield path[1:], value

    old, new = (dict(flat(each.model_dump(mode="json"), "")) for each in (before, after))
    return [
        f"{key}: {old.get(key, 'none')} → {new.get(key, 'none')}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]


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


def observer_setting(config: Config, file: str, topology: Topology) -> ObservedConfig:
    """Return what status and metrics show of the configuration."""
    return ObservedConfig(
        config_file=file,
        dry_run=config.migrate.dry_run,
        tick_s=config.tick,
        cpu_quota=cpu_limit(config, topology),
        overhead=config.sample.overhead,
        policy=config.decide.policy,
        targets=tuple(target.name for target in config.targets),
        dry_targets=dry_targets(config),
        tier_rates=tuple(tier_rates(config, topology).values()),
    )
