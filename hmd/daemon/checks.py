# SPDX-License-Identifier: MIT
"""Comparison of a valid configuration with this machine, for ``hmd config check`` and the daemon.

A configuration may be right and still not fit the machine it is checked on. ``machine_warnings``
lists what the daemon starts with and logs, ``start_failures`` what would make ``hmd run`` exit, and
``start_warnings`` what limits hmd on this machine.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hmd.base.errors import ConfigError, Severity
from hmd.base.quantities import format_size
from hmd.config import Config
from hmd.config.load import dotted
from hmd.daemon import settings
from hmd.daemon.stages import Stages
from hmd.linux.cgroups import CGROUPS, UNITS, allowed_nodes, group_of, pids_in
from hmd.linux.checks import competing_findings, move_pages_finding, page_size_finding
from hmd.linux.processes import ProcessWatcher
from hmd.linux.procfs import PROC, SYSFS, ProcessId, format_ids
from hmd.linux.targets import explain_empty, user_id
from hmd.linux.topology import Topology, override_problem, tier_warning
from hmd.policy import registry
from hmd.policy.settings import FILE
from hmd.sample.selection import check_availability
from hmd.serve.bounded_http import listen

_REGEX_SIGNS = re.compile(r"\^|\$|\\|\.\*|\.\+|\|")
"""What a regular expression has and a shell pattern for a path hardly ever."""


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """One line about a setting; ``path`` is its key path, as in ("targets", 0, "user")."""

    path: tuple[str | int, ...]
    text: str


def machine_warnings(config: Config, topology: Topology) -> list[ConfigWarning]:
    """Return what the daemon starts with nevertheless: unknown users, tiers, removed keys."""
    sizes = _sizes(config, topology)
    return [*_tiers(config, topology), *_targets(config), *sizes, *_removed(config)]


def target_warnings(
    config: Config, topology: Topology, proc: Path = PROC, cgroups: Path = CGROUPS
) -> Iterator[ConfigWarning]:
    """Yield why targets match no process now, and why one that is never slow may be slow.

    The daemon says the first of each once it has looked.
    """
    if not config.targets:
        yield ConfigWarning(("targets",), "there are none: hmd has nothing to do")
    for index, (name, sizes, reason) in enumerate(matches(config, proc)):
        if reason:
            yield ConfigWarning(("targets", index), f"matches nothing now: {reason}")
        elif next(t for t in config.targets if t.name == name).never_slow:
            for text in _why_slow(sizes, topology, proc, cgroups):
                yield ConfigWarning(("targets", index, "never_slow"), text)


def _why_slow(
    sizes: Mapping[ProcessId, int], topology: Topology, proc: Path, cgroups: Path
) -> Iterator[str]:
    """Yield why memory of processes, with their resident bytes, may lie off the fastest tier.

    hmd writes no cpuset: the service may not, cgroups belong to the service manager (single writer,
    systemd's CGROUP_DELEGATION), and the kernel ends programs that need more than their cpuset has.
    """
    fastest = topology.tiers[0] if topology.tiers else ()
    has = sum(node.total_bytes for node in topology.nodes if node.id in fastest)
    if (total := sum(sizes.values())) > has:
        yield f"its processes have {total >> 20} MiB, and the fastest tier {has >> 20} MiB"
    groups = {group_of(process.pid, proc) for process in sizes} - {""}
    opened = sorted(g for g in groups if not set(allowed_nodes(g, cgroups)) <= set(fastest))
    if not opened:
        return
    pids, ids = {process.pid for process in sizes}, format_ids(fastest)
    others = set(pids_in(opened[0], proc)) - pids
    why = "where the fastest tier is full, the kernel allocates its new pages on slower nodes"
    # Users name cgroups, and this is copied into a shell.
    path = opened[0] if opened[0].isprintable() else ascii(opened[0])
    unit = shlex.quote(path.rpartition("/")[2])
    if others or path == "/":
        yield f"{why}; its cgroup {path} has other programs, too: give it one of its own"
    elif unit.endswith(UNITS) and "/user@" not in path:
        yield f"{why}; systemctl set-property {unit} AllowedMemoryNodes={ids} prevents it"
    else:
        yield f"{why}; {ids} in {cgroups}{path}/cpuset.mems prevents it"


def matches(config: Config, proc: Path = PROC) -> Iterator[tuple[str, dict[ProcessId, int], str]]:
    """Yield each target with its processes now and their resident bytes, or why it has none."""
    specs = settings.target_specs(config)
    watcher = ProcessWatcher(specs, proc)
    found = watcher.scan()
    others: dict[ProcessId, str] = {}
    for spec in specs:
        sizes = {process: watcher.resident_bytes(process) for process in found[spec.name]}
        yield spec.name, sizes, "" if sizes else explain_empty(spec, others, proc)
        others.update(dict.fromkeys(sizes, spec.name))


def start_failures(config: Config, proc: Path = PROC, sysfs: Path = SYSFS) -> list[ConfigWarning]:
    """Return why ``hmd run`` by this user would exit: sampler, weights, metrics, socket folder."""
    found = (_sampler(config, proc, sysfs), _weights(config), _metrics(config), _socket(config))
    return [failure for failure in found if failure is not None]


def _tiers(config: Config, topology: Topology) -> Iterator[ConfigWarning]:
    override = config.machine.tiers
    problem = override_problem(override, [n.id for n in topology.nodes]) if override else None
    if problem:
        text = f"{problem}; hmd leaves out nodes without memory and ranks unnamed ones last"
        yield ConfigWarning(("machine", "tiers"), text.removeprefix("tiers: "))


def _targets(config: Config) -> Iterator[ConfigWarning]:
    for index, target in enumerate(config.targets):
        if target.user is not None and user_id(target.user) is None:
            yield ConfigWarning(
                ("targets", index, "user"),
                f"no user {target.user!r} on this machine; the target matches no process until"
                " it is known (hmd looks it up again every 30 seconds)",
            )
        for pattern in filter(_REGEX_SIGNS.search, target.exe):
            yield ConfigWarning(
                ("targets", index, "exe"),
                f"{pattern!r} looks like a regular expression; exe is a shell pattern, as in"
                " redis-* or /opt/redis/*",
            )


def _sizes(config: Config, topology: Topology) -> Iterator[ConfigWarning]:
    """Warn of what targets want of the fastest tier beyond what it has."""
    fastest = topology.tiers[0] if topology.tiers else ()
    tier_bytes = sum(node.total_bytes for node in topology.nodes if node.id in fastest)
    for index, target in enumerate(config.targets):
        wanted = target.fast_min.size or 0
        if tier_bytes and wanted > tier_bytes:
            yield ConfigWarning(
                ("targets", index, "fast_min"),
                f"{format_size(wanted)} of the fastest tier, which has {tier_bytes >> 20} MiB",
            )


def _removed(config: Config) -> Iterator[ConfigWarning]:
    if "guard" in config.decide.model_fields_set:
        yield ConfigWarning(("decide", "guard"), "no effect; version 0.2 will refuse this key")


def _sampler(config: Config, proc: Path, sysfs: Path) -> ConfigWarning | None:
    name = config.sample.sampler
    if name == "auto":
        return None  # page faults work everywhere
    found = check_availability(name, settings.sample_settings(config), proc, sysfs)
    return None if found.works else ConfigWarning(("sample", "sampler"), found.detail)


def _weights(config: Config) -> ConfigWarning | None:
    """Return why the configured policy cannot be made: settings that name an unusable file."""
    section, chosen = config.decide.policy, config.decide.policy_settings()
    files = [s.name for s in registry.info(section).settings if s.unit.name == FILE.name]
    if not any(getattr(chosen, name) for name in files):
        return None
    try:
        settings.policy(config)
    except ConfigError as error:
        return ConfigWarning(("decide", section, files[0]), str(error))
    return None


def _metrics(config: Config) -> ConfigWarning | None:
    if config.observe.metrics == "off":
        return None
    host = config.observe.metrics.rpartition(":")[0].strip("[]")
    try:
        # Any free port: the configured one may be that of the running daemon.
        listen(host, 0).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        text = f"{host!r} is not an address of this machine: {reason}"
        return ConfigWarning(("observe", "metrics"), text)
    return None


def _socket(config: Config) -> ConfigWarning | None:
    parent = config.observe.socket.parent.parent
    if parent.is_dir():
        return None
    return ConfigWarning(
        ("observe", "socket"), f"there is no folder {parent}; hmd creates only the last one"
    )


def refusal_warnings(refusals: Mapping[ProcessId, int]) -> Iterator[str]:
    """Yield a line per errno with which the kernel refuses to say where pages are."""
    for number in sorted(set(refusals.values())):
        first = min(process.pid for process, code in refusals.items() if code == number)
        yield (
            f"the kernel does not say where pages of targets are ({errno.errorcode[number]}, as of"
            f" pid {first}), and moves none: move_pages(2) needs CAP_SYS_PTRACE, and a seccomp"
            " profile that allows it; see hmd doctor"
        )


def start_warnings(stages: Stages, file: str) -> Iterator[str]:
    """Yield one line per limit; ``file`` is the configuration's name in messages."""
    sampler, config = stages.sampler, stages.config
    if not sampler.capabilities.ranks_heat:
        yield f"{stages.opened.reason}; page faults are a coarse stand-in: hmd doctor"
    names = [target.name for target in config.targets]
    if settings.far_limits(config, names) is not None and not sampler.capabilities.sees_reads:
        why = f"with the sampler {sampler.name} pages in use look idle"
        yield f"decide.pageout has no effect: {why}"
    if settings.learning_targets(config) and settings.profile_store(config)[0] is None:
        yield "learn has no effect: profiles are kept nowhere; set state_dir or profiles.directory"
    for found in machine_warnings(config, stages.topology):
        yield f"{dotted(found.path)}{found.text}"
    warning = tier_warning(stages.topology)
    if warning:
        yield warning
    for probed in (move_pages_finding(), page_size_finding()):
        if probed.level is Severity.FAIL:
            yield f"{probed.name} {probed.state}: {probed.why}; {probed.action}"
    findings = competing_findings(stages.proc, stages.sysfs)
    conflicts = [f"{f.name} ({f.action})" for f in findings if f.level is not Severity.OK]
    if conflicts:
        yield f"also active on this machine: {'; '.join(conflicts)}; see hmd doctor"
    if not config.targets:
        yield f"{file} names no targets: nothing to do until it does"
