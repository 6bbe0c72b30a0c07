"""``hmd simulate``: the runtime of a recorded program under policies, in modelled time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmd.cli.arguments import policy_about
from hmd.cli.simulation_options import (
    ProgressLine,
    add_daemon,
    add_preset,
    add_set,
    fast_pages,
    given_settings,
    policy_values,
    simulation_settings,
)
from hmd.errors import Exit, UsageError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.decide.plan import Policy
    from hmd.simulate.simulation import Simulated

DESCRIPTION = """\
Simulate policies for a program whose cache misses were recorded, on a machine with a given size of
fast memory. Prints the program's runtime under each policy, compared with all memory fast, all
memory slow, first touch, interleaving, and a static oracle that knows the whole run.

The daemon's own tick runs in modelled time. The clock is the timing model of the emulated machine,
in which samples take time of the program, migrations take bandwidth, and the program waits for
pages under migration. The same TRACE,
settings and --seed give the same result.
"""

EXAMPLES = """\
examples:
  hmd simulate --record dict.misses -- python3 -c 'd = {n * 2654435761: n for n in range(200000)}'
  hmd simulate dict.misses                                the default policy, a quarter fast
  hmd simulate dict.misses --policy benefit --policy age --fast 10%
  hmd simulate dict.misses --fast 8MiB --preset dram-cxl --ticks
  hmd simulate dict.misses --policy histogram --set hysteresis=1.1 --period 53
  hmd simulate dict.misses --fast-max 50%                 as a target with a limit
  hmd simulate dict.misses --pageout 100                  page out idle pages
  hmd simulate dict.misses --bounds                       what exact knowledge would bring
  hmd simulate dict.misses --fast 25% --json --picture dict.png
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd simulate``."""
    parser = subparsers.add_parser(
        "simulate",
        help="simulate policies on a recorded program",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        usage="%(prog)s TRACE [options]\n       %(prog)s --record TRACE -- COMMAND [ARGUMENT ...]",
    )
    parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="recorded misses")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="TRACE",
        help="record the misses of COMMAND in the emulated machine; it runs twice, in /tmp, and "
        "must exit with 0",
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)
    _add_machine(parser)
    _add_daemon(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--ticks", action="store_true", help="also print the ticks of each policy")
    output.add_argument("--json", action="store_true", help="print JSON, with ticks")
    output.add_argument("--picture", type=Path, metavar="FILE", help="draw the result (extra plot)")
    parser.set_defaults(func=run)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machine")
    add_preset(group)
    group.add_argument(
        "--fast",
        default="25%",
        metavar="SIZE|SHARE",
        help="fast memory of the machine: a size, as in 64MiB, or a share of the program's pages "
        "(25%%)",
    )


def _add_daemon(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the daemon, in modelled time")
    group.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="policy to simulate; may be repeated (the default policy)",
    )
    add_set(group)
    group.add_argument(
        "--guard",
        choices=("auto", "on", "off"),
        default="auto",
        help="make only moves that earlier ones have earned, as decide.guard (auto: for histogram "
        "and learned)",
    )
    group.add_argument(
        "--bounds",
        action="store_true",
        help="also print what policies with exact knowledge reach: clairvoyant (of the next "
        "misses) and exact-past (of the last ones); takes 13 simulations",
    )
    add_daemon(group)
    group.add_argument(
        "--seed", type=int, default=1, metavar="N", help="random seed of the sampling (1)"
    )


def run(args: argparse.Namespace) -> int:
    """Record, or simulate and print."""
    if args.record is not None:
        return _record(args)
    if args.trace is None:
        raise UsageError("name a TRACE, or record one with --record; see hmd simulate --help")
    if args.command:
        raise UsageError(f"one TRACE at a time: {args.command[0]!r} is too many")
    from hmd.cli.plots.plotting import check_picture
    from hmd.emulate.preset import load
    from hmd.emulate.recordings.miss_stream import MissStream
    from hmd.simulate.baselines import baselines
    from hmd.simulate.simulation import simulate
    from hmd.units import PAGE_BYTES

    check_picture(args.picture, "or use --json")
    stream, preset = MissStream.read(args.trace), load(args.preset)
    fast = fast_pages(args.fast, stream.user_pages)
    policies = _policies(args)
    settings = simulation_settings(args)
    with ProgressLine() as progress:
        fixed = baselines(stream, preset, fast, progress.say)
        runs: dict[str, Simulated] = {}
        for policy in policies:
            progress.say(policy.name)
            runs[policy.name] = simulate(stream, preset, fast, policy, settings)
        if args.bounds:
            from hmd.simulate.bounds import bounds

            known = bounds(stream, preset, fast, settings, say=progress.say)
            runs |= {name: bound.run for name, bound in known.items()}
    if args.picture is not None:
        from hmd.cli.plots.simulation_plot import draw

        title = f"{args.trace.name}, {fast * PAGE_BYTES / 2**20:.1f} MiB of {preset.name} fast"
        draw(runs, fixed, args.picture, title)
    if args.json:
        _print_json(args, stream.user_pages, fast, fixed, runs)
    else:
        _print(args, stream.user_pages, fast, fixed, runs)
    return Exit.OK


def _record(args: argparse.Namespace) -> int:
    command = [*([str(args.trace)] if args.trace else []), *args.command]
    if not command:
        raise UsageError("--record TRACE takes a command: hmd simulate --record TRACE -- COMMAND")
    from hmd.cli.output import format_bytes, format_count
    from hmd.finished_file import check_writable
    from hmd.simulate.record_misses import record_misses
    from hmd.units import PAGE_BYTES

    check_writable(args.record)
    with ProgressLine() as progress:
        progress.say(f"recording {command[0]} in the emulated machine")
        stream = record_misses(command)
    stream.write(args.record)
    used = format_bytes(stream.user_pages * PAGE_BYTES)
    print(f"{args.record}: {format_count(len(stream))} misses, {used} of memory")
    return Exit.OK


def _policies(args: argparse.Namespace) -> list[Policy]:
    """Return the policies, each with those settings that it has."""
    from hmd.decide import registry

    names = list(dict.fromkeys(args.policy)) or [registry.DEFAULT]
    given = given_settings(args.set, names)
    guard = None if args.guard == "auto" else args.guard == "on"
    return [
        registry.guarded(name, policy_values(policy_about(name).knobs, given), guard)
        for name in names
    ]


def _print_json(
    args: argparse.Namespace,
    pages: int,
    fast_pages: int,
    fixed: Mapping[str, float],
    runs: Mapping[str, Simulated],
) -> None:
    from dataclasses import asdict

    from hmd.cli.output import print_json
    from hmd.units import PAGE_BYTES

    policies: dict[str, Any] = {
        name: {
            "runtime_s": each.runtime_s,
            "fast_share": each.fast_share,
            "moved_bytes": each.moved_bytes,
            "paged_out_bytes": each.paged_out_bytes,
            "swapped_in_bytes": each.swapped_in_bytes,
            "ticks": [asdict(tick) for tick in each.ticks],
        }
        for name, each in runs.items()
    }
    print_json(
        {
            "trace": str(args.trace),
            "preset": args.preset,
            "bytes": pages * PAGE_BYTES,
            "fast_bytes": fast_pages * PAGE_BYTES,
            "seed": args.seed,
            "baselines_s": dict(fixed),
            "policies": policies,
        }
    )


def _print(
    args: argparse.Namespace,
    pages: int,
    fast_pages: int,
    fixed: Mapping[str, float],
    runs: Mapping[str, Simulated],
) -> None:
    from hmd.cli.output import format_bytes, format_seconds, format_share, print_table
    from hmd.units import PAGE_BYTES

    fast, whole = format_bytes(fast_pages * PAGE_BYTES), format_bytes(pages * PAGE_BYTES)
    print(f"{args.trace}: {whole}, of which {fast} fit on the fast node of {args.preset}")
    first, oracle = fixed["first touch"], fixed["oracle"]

    def compared(seconds: float) -> Sequence[str]:
        return format_seconds(seconds), f"{first / seconds:.3f}", f"{oracle / seconds:.3f}"

    pages_out = args.pageout is not None
    blank = ("",) * (4 if pages_out else 2)
    rows: list[tuple[str, ...]] = [
        (name, *compared(seconds), *blank) for name, seconds in fixed.items()
    ]
    for name, each in runs.items():
        moved = [each.moved_bytes]
        moved += [each.paged_out_bytes, each.swapped_in_bytes] if pages_out else []
        cells = (format_share(each.fast_share), *map(format_bytes, moved))
        rows.append((name, *compared(each.runtime_s), *cells))
    columns = ["runtime", "x first touch", "x oracle", "fast share", "moved"]
    columns += ["paged out", "swapped in"] if pages_out else []
    print_table(["", *columns], rows, right=columns)
    if args.ticks:
        for name, each in runs.items():
            _print_ticks(name, each)


def _print_ticks(name: str, run: Simulated) -> None:
    from hmd.cli.output import format_bytes, format_count, format_seconds, format_share, print_table
    from hmd.units import PAGE_BYTES

    print(f"\n{name}, tick by tick")
    columns = ["until", "misses", "fast share", "samples", "up", "down"]
    rows = [
        (
            format_seconds(tick.end_s),
            format_count(tick.fast_misses + tick.slow_misses),
            format_share(tick.fast_share),
            format_count(tick.samples),
            format_bytes(tick.promoted_pages * PAGE_BYTES),
            format_bytes(tick.demoted_pages * PAGE_BYTES),
        )
        for tick in run.ticks
    ]
    print_table(columns, rows, right=columns)
