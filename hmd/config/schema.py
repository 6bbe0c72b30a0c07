"""Every setting of hmd: name, type, default, limits and one line of meaning.

Attribute names are the keys of the file. Sizes are bytes, durations seconds, shares parts of 1
once loaded. What policies can be told is documented with them (:mod:`hmd.config.policy_sections`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from hmd.config.policy_sections import DecideSection
from hmd.config.quantities import Amount, Duration, Rate, Share, Size, SizeOrShare
from hmd.config.section import ConfigSection

DEFAULT_SOCKET = "/run/hmd/hmd.sock"
DEFAULT_METRICS = "127.0.0.1:9742"


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, int | str) and not isinstance(value, bool) else value


def _user(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _pattern(value: object) -> object:
    if isinstance(value, str):
        try:
            re.compile(value)
        except (re.error, OverflowError) as error:
            raise ValueError(f"not a regular expression: {error}") from None
    return value


def _absolute(value: object) -> object:
    if isinstance(value, str) and not value.startswith("/"):
        raise ValueError("write an absolute path")
    return Path(value) if isinstance(value, str) else value


def _address(value: object) -> object:
    if value == "off" or not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"write ADDRESS:PORT, as in {DEFAULT_METRICS}, or off")
    return value


Pid = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Pattern = Annotated[str, BeforeValidator(_pattern), Field(min_length=1)]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute), PlainSerializer(str, return_type=str)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class MachineSection(ConfigSection):
    """What the machine is, where the kernel does not say it right."""

    tiers: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None = None
    """Node ids of each memory tier, fastest first, as in [[0], [1]]; unset: as the kernel ranks
    them (memory tiers, HMAT, distances)."""


class TargetSection(ConfigSection):
    """Which processes to serve: those that match every selector given here."""

    name: Name
    """Name of the target, in metrics and tables."""
    pid: Annotated[
        tuple[Pid, ...], BeforeValidator(_one_or_many, json_schema_input_type=Pid | tuple[Pid, ...])
    ] = ()
    """One process id, or a list."""
    exe: Text | None = None
    """Shell pattern for the file name of the executable, as in redis-server or python3*; with a /
    for its whole path, as in /opt/app/*."""
    cmdline: Pattern | None = None
    """Regular expression (Python re) that is searched for in the command line."""
    user: Annotated[str | None, BeforeValidator(_user, json_schema_input_type=str | int | None)] = (
        None
    )
    """Name or number of the user that runs the process. A name that is not known yet is looked up
    again every 30 seconds."""
    cgroup: Text | None = None
    """A cgroup, as in /system.slice; processes of the groups below it count."""
    unit: Text | None = None
    """A systemd unit, as in postgresql.service."""
    min_rss: Size = 0
    """Leave a process alone until its resident memory has this size (and again below half)."""
    follow_children: bool = True
    """Serve the children of matching processes too."""
    fast_min: SizeOrShare = Amount(size=0)
    """Of the fastest tier's memory, what is this target's whatever others' heat: as much of its
    memory that is in use at all is brought and stays there."""
    fast_max: SizeOrShare = Amount(share=1.0)
    """Of the fastest tier's memory, the most that this target may have."""
    priority: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    """How many times its accesses count against those of other targets."""
    store_weight: Annotated[float, Field(gt=0, le=100)] | None = None
    """What a store counts for against a load, for this target: above 1 where it is bound by writes
    and slow memory writes badly, below 1 where it is read-mostly. Unset: as in heat."""
    keep: Annotated[
        tuple[Pattern, ...],
        BeforeValidator(_one_or_many, json_schema_input_type=Pattern | tuple[Pattern, ...]),
    ] = ()
    """Mappings whose pages stay where they are: one or more regular expressions, searched for in
    their paths, as in '\\[stack\\]' or '/dev/shm/'."""

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if not (self.pid or self.exe or self.cmdline or self.user or self.cgroup or self.unit):
            raise ValueError("selects nothing: set pid, exe, cmdline, user, cgroup or unit")
        return self


class SampleSection(ConfigSection):
    """Where sampled accesses come from, and how many."""

    sampler: Literal["auto", "pmu", "emulated", "damon", "idle", "faults", "softdirty"] = "auto"
    """auto takes the first that works of pmu (PEBS, IBS), emulated (the emulated machine's PMU),
    damon (regions by the kernel's DAMON), idle (idle page tracking), faults (page faults: coarse,
    works anywhere). softdirty (pages written; never by auto) clears soft-dirty bits, so that
    checkpointing tools such as CRIU miss changes: not where one is in use."""
    period: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Accesses a sample stands for; with damon milliseconds between two looks, with idle and
    softdirty how many times fewer pages than the most a tick looks at. Unset: held by cpu_quota."""
    cpu_quota: Annotated[Share, Field(gt=0)] = 0.01
    """Share of one CPU that hmd may use, the kernel's DAMON thread too; the period follows it."""
    loads: Literal["latency", "miss"] = "latency"
    """Which loads a PMU samples: those slower than ldlat, or those that miss the last cache."""
    ldlat: Annotated[int, Field(ge=1, le=65535)] = 30
    """Core cycles that a load must take to be sampled with loads: latency (Intel)."""
    stores: bool = True
    """Sample stores too."""


class HeatSection(ConfigSection):
    """How samples become heat."""

    cooling: Annotated[int, Field(ge=1000)] | None = None
    """Halve a process's heat after this many of its samples; unset: 16 for each of its pages."""
    store_weight: Annotated[float, Field(gt=0, le=100)] = 1.0
    """What a store counts for against a load; above 1 where slow memory writes badly."""


class MigrateSection(ConfigSection):
    """How pages are moved."""

    rate: Rate = 1024 * 2**20
    """Bytes a second that may move, over all processes."""
    batch: Annotated[Duration, Field(gt=0, le=1)] = 0.02
    """Longest time one call may keep a process's pages busy; batches adapt to it."""
    move_all: bool = False
    """Also move pages that several processes share (needs CAP_SYS_NICE)."""
    dry_run: bool = False
    """Decide, count and report, but move nothing."""


class ObserveSection(ConfigSection):
    """Where hmd tells what it does."""

    metrics: Annotated[str, BeforeValidator(_address)] = DEFAULT_METRICS
    """ADDRESS:PORT of the Prometheus metrics, or off."""
    socket: AbsolutePath = Path(DEFAULT_SOCKET)
    """Path of the status socket that hmd status and hmd top ask."""


def _empty_list(value: object) -> object:
    return () if value is None else value


class Config(ConfigSection):
    """The whole configuration."""

    tick: Annotated[Duration, Field(ge=0.01, le=3600)] = 1.0
    """Time from one decision to the next."""
    rescan: Annotated[Duration, Field(ge=0.1, le=3600)] = 5.0
    """Time between two looks for processes that match the targets."""
    machine: MachineSection = MachineSection()
    targets: Annotated[tuple[TargetSection, ...], BeforeValidator(_empty_list)] = ()
    """Which processes to serve; none: hmd idles."""
    sample: SampleSection = SampleSection()
    heat: HeatSection = HeatSection()
    decide: DecideSection = DecideSection()
    migrate: MigrateSection = MigrateSection()
    observe: ObserveSection = ObserveSection()
