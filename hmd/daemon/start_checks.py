"""Comparison of a valid configuration with this machine, for ``hmd config check`` and the daemon.

A configuration may be right and still not fit the machine it is checked on: a user of a directory
service that is not reachable yet, memory that is not online yet, a sampler that the kernel lacks.
``machine_warnings`` lists what the daemon starts with and logs; ``start_failures`` lists what
would make ``hmd run`` exit. Costs a few reads, and opening a sampler where one is named.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hmd.config import Config
from hmd.decide import registry
from hmd.decide.tunables import Unit
from hmd.errors import ConfigError
from hmd.machine.nodes.tiers import override_problem
from hmd.machine.nodes.topology import Topology
from hmd.machine.process_id import PROC
from hmd.machine.targets import user_id

_REGEX_SIGNS = re.compile(r"\^|\$|\\|\.\*|\.\+|\|")
"""What a regular expression has and a shell pattern for a path hardly ever."""


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """One line about a setting; ``path`` is its key path, as in ("targets", 0, "user")."""

    path: tuple[str | int, ...]
    text: str


def machine_warnings(config: Config, topology: Topology) -> list[ConfigWarning]:
    """Return what the daemon works around: unknown users, tiers that contradict the nodes."""
    return [*_tiers(config, topology), *_targets(config)]


def start_failures(
    config: Config, proc: Path = PROC, sysfs: Path = Path("/sys")
) -> list[ConfigWarning]:
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
        if target.exe is not None and _REGEX_SIGNS.search(target.exe):
            yield ConfigWarning(
                ("targets", index, "exe"),
                f"{target.exe!r} looks like a regular expression; exe is a shell pattern, as in"
                " redis-* or /opt/redis/*",
            )


def _sampler(config: Config, proc: Path, sysfs: Path) -> ConfigWarning | None:
    name = config.sample.sampler
    if name == "auto":
        return None  # page faults work everywhere
    from hmd.daemon.stage_settings import sample_settings
    from hmd.sample.auto_select import availability

    found = availability(name, sample_settings(config), proc, sysfs)
    return None if found.works else ConfigWarning(("sample", "sampler"), found.detail)


def _weights(config: Config) -> ConfigWarning | None:
    """Return why the configured policy cannot be made: settings that name an unusable file."""
    section = config.decide.policy
    files = [knob for knob in registry.about(section).knobs if knob.unit is Unit.FILE]
    settings = config.decide.policy_settings()
    if not any(settings.get(knob.name) for knob in files):
        return None
    from hmd.daemon.stage_settings import policy

    try:
        policy(config)
    except ConfigError as error:
        return ConfigWarning(("decide", section, files[0].key), str(error))
    return None


def _metrics(config: Config) -> ConfigWarning | None:
    if config.observe.metrics == "off":
        return None
    host = config.observe.metrics.rpartition(":")[0].strip("[]")
    try:
        # Any free port: the configured one may be that of the running daemon.
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
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
