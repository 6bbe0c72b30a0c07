# SPDX-License-Identifier: MIT
"""``hmd simulate``: the runtime of a recorded program under policies, in modelled time."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmd.base.atomic_file import check_writable
from hmd.base.errors import UsageError
from hmd.base.units import PAGE_BYTES
from hmd.cli.arguments import policy_info
from hmd.cli.output import (
    format_bytes,
    format_count,
    format_seconds,
    format_share,
    print_json,
    print_records,
    print_table,
)
from hmd.cli.simulation_options import (
    DAEMON_OPTIONS,
    DAEMON_TYPES,
    ProgressLine,
    fast_pages,
    given_settings,
    policy_values,
    simulation_settings,
)

if TYPE_CHECKING:
    from hmd.policy.plan import Policy
    from hmd.simulate.simulation import Simulated

DESCRIPTION = """\
Simulate policies for a program whose cache misses were recorded, on a machine with a given size of
fast memory. Prints the program's runtime under each policy, compared with all memory fast, all
memory slow, first touch, interleaving, and a static oracle that knows the whole run.

The daemon's own tick runs in modelled time. The clock is the timing model of the emulated machine,
in which samples take time of the program, migrations take bandwidth, and the program waits for
pages under migration. The same TRACE,
settings and --seed give the same result.

TRACE may also be a trace of samples ('hmd record', 'hmd trace import'): the program is then made of
them, with the error that a note names.
"""

EXAMPLES = """\
examples:
  hmd simulate --record dict.misses -- python3 -c 'd = {n * 2654435761: n for n in range(200000)}'
  hmd simulate dict.misses                                the default policy, a quarter fast
  hmd simulate dict.misses --policy benefit --policy age --fast 10%
  hmd simulate dict.misses --policy mine.py --policy benefit  a policy of one's own
  hmd simulate dict.misses --fast 8MiB --preset dram-cxl --ticks
  hmd simulate dict.misses --policy histogram --set hysteresis=1.1 --period 53
  hmd simulate dict.misses --fast-max 50%                 as a target with a limit
  hmd simulate dict.misses --pageout 100                  page out idle pages
  hmd simulate dict.misses --fast 25% --json --picture dict.png
  hmd simulate run.hmdt                                   what samples of a run say
"""

OPTIONS = f"""\
[TRACE]             recorded misses, or a trace
--record TRACE      record the misses of COMMAND in the emulated machine; it runs twice
                    and must exit with 0
[COMMAND ...]       (hidden)
the machine:
--preset
--fast SIZE|SHARE = 25%
                    fast memory of the machine: a size, as in 64MiB, or a share of the program's
                    pages (25%)
the daemon, in modelled time:
--policy NAME|FILE.py ...
                    policy to simulate, or a Python file with one; may be repeated (the default
                    policy)
--set
{DAEMON_OPTIONS}--seed N = 1        random seed of the sampling (1)
output:
--ticks             also print the ticks of each policy
--json              print JSON, with ticks
--picture FILE      draw the result (extra plot)
"""

USAGE = "%(prog)s TRACE [options]\n       %(prog)s --record TRACE -- COMMAND [ARGUMENT ...]"
TYPES = {"trace": str, **DAEMON_TYPES}


def run(args: argparse.Namespace) -> None:
    """Record, or simulate and print."""
    if args.record is not None:
        _record(args)
        return
    if args.trace is None:
        raise UsageError("name a TRACE, or record one with --record; see hmd simulate --help")
    if args.command:
        raise UsageError(f"one TRACE at a time: {args.command[0]!r} is too many")
    document = simulated_document(args)
    if args.json:
        print_json(document)
    else:
        _print(args, document)


def simulated_document(args: argparse.Namespace) -> dict[str, Any]:
    """Simulate, and draw if asked; returns what ``--json`` prints: seconds, bytes, shares.

    Raises HmdError where options do not go together, or a file cannot be used.
    """
    from hmd.cli.plots import check_picture
    from hmd.emulate.preset import load
    from hmd.simulate.sampled_program import read_program
    from hmd.simulate.simulation import baselines, simulate

    check_picture(args.picture, "or use --json")
    preset = load(args.preset)
    stream, sampled = read_program(Path(args.trace), preset)
    if sampled:
        print(f"hmd: note: {sampled}", file=sys.stderr)
    fast = fast_pages(args.fast, stream.user_pages)
    policies = _policies(args)
    settings = simulation_settings(args)
    with ProgressLine() as progress:
        fixed = baselines(stream, preset, fast, progress.say)
        runs: dict[str, Simulated] = {}
        for policy in policies:
            progress.say(policy.name)
            runs[policy.name] = simulate(stream, preset, fast, policy, settings)
    if args.picture is not None:
        from hmd.cli.plots import draw_simulation

        title = (
            f"{Path(args.trace).name}, {fast * PAGE_BYTES / 2**20:.1f} MiB of {preset.name} fast"
        )
        draw_simulation(runs, fixed, args.picture, title)
    return {
        "trace": args.trace,
        "preset": args.preset,
        "bytes": stream.user_pages * PAGE_BYTES,
        "fast_bytes": fast * PAGE_BYTES,
        "seed": args.seed,
        "note": sampled,
        "baselines_s": dict(fixed),
        "policies": {
            name: {
                "runtime_s": each.runtime_s,
                "fast_share": each.fast_share,
                "moved_bytes": each.moved_bytes,
                "paged_out_bytes": each.paged_out_bytes,
                "swapped_in_bytes": each.swapped_in_bytes,
                "ticks": [asdict(tick) for tick in each.ticks],
            }
            for name, each in runs.items()
        },
    }


def _record(args: argparse.Namespace) -> None:
    command = [*([args.trace] if args.trace else []), *args.command]
    if not command:
        raise UsageError("--record TRACE takes a command: hmd simulate --record TRACE -- COMMAND")
    from hmd.simulate.cases import record_misses

    check_writable(args.record)
    with ProgressLine() as progress:
        progress.say(f"recording {command[0]} in the emulated machine")
        stream = record_misses(command)
    stream.write(args.record)
    used = format_bytes(stream.user_pages * PAGE_BYTES)
    print(f"{args.record}: {format_count(len(stream))} misses, {used} of memory")


def _policies(args: argparse.Namespace) -> list[Policy]:
    """Return the policies, each with those settings that it has."""
    from hmd.policy import registry

    names = list(dict.fromkeys(args.policy)) or [registry.DEFAULT]
    given = given_settings(args.set, names)
    found = {each.name: each for each in map(policy_info, names)}
    return [registry.create(name, policy_values(each, given)) for name, each in found.items()]


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    fast, whole = format_bytes(document["fast_bytes"]), format_bytes(document["bytes"])
    print(f"{args.trace}: {whole}, of which {fast} fit on the fast node of {args.preset}")
    baselines: dict[str, float] = document["baselines_s"]
    columns = ["runtime", "x first touch", "x oracle", "fast share", "moved"]
    sums = ["moved_bytes"]
    if args.pageout is not None:
        columns += ["paged out", "swapped in"]
        sums += ["paged_out_bytes", "swapped_in_bytes"]

    def cells(name: str, runtime_s: float) -> list[str]:
        compared = (f"{baselines[other] / runtime_s:.3f}" for other in ("first touch", "oracle"))
        return [name, format_seconds(runtime_s), *compared]

    rows = [[*cells(*item), *[""] * (1 + len(sums))] for item in baselines.items()]
    for name, run in document["policies"].items():
        moved = (format_bytes(run[key]) for key in sums)
        rows.append([*cells(name, run["runtime_s"]), format_share(run["fast_share"]), *moved])
    print_table(["", *columns], rows, right=columns)
    for name, run in document["policies"].items() if args.ticks else ():
        print(f"\n{name}, tick by tick")
        print_records(
            run["ticks"],
            {
                "until": lambda tick: format_seconds(tick["end_s"]),
                "misses": lambda tick: format_count(tick["fast_misses"] + tick["slow_misses"]),
                "fast share": lambda tick: format_share(
                    tick["fast_misses"] / max(tick["fast_misses"] + tick["slow_misses"], 1)
                ),
                "samples": lambda tick: format_count(tick["samples"]),
                "up": lambda tick: format_bytes(tick["promoted_pages"] * PAGE_BYTES),
                "down": lambda tick: format_bytes(tick["demoted_pages"] * PAGE_BYTES),
            },
            texts=0,
        )
