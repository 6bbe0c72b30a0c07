"""``hmd config``: check a configuration file, show what is in force, print its schema."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.errors import Exit

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers

DESCRIPTION = """\
Check a configuration file, show the effective settings, or print the JSON Schema.

A configuration is a YAML file (usually /etc/hmd/hmd.yaml); the files *.yaml of the folder of
the same name with the suffix .d (/etc/hmd/hmd.d) are laid over it in the order of their names.
"""

EXAMPLES = """\
examples:
  hmd config check /etc/hmd/hmd.yaml        exit 0, or 3 and one line FILE:LINE for each mistake
  hmd config show /etc/hmd/hmd.yaml         every setting, with the defaults filled in
  hmd config schema > hmd.schema.json       for editors that complete and check YAML
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd config`` and its commands."""
    parser = subparsers.add_parser(
        "config", help="check and show the configuration", description=DESCRIPTION, epilog=EXAMPLES
    )
    commands = parser.add_subparsers(metavar="check|show|schema", required=True)
    check = commands.add_parser("check", help="name every mistake, with file and line")
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--json", action="store_true", help="print {ok, errors} as JSON")
    check.set_defaults(func=run_check)
    show = commands.add_parser("show", help="print the effective settings, defaults filled in")
    show.add_argument("file", type=Path, metavar="FILE")
    show.add_argument("--json", action="store_true", help="print JSON instead of YAML")
    show.set_defaults(func=run_show)
    schema = commands.add_parser("schema", help="print the JSON Schema of the configuration")
    schema.set_defaults(func=run_schema)


def run_check(args: argparse.Namespace) -> int:
    """Print ``FILE: ok``, or let the mistakes out as a ``ConfigError``."""
    from hmd.cli.output import print_json
    from hmd.config import load
    from hmd.errors import ConfigError

    try:
        load(args.file)
    except ConfigError as error:
        if not args.json:
            raise
        print_json({"ok": False, "errors": str(error).splitlines()})
        return Exit.CONFIG
    if args.json:
        print_json({"ok": True, "errors": []})
    else:
        print(f"{args.file}: ok")
    return Exit.OK


def run_show(args: argparse.Namespace) -> int:
    """Print every setting of a file, defaults filled in, as YAML that hmd reads back."""
    import yaml

    from hmd.cli.output import print_json
    from hmd.config import load

    settings = load(args.file).model_dump(mode="json")
    if args.json:
        print_json(settings)
    else:
        yaml.safe_dump(settings, sys.stdout, sort_keys=False)
    return Exit.OK


def run_schema(args: argparse.Namespace) -> int:
    """Print the JSON Schema."""
    from hmd.config import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
    return Exit.OK
