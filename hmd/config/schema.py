# SPDX-License-Identifier: MIT
"""Every setting of hmd: name, type, default, limits and effect.

Attribute names are the keys of the file. After loading, sizes are bytes, durations seconds, and
shares fractions of 1. Settings of policies are documented with the policies
(:mod:`hmd.policy.settings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from hmd.base.config_section import ConfigSection
from hmd.base.paths import SOCKET
from hmd.base.quantities import Amount, Duration, Hours, Rate, Share, Size, SizeOrShare
from hmd.config.decide import DecideSection, IdleTime
from hmd.linux.targets import SafeRegex
from hmd.sample.sampler import SamplerChoice, describe_samplers

DEFAULT_METRICS = "127.0.0.1:9742"


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, int | str) and not isinstance(value, bool) else value


MAX_SOCKET_BYTES: Final = 107
"""Length of a socket's path: sun_path ends with a zero byte."""


def _user(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _pattern(value: object) -> object:
    if isinstance(value, str):
        try:
            SafeRegex(value)
        except ValueError as error:
            raise ValueError(f"not a regular expression: {error}") from None
    return value


def _absolute(value: object) -> object:
    if isinstance(value, str) and not value.startswith("/"):
        raise ValueError("write an absolute path")
    if isinstance(value, str) and Path(value).name in ("", ".."):
        raise ValueError("write the path of a file")
    if isinstance(value, str) and len(value.encode()) > MAX_SOCKET_BYTES:
        raise ValueError(f"the path of a socket has at most {MAX_SOCKET_BYTES} bytes (unix(7))")
    return Path(value) if isinstance(value, str) else value


def _address(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"write ADDRESS:PORT, as in {DEFAULT_METRICS}, or off")
    if value == "off" or not isinstance(value, str):
        return value
    host, colon, port = value.rpartition(":")
    number = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    if not (colon and host and number):
        raise ValueError(f"write ADDRESS:PORT, as in {DEFAULT_METRICS}, or off")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("write an address, or a name with parts of 1 to 63 characters") from None
    return value


Pid = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[
    tuple[Text, ...], BeforeValidator(_one_or_many, json_schema_input_type=Text | tuple[Text, ...])
]
Pattern = Annotated[str, BeforeValidator(_pattern), Field(min_length=1)]
AbsolutePath = Annotated[Path, BeforeValidator(_absolute), PlainSerializer(str, return_type=str)]
User = Annotated[str | None, BeforeValidator(_user, json_schema_input_type=str | int | None)]
UserName = Annotated[
    str, BeforeValidator(_user, json_schema_input_type=str | int), Field(min_length=1)
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class _Section(ConfigSection):
    """A section whose settings are described by the texts below them."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _tiers(value: object) -> object:
    if isinstance(value, list | tuple) and any(isinstance(tier, int) for tier in value):
        raise ValueError("write a list of tiers, each a list of nodes, as in [[0], [1]]")
    return value


class MachineSection(_Section):
    """Corrections of what the kernel reports about the machine."""

    tiers: Annotated[
        tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None,
        BeforeValidator(_tiers, json_schema_input_type=list[list[int]] | None),
    ] = None
    """Node ids of each memory tier, fastest first, as in [[0], [1]]. Unset: as the kernel ranks
    them (memory tiers, HMAT, distances)."""


class TargetSection(_Section):
    """Processes whose pages hmd may move: those that match every selector of the target."""

    name: Name
    """Name of the target, in metrics and tables."""

    pid: Annotated[
        tuple[Pid, ...], BeforeValidator(_one_or_many, json_schema_input_type=Pid | tuple[Pid, ...])
    ] = ()
    """One process id, or a list."""

    exe: Texts = ()
    """Shell pattern for the name of the program, as in redis-server or python3*: that of its
    executable file, or the one by which it was started, as from a link or a script. With a / for
    the whole path of the executable, as in /opt/app/*, or of the link. One or a list, of which one
    must match; so for cgroup and unit."""

    cmdline: Pattern | None = None
    """Regular expression (syntax of RE2, no look-around or backreferences) that is searched for in
    the first 16 KiB of the command line."""

    user: User = None
    """Name or number of the user that runs the process. An unknown name is looked up again every 30
    seconds."""

    cgroup: Texts = ()
    """A cgroup, as in /system.slice, including the groups below it; parts of it may be shell
    patterns, as in /kubepods.slice/*burstable*."""

    unit: Texts = ()
    """A systemd unit, or a shell pattern for several, as in postgresql@*.service; .service may be
    left out. Units of users count only where user is set, too."""

    exclude: Texts = ()
    """Programs that are left out, also as children: shell patterns as for exe."""

    min_rss: Size = 0
    """Ignore a process until its resident memory reaches this size, and again below half of it."""

    follow_children: bool = True
    """Include the children of matching processes."""

    fast_min: SizeOrShare = Amount(size=0)
    """Memory of the fastest tier that is reserved for this target: its sampled pages, up to this
    size, are promoted and stay there, whatever the heat of other targets."""

    fast_max: SizeOrShare = Amount(share=1.0)
    """Most memory of the fastest tier that this target may use. A page that several processes map
    counts for one of them: the process in which hmd finds it first."""

    middle_max: SizeOrShare = Amount(share=1.0)
    """Most memory of each tier between the fastest and the slowest that this target may use. A tick
    may exceed it by what it moves."""

    per_cgroup: bool = False
    """fast_min, fast_max and middle_max hold for each cgroup that a pattern of cgroup matches, by
    itself, as for each pod with cgroup: /kubepods.slice/*/*; not for all of them together."""

    never_slow: bool = False
    """Keep all its pages on the fastest tier: hmd moves none off it (but for drained nodes), and
    those that lie elsewhere to it, sampled or not, before all others. What does not fit there, the
    kernel still allocates elsewhere, unless a cpuset confines it: hmd config check says how."""

    rate: Rate | None = None
    """Most bytes per second of this target that may move, within migrate.rate. Unset: that."""

    active: Annotated[
        tuple[Hours, ...], BeforeValidator(_one_or_many, json_schema_input_type=Hours | list[Hours])
    ] = ()
    """Hours in which its pages move, one or a list, as in Mon-Fri 08:00-18:00 or 22:00-06:00, by
    the machine's clock; at other times it is only observed, but for admin requests. Unset:
    always."""

    priority: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    """Factor by which its accesses count when pages of targets compete."""

    store_weight: Annotated[float, Field(gt=0, le=100)] | None = None
    """Weight of a store of this target, in loads: above 1 if it is bound by writes to memory that
    writes slowly, below 1 if it mostly reads. Unset: as in heat."""

    keep: Annotated[
        tuple[Pattern, ...],
        BeforeValidator(_one_or_many, json_schema_input_type=Pattern | tuple[Pattern, ...]),
    ] = ()
    r"""Mappings whose pages are not moved: one or more regular expressions that are searched for in
    their paths, as in '\[stack\]' or '/dev/shm/'."""

    pageout: IdleTime = None
    """Time after which its pages of the slowest tier that were not sampled are paged out; or never.
    Unset: as in decide."""

    pageout_pressure: Share = 0.01
    """Share of time that tasks of a cgroup may wait for memory (PSI, mean of 10 s); above it no
    pages of the processes in that cgroup are paged out. 100%: no limit."""

    pageout_ahead: Size = 64 << 20
    """Most bytes per tick and process that are read back ahead of use, where pages come back side
    by side. 0: none."""

    dry_run: bool = False
    """Plan and report for this target, but move none of its pages (admin requests are carried
    out)."""

    learn: bool | None = None
    """Keep profiles of its programs, and plan by those of former runs. Unset: as learn of all."""

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if not (self.pid or self.exe or self.cmdline or self.user or self.cgroup or self.unit):
            raise ValueError("selects nothing: set pid, exe, cmdline, user, cgroup or unit")
        return self


class SampleSection(_Section):
    """Source and rate of access samples."""

    sampler: SamplerChoice = Field(
        default="auto",
        description=describe_samplers(),
    )
    period: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Accesses per sample; for damon, milliseconds between two cycles; for idle, the divisor of the
    most pages that a tick scans. Unset: adjusted to cpu_quota and overhead."""

    cpu_quota: Annotated[Share, Field(gt=0)] | None = None
    """Share of one CPU that hmd may use for all its work, including DAMON's kernel thread, but not
    for answers to clients. Where that is not enough, the period increases, plans, sweeps and scans
    become rarer, and ticks longer. Half of it is for samples, whatever the other work takes. Unset:
    0.1% of a CPU while nothing changes and nothing pays, 1% for a minute after that; more while
    moves pay, at most a tenth of the time that they save and 1% of all CPUs."""

    overhead: Annotated[Share, Field(gt=0)] = 0.01
    """Share of any CPU that records of samples may take of the programs on it (pmu, emulated: some
    0.25 µs per record, IBS 4 µs). Where they would take more, the period increases."""

    loads: Literal["auto", "miss", "latency"] = "auto"
    """Loads that a PMU samples: misses of the last-level cache, or those slower than ldlat, which
    are measured but not counted exactly; auto is miss where the core can (Intel)."""

    ldlat: Annotated[int, Field(ge=1, le=65535)] = 30
    """Least latency, in core cycles, of the loads that are sampled with loads: latency (Intel)."""

    stores: bool = True
    """Also sample stores."""

    kernel_mode: bool = True
    """Also sample what the kernel accesses for programs, as it copies in read(2), write(2), send(2)
    and recv(2), where the kernel permits that. Samples of its own memory are dropped, though their
    records cost as much."""


class HeatSection(_Section):
    """Conversion of samples into heat."""

    cooling: Annotated[int, Field(ge=1000)] | None = None
    """Samples of a process after which its heat is halved. Unset: 16 per page of the process."""

    store_weight: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Weight of a store, in loads: above 1 where slow memory writes slowly (Optane)."""

    detail: Annotated[Size, Field(ge=1 << 20, le=1 << 36)] = 12 << 20
    """Memory for pages that are counted one by one, 6 KiB per 2 MiB of them; other memory is
    counted in chunks of 2 MiB. More finds hot pages among cold ones in more memory, for as much
    more CPU time per tick."""


class MigrateSection(_Section):
    """Limits and modes of page migration."""

    rate: Rate = 1024 * 2**20
    """Most bytes per second that may move, for all processes together."""

    tier_rates: tuple[Rate, ...] = ()
    """Most bytes per second that may move into and out of each tier, within rate: a list, fastest
    tier first, as in [1GiB/s, 200MiB/s]. Tiers beyond its end have no limit of their own."""

    batch: Annotated[Duration, Field(gt=0, le=1)] = 0.02
    """Longest time that one move_pages call may take; batch sizes adapt to it."""

    page_cache: Share = 1.0
    """Share of a node's reclaimable page cache (clean, mapped by no process, inactive) that moves
    to the node may replace. 0%: moves use free memory only."""

    cache_headroom: Share = 0.0
    """Share of each faster node to keep free for programs' allocations: where less is free, page
    cache that was not read for cache_age moves to the next slower node (needs DAMON with
    migrate_cold, Linux 6.11). 0%: page cache leaves only for pages that hmd promotes."""

    cache_age: Annotated[Duration, Field(ge=0.1, le=3600)] = 60.0
    """Time without a read after which page cache counts as unused."""

    move_all: bool = False
    """Also move pages that several processes map (needs CAP_SYS_NICE)."""

    move_guests: bool = False
    """Also move pages of virtual machines (KVM) by samples that do not show what their guests
    access: those of pmu, spe and faults. Otherwise their pages stay where they are; damon and idle
    see guests."""

    dry_run: bool = False
    """Sample, plan and report, but move nothing."""


class ObserveSection(_Section):
    """Interfaces that report what hmd does."""

    metrics: Annotated[str, BeforeValidator(_address)] = DEFAULT_METRICS
    """ADDRESS:PORT of the Prometheus metrics, or off. There is no authentication."""

    metrics_names: tuple[Name, ...] = ()
    """Names by which scrapers address the metrics, in addition to addresses, localhost and the host
    name; requests for other names are refused, against DNS rebinding."""

    metrics_file: AbsolutePath | None = None
    """File to write the metrics to every 15 s as well, for the textfile collector of node_exporter,
    which has TLS and passwords; it is removed when hmd stops."""

    socket: AbsolutePath = SOCKET
    """Path of the status socket that hmd status and hmd top connect to."""


class ProfilesSection(_Section):
    """What is known of programs from former runs, where learn is set."""

    directory: AbsolutePath | None = None
    """Folder of the profiles; several machines may share it. Unset: the folder profiles in
    state_dir. At most 256 KiB per program and 64 MiB in all, the least recently used leave."""

    owners: Annotated[
        tuple[UserName, ...],
        BeforeValidator(_one_or_many, json_schema_input_type=UserName | list[UserName]),
    ] = ()
    """Users, one or a list, whose files are trusted, besides root and the daemon's own: hmd of
    other machines, or who imports profiles."""

    save: Annotated[Duration, Field(ge=1, le=86400)] = 600.0
    """Time after which what was learned of a running process is written; it is, too, when the
    process exits and when hmd stops."""


def _empty_list(value: object) -> object:
    if isinstance(value, dict):
        raise ValueError("write a list, each target as in '- {name: db, exe: redis-server}'")
    return () if value is None else value


class Config(_Section):
    """The whole configuration."""

    tick: Annotated[Duration, Field(ge=0.01, le=3600)] = 1.0
    """Time between two decisions."""

    tick_most: Annotated[Duration, Field(ge=0.01, le=3600)] = 10.0
    """Longest tick: ticks lengthen where hmd would otherwise use more than sample.cpu_quota, and
    shorten again. The default has no effect where tick is longer; a shorter one is refused."""

    tick_least: Annotated[Duration, Field(ge=0.01, le=3600)] | None = None
    """Length of ticks after one whose samples show that a hot set has moved, until few pages move.
    No effect while CPU time is owed to sample.cpu_quota. Unset: as tick."""

    rescan: Annotated[Duration, Field(ge=0.1, le=3600)] = 5.0
    """Time between two scans for processes that match the targets."""

    state_dir: AbsolutePath | None = None
    """Folder of what outlives a restart: pause, pins and drains, the history of hmd report (8
    MiB), and profiles of programs. Read at the start. Unset: the one that systemd gives the service
    (/var/lib/hmd); without a service manager nothing is kept."""

    machine: MachineSection = MachineSection()
    targets: Annotated[tuple[TargetSection, ...], BeforeValidator(_empty_list)] = ()
    """Processes whose pages hmd may move. Without targets hmd idles."""

    sample: SampleSection = SampleSection()
    heat: HeatSection = HeatSection()
    decide: DecideSection = DecideSection()
    migrate: MigrateSection = MigrateSection()
    learn: bool = False
    """Keep a profile of each program that targets run, and plan its next runs by it."""

    profiles: ProfilesSection = ProfilesSection()
    observe: ObserveSection = ObserveSection()


def json_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema draft 2020-12) that every valid configuration satisfies."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "hmd.yaml"
    for section in _sections(Config()):
        name = type(section).__name__
        properties = (schema if name == "Config" else schema["$defs"][name])["properties"]
        written = section.model_dump(mode="json")
        for key, entry in properties.items():
            if "description" in entry:
                entry["description"] = " ".join(entry["description"].split())
            if "default" in entry:
                entry["default"] = written.get(key)
            if isinstance(getattr(section, key), ConfigSection) or key == "targets":
                properties[key] = _or_null(entry)
    return schema


def _sections(section: ConfigSection) -> Iterator[ConfigSection]:
    """Yield a section and those in it, at their defaults; a target with what it must have."""
    yield section
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, ConfigSection):
            yield from _sections(value)
        elif key == "targets":
            yield TargetSection(name="any", user="0")


def _or_null(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a property that may be null too; what describes it stays outside."""
    described = ("default", "description", "title")
    inside = {key: value for key, value in entry.items() if key not in described}
    outside = {key: value for key, value in entry.items() if key in described}
    return {"anyOf": [inside, {"type": "null"}]} | outside
