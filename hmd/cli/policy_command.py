"""``hmd policy``: list and describe policies and their settings; select another one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from hmd.cli.admin_request import add_request_options, send
from hmd.cli.arguments import policy_about
from hmd.errors import Exit, UsageError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.decide.tunables import About

DESCRIPTION = """\
List the policies, which decide which pages move where, or describe one with its settings.

"policy:" in the section "decide:" of the configuration selects a policy; its settings are below
its name there. No setting is required: thresholds adapt to the machine and the programs.
"hmd policy use" selects another policy for the running daemon, until the daemon ends.
"""

EXAMPLES = """\
examples:
  hmd policy list                           names, with one line each
  hmd policy show histogram                 when to use it; settings, units, limits, effects
  hmd policy show age --yaml                its section of the configuration, with defaults
  hmd policy use age                        make the running daemon use age (root)
  hmd policy use --default                  return to the configured policy
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd policy`` and its commands."""
    parser = subparsers.add_parser(
        "policy",
        help="list the policies and their settings; use another policy",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(metavar="list|show|use", required=True)
    listing = commands.add_parser("list", help="list the policies with one line each")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(func=run_list)
    show = commands.add_parser("show", help="describe one policy: use, settings, units, effects")
    show.add_argument("name", metavar="NAME", help='a name of "hmd policy list"')
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, in base units")
    form.add_argument("--yaml", action="store_true", help="print its section of the configuration")
    show.set_defaults(func=run_show)
    use = commands.add_parser("use", help="make the running daemon use another policy")
    use.add_argument("name", metavar="NAME", nargs="?", help='a name of "hmd policy list"')
    use.add_argument("--default", action="store_true", help="return to the configured policy")
    add_request_options(use)
    use.set_defaults(func=run_use)


def run_list(args: argparse.Namespace) -> int:
    """Print all policies."""
    from hmd.cli.output import print_json, print_table
    from hmd.decide import registry

    abouts = [registry.about(name) for name in registry.names()]
    if args.json:
        print_json([_summary(about) for about in abouts])
    else:
        rows = [
            (f"{about.name}{' *' if about.name == registry.DEFAULT else ''}", about.does)
            for about in abouts
        ]
        print_table(("policy", "what it does"), rows)
        print('* the default; "hmd policy show NAME" describes one')
    return Exit.OK


def run_show(args: argparse.Namespace) -> int:
    """Print one policy."""
    from hmd.cli.output import print_json
    from hmd.config.policy_sections import example

    about = policy_about(args.name)
    if args.json:
        print_json({**_summary(about), "settings": [_knob(knob) for knob in about.knobs]})
    elif args.yaml:
        sys.stdout.write(f"decide:\n  policy: {about.name}\n{example(about.name)}")
    else:
        _print_about(about)
    return Exit.OK


def run_use(args: argparse.Namespace) -> int:
    """Request another policy of the running daemon."""
    if args.default == (args.name is not None):
        raise UsageError("name a policy (hmd policy list), or give --default")
    return send(args, "policy", {"name": args.name})


def _print_about(about: About) -> None:
    from hmd.cli.output import console, print_table
    from hmd.config.policy_sections import limits, searched, written

    out = console()
    out.print(f"{about.name}: {about.does}\nuse: {about.use}", markup=False)
    if not about.knobs:
        print("It has no settings.")
        return
    rows = [
        (k.key, written(k, k.default), limits(k) or "any", k.unit.value, searched(k))
        for k in about.knobs
    ]
    print_table(("setting", "default", "values", "unit", "hmd tune searches"), rows)
    for knob in about.knobs:
        out.print(f"[bold]{knob.key}[/bold]: {knob.effect}")


def _summary(about: About) -> dict[str, Any]:
    from hmd.decide import registry

    return {
        "name": about.name,
        "does": about.does,
        "use": about.use,
        "default": about.name == registry.DEFAULT,
    }


def _knob(knob: Any) -> dict[str, Any]:
    """Return a knob in base units (bytes, seconds, ratios); null is automatic, or no limit.

    ``search`` is the range that ``hmd tune`` searches (seconds in ticks), null for none.
    """
    import math

    return {
        "key": knob.key,
        "unit": knob.unit.value,
        "default": knob.default,
        "automatic": knob.default is None,
        "least": knob.least,
        "most": None if math.isinf(knob.most) else knob.most,
        "effect": knob.effect,
        "search": knob.search,
    }
