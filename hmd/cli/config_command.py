# SPDX-License-Identifier: MIT
"""``hmd config``: check a configuration, show it and what it matches, or make one."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from hmd.base.errors import ConfigError, Exit, MissingError
from hmd.cli.arguments import whole_number
from hmd.cli.output import format_bytes, print_json, printable

if TYPE_CHECKING:
    from hmd.base.yaml_document import Mapping
    from hmd.config import Config

DESCRIPTION = """\
Check a configuration file, show what its targets match now, make one from what runs here, print the
effective settings, or print the JSON Schema.

A configuration is a YAML file (usually /etc/hmd/hmd.yaml). The files *.yaml in the folder of the
same name with the suffix .d (/etc/hmd/hmd.d) are merged into it in the order of their names.

"check" also warns of what this machine lacks for the configuration, such as a user or a memory
node, and of targets that match nothing now; warnings do not change the exit code, but with
--machine. "generate" names the largest services (systemd units,
else user and executable) and begins with a dry run.
"""

EXAMPLES = """\
examples:
  hmd config check /etc/hmd/hmd.yaml        one line FILE:LINE for each mistake, exit 3 if any
  hmd config check --machine FILE           the same where something does not fit this machine
  hmd config match /etc/hmd/hmd.yaml        processes and memory of each target now
  hmd config generate > hmd.yaml            from the largest services of this machine
  hmd config show /etc/hmd/hmd.yaml         every setting, with the defaults filled in
  hmd config schema > hmd.schema.json       for editors that complete and check YAML
"""


MAX_SHOWN = 8
"""Processes of a target that "match" lists."""


CHECK = """\
FILE
--machine  the file must fit this machine: exit 3 for warnings, too
--json     print {ok, errors, warnings} as JSON
"""
MATCH = "FILE\n--json  print JSON: bytes, and the cgroup whose limits hold (per_cgroup)"
GENERATE = "--targets N = 8  most targets (default 8)"
SHOW = "FILE\n--json  print JSON instead of YAML"

ACTIONS = {
    "check": ("report every mistake, with file and line", CHECK),
    "match": ("show what each target matches now", MATCH),
    "generate": ("print a configuration for this machine", GENERATE),
    "show": ("print the effective settings, defaults filled in", SHOW),
    "schema": ("print the JSON Schema of the configuration", ""),
}
TYPES = {"targets": whole_number(64)}


def run_check(args: argparse.Namespace) -> int:
    """Print ``FILE: ok`` and warnings about this machine; raise mistakes as a ``ConfigError``."""
    from hmd.config.load import read, validate

    try:
        document = read(args.file)
        warnings = _warnings(validate(document), document)
    except ConfigError as error:
        if not args.json:
            raise
        print_json({"ok": False, "errors": str(error).splitlines(), "warnings": []})
        return Exit.CONFIG
    fits = not (args.machine and warnings)
    code = Exit.OK if fits else Exit.CONFIG
    if args.json:
        print_json({"ok": fits, "errors": [], "warnings": warnings})
        return code
    for warning in warnings:
        print(f"hmd: {warning}", file=sys.stderr)
    count = f", {len(warnings)} warning{'s' if len(warnings) > 1 else ''}" if warnings else ""
    print(f"{args.file}: {'ok' if fits else 'does not fit this machine'}{count}")
    return code


def _warnings(config: Config, document: Mapping) -> list[str]:
    """Return what does not fit this machine, each with the place of its setting."""
    from hmd.config.load import located
    from hmd.daemon.checks import machine_warnings, start_failures, target_warnings
    from hmd.linux.topology import read_topology

    try:
        topology = read_topology(tiers=config.machine.tiers, fit_override=True)
    except MissingError as error:
        return [f"warning: {error}"]
    warned = machine_warnings(config, topology)
    explained = {note.path[:2] for note in warned}
    warned += [note for note in target_warnings(config, topology) if note.path not in explained]
    return [
        *(located(document, note.path, note.text, "warning") for note in warned),
        *(
            located(document, note.path, note.text, "warning: hmd run exits here")
            for note in start_failures(config)
        ),
    ]


def run_match(args: argparse.Namespace) -> None:
    """Print the processes of each target and their resident memory, the largest first."""
    from hmd.config import load
    from hmd.daemon.checks import matches
    from hmd.daemon.settings import limit_groups
    from hmd.linux.procfs import read_stat

    found: list[dict[str, Any]] = []
    config = load(args.file)
    for target, sizes, reason in matches(config):
        names = {
            p: stat.name.decode("utf-8", "replace") for p in sizes if (stat := read_stat(p.pid))
        }
        largest = sorted(sizes.items(), key=lambda item: -item[1])
        groups = dict(zip(sizes, limit_groups(config, dict.fromkeys(sizes, target)), strict=True))
        processes = [
            {"pid": p.pid, "name": names.get(p, "?"), "bytes": n, "cgroup": groups[p][1]}
            for p, n in largest
        ]
        found.append({"target": target, "processes": processes, "empty_reason": reason})
    if args.json:
        print_json({"targets": found})
        return
    for row in found:
        members = row["processes"]
        size = format_bytes(sum(each["bytes"] for each in members))
        some = f"{len(members)} process{'es' * (len(members) > 1)}, {size}"
        print(f"{row['target']}: {row['empty_reason'] or some}")
        for each in members[:MAX_SHOWN]:
            name = printable(each["name"])
            of = f"  {printable(each['cgroup'])}" if each["cgroup"] else ""
            print(f"  {each['pid']:>8} {name:<16} {format_bytes(each['bytes'])}{of}")
        if len(members) > MAX_SHOWN:
            print(f"  and {len(members) - MAX_SHOWN} more")


def run_generate(args: argparse.Namespace) -> None:
    """Print a configuration from what runs here."""
    from hmd.config.generate import generate, running_services
    from hmd.linux.topology import read_topology
    from hmd.sample.sampler import SampleSettings
    from hmd.sample.selection import list_availability

    samplers = [found.name for found in list_availability(SampleSettings()) if found.works]
    print(generate(read_topology(), samplers, running_services(), args.targets), end="")


def run_show(args: argparse.Namespace) -> None:
    """Print every setting of a file, defaults filled in, as YAML that hmd reads back."""
    import yaml

    from hmd.config import load

    settings = load(args.file).model_dump(mode="json")
    if args.json:
        print_json({"settings": settings})
    else:
        yaml.safe_dump(settings, sys.stdout, sort_keys=False)


def run_schema(args: argparse.Namespace) -> None:
    """Print the JSON Schema."""
    from hmd.config.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
