# SPDX-License-Identifier: MIT
"""A configuration for this machine: its largest services as targets, with comments.

A service is a systemd unit; programs outside of units are taken by user and executable. The result
is a dry run, and valid: :func:`generate` loads it before it returns it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Final

from hmd.base.quantities import format_mib
from hmd.config.load import loads
from hmd.linux.cgroups import parse_cgroup, units_of
from hmd.linux.procfs import PROC, format_ids, read_bytes, read_stat
from hmd.linux.topology import Topology

MIN_BYTES: Final = 64 << 20
"""Resident memory from which a service is listed; smaller ones gain too little."""
MIN_RSS_BYTES: Final = 16 << 20
"""Resident memory from which a process of it counts, and is followed."""

_OF_USERS = re.compile(r"user@\d+\.service|session-.*\.scope|init\.scope|.*[0-9a-f]{32,}.*\.scope")
"""Units that name a session or a container, not a program: another one after a restart."""


@dataclass(slots=True)
class Service:
    """Processes that one selector selects: ``unit: NAME``, or ``exe`` and ``user``."""

    name: str
    selectors: tuple[str, ...]
    processes: int = 0
    resident_bytes: int = 0


def running_services(proc: Path = PROC) -> list[Service]:
    """Return what runs here, largest resident memory first; memory that is shared counts twice."""
    found: dict[tuple[str, ...], Service] = {}
    for folder in proc.iterdir():
        stat = read_stat(int(folder.name), proc) if folder.name.isdigit() else None
        if stat is None or not stat.has_memory or stat.pid == os.getpid():
            continue
        units = units_of(parse_cgroup(read_bytes(folder / "cgroup") or b""))
        unit = next((u for u in sorted(units) if not _OF_USERS.fullmatch(u)), "")
        if stat.resident_bytes < MIN_RSS_BYTES or unit == "hmd.service":
            continue
        try:
            user, program = folder.stat().st_uid, (folder / "exe").readlink().name
        except OSError:
            continue  # it has exited, or belongs to another user
        name = unit.rpartition(".")[0] or program.removesuffix(" (deleted)")
        # A child that runs another program is a service of its own.
        by_program = (
            f"exe: {json.dumps(escape(name))}",
            f'user: "{user}"',
            "follow_children: false",
        )
        selectors = (f"unit: {json.dumps(unit)}",) if unit else by_program
        service = found.setdefault(selectors, Service(name, selectors))
        service.processes += 1
        service.resident_bytes += stat.resident_bytes
    return sorted(found.values(), key=lambda service: -service.resident_bytes)


def generate(
    topology: Topology, samplers: Iterable[str], services: Iterable[Service], max_targets: int
) -> str:
    """Return a configuration in YAML; ``samplers`` work here, those that see most first."""
    tiers = " | ".join(
        f"node {format_ids(nodes)} ({format_mib(_size(topology, nodes))})"
        for nodes in topology.tiers
    )
    one = "; hmd needs two to move pages" if len(topology.tiers) < 2 else ""
    lines = [
        "# Made by hmd config generate from what ran on this machine: check names and limits, then",
        "# copy it to /etc/hmd/hmd.yaml. hmd config match shows what each target selects now.",
        f"# Memory tiers, fastest first: {tiers}{one}",
        f"# Samplers that work here: {', '.join(samplers)}",
        "sample:",
        "  sampler: auto",
        "migrate:",
        "  dry_run: true  # a week later: hmd report --since 7d; then false, and reload",
        *(list(_targets(services, max_targets)) or ["targets: []  # nothing has 64 MiB or more"]),
    ]
    text = "\n".join(lines) + "\n"
    loads(text, "the generated configuration")
    return text


def _targets(services: Iterable[Service], max_targets: int) -> Iterator[str]:
    names: set[str] = set()
    large = [service for service in services if service.resident_bytes >= MIN_BYTES]
    if large:
        yield "targets:"
    for service in large[:max_targets]:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", service.name).strip("-._")[:50] or "target"
        name = next(n for n in (base, *(f"{base}-{i}" for i in range(2, 99))) if n not in names)
        names.add(name)
        size = format_mib(service.resident_bytes)
        yield f"  # {service.processes} process{'es' * (service.processes > 1)}, {size}"
        yield f"  - name: {name}"
        yield from (f"    {selector}" for selector in service.selectors)
        yield f"    min_rss: {MIN_RSS_BYTES >> 20}MiB"
    for service in large[max_targets:]:
        yield f"  # smaller: {service.name}, {format_mib(service.resident_bytes)}"


def _size(topology: Topology, nodes: Iterable[int]) -> int:
    wanted = set(nodes)
    return sum(node.total_bytes for node in topology.nodes if node.id in wanted)
