# SPDX-License-Identifier: MIT
"""``hmd policy``: list and describe policies and their settings; select another one."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from hmd.base.errors import UsageError
from hmd.cli.admin_request import REQUEST, lifetime, send
from hmd.cli.arguments import policy_info
from hmd.cli.output import console, print_json, print_table

if TYPE_CHECKING:
    from hmd.policy.settings import PolicyInfo, Setting

DESCRIPTION = """\
List the policies, which decide which pages move where, or describe one with its settings.

"policy:" in the section "decide:" of the configuration selects a policy; its settings are below
its name there. No setting is required: thresholds adapt to the machine and the programs.
"hmd policy use" selects another policy for the running daemon, also over a restart.
"""

EXAMPLES = """\
examples:
  hmd policy list                           names, with one line each
  hmd policy show histogram                 when to use it; settings, units, limits, effects
  hmd policy show age --yaml                its section of the configuration, with defaults
  hmd policy use age                        make the running daemon use age (root)
  hmd policy use --default                  return to the configured policy
"""

SHOW = """\
NAME      a name of "hmd policy list", or a Python file with a policy
| --json  print JSON, in base units
| --yaml  print its section of the configuration
"""

USE = f"""\
[NAME]     a name of "hmd policy list"
--default  return to the configured policy
--until-restart
{REQUEST}"""

ACTIONS = {
    "list": ("list the policies with one line each", "--json  print JSON"),
    "show": ("describe one policy: use, settings, units, effects", SHOW),
    "use": ("make the running daemon use another policy", USE),
}


def run_list(args: argparse.Namespace) -> None:
    """Print all policies."""
    from hmd.policy import registry

    policies = [registry.info(name) for name in registry.names()]
    if args.json:
        print_json({"policies": [_summary(policy) for policy in policies]})
    else:
        rows = [
            (f"{policy.name}{' *' if policy.name == registry.DEFAULT else ''}", policy.summary)
            for policy in policies
        ]
        print_table(("policy", "what it does"), rows)
        print('* the default; "hmd policy show NAME" describes one')


def run_show(args: argparse.Namespace) -> None:
    """Print one policy."""
    from hmd.config.decide import example

    policy = policy_info(args.name)
    if args.json:
        print_json({**_summary(policy), "settings": [_in_base_units(s) for s in policy.settings]})
    elif args.yaml:
        sys.stdout.write(f"decide:\n  policy: {policy.name}\n{example(policy.name)}")
    else:
        _print_policy(policy)


def run_use(args: argparse.Namespace) -> None:
    """Request another policy of the running daemon."""
    if args.default == (args.name is not None):
        raise UsageError("name a policy (hmd policy list), or give --default")
    send(args, "policy", {"name": args.name} | lifetime(args))


def _print_policy(policy: PolicyInfo) -> None:
    out = console()
    out.print(f"{policy.name}: {policy.summary}\nuse: {policy.suits}", markup=False)
    if not policy.settings:
        print("It has no settings.")
        return
    rows = [
        (s.name, s.format(s.default), s.limits or "any", s.unit.name, s.search_range)
        for s in policy.settings
    ]
    print_table(("setting", "default", "values", "unit", "hmd tune searches"), rows)
    for setting in policy.settings:
        out.print(f"[bold]{setting.name}[/bold]: {setting.description}")


def _summary(policy: PolicyInfo) -> dict[str, Any]:
    from hmd.policy import registry

    return {
        "name": policy.name,
        "does": policy.summary,
        "use": policy.suits,
        "default": policy.name == registry.DEFAULT,
    }


def _in_base_units(setting: Setting) -> dict[str, Any]:
    """Return a setting in base units (bytes, seconds, ratios); null is automatic, or no limit.

    ``search`` is the range that ``hmd tune`` searches (seconds in ticks), null for none.
    """
    return {
        "key": setting.name,
        "unit": setting.unit.name,
        "default": setting.default,
        "automatic": setting.default is None,
        "least": setting.minimum,
        "most": None if math.isinf(setting.maximum) else setting.maximum,
        "effect": setting.description,
        "search": setting.search,
    }
