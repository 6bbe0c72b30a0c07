"""``hmd tune``: search the settings of a policy that make recorded programs fastest."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from hmd.cli.work_options import add_ray, open_executor
from hmd.errors import Exit, UsageError
from hmd.finished_file import check_writable, is_written_directly, write_finished

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.decide.tunables import About
    from hmd.simulate.search_space import Range
    from hmd.simulate.simulation_cases import SimulationCase
    from hmd.simulate.tuning import Tuned, TuningTrial

DESCRIPTION = """\
Search the settings of a policy that make recorded programs fastest, by simulation.

TRACEs are recorded misses of programs ("hmd simulate --record"). Each trial runs all of them at all
sizes of --fast with the daemon's own code. The best settings are those with the highest geometric
mean of speed relative to first touch, if no program falls below 0.97 of first touch. Trials that
cannot become the best end early.

The table at the end compares default and tuned settings with first touch and a static oracle, also
with samples that the search did not use and on the programs of --holdout. Gains that vanish there
are chance. The same command with the same --seed gives the same result.

Ctrl-C ends the search, and the best settings so far are printed and written. With --journal, the
same command continues an interrupted search.
"""

EXAMPLES = """\
examples:
  hmd tune dict.misses                                    the default policy, a quarter fast
  hmd tune cg.misses drift.misses --fast 33% --fast 11% --holdout sat.misses -o tuned.yaml
  hmd config check tuned.yaml && hmd run --config tuned.yaml --dry-run
  hmd tune dict.misses --policy histogram --knob hysteresis=1:3 --knob confidence
  hmd tune dict.misses --policy age --set active=auto --knob idle=20ms:2s --trials 200
  hmd tune dict.misses --journal dict.journal --json > tuned.json
  hmd tune cg.misses drift.misses --ray head:6379         on a Ray cluster (extra fleet)

"hmd policy show NAME" describes each setting and the range in which it is searched. Needs the
extra tune.
"""

_TRIALS = 60


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd tune``."""
    parser = subparsers.add_parser(
        "tune",
        help="search a policy's best settings on recorded programs",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        usage="%(prog)s TRACE ... [options]",
    )
    parser.add_argument("trace", nargs="+", type=Path, metavar="TRACE", help="recorded misses")
    _add_search(parser.add_argument_group("the search"))
    machine = parser.add_argument_group("the machine")
    add_preset(machine)
    machine.add_argument(
        "--fast",
        action="append",
        default=[],
        metavar="SIZE|SHARE",
        help="fast memory of the machine: a size, as in 64MiB, or a share of each program's pages;"
        " may be repeated (25%%)",
    )
    daemon = parser.add_argument_group("the daemon, in modelled time")
    add_set(daemon)
    add_daemon(daemon)
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the best settings as YAML whenever they improve",
    )
    output.add_argument("--json", action="store_true", help="print JSON, with all trials")
    parser.set_defaults(func=run)


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--policy", metavar="NAME", help="policy to tune (the default policy)")
    group.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="KEY[=LOW:HIGH]",
        help="setting to search, from LOW to HIGH; may be repeated (all settings, each in its "
        "documented range)",
    )
    group.add_argument(
        "--trials", type=int, default=_TRIALS, metavar="N", help=f"settings to try ({_TRIALS})"
    )
    group.add_argument(
        "--holdout",
        action="append",
        default=[],
        type=Path,
        metavar="TRACE",
        help="program to evaluate the result on, not used in the search; may be repeated",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="random seed of the search and the sampling (1)",
    )
    group.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="simulations at a time, each with 12 bytes of memory per miss (1)",
    )
    add_ray(group)
    group.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="keep results of trials in FILE, and continue from them",
    )


def run(args: argparse.Namespace) -> int:
    """Search, print, write."""
    from hmd.cli.main import INTERRUPTED
    from hmd.cli.tables.tune_tables import print_result, result_json
    from hmd.decide import registry

    if args.trials < 1 or args.workers < 1:
        raise UsageError("--trials and --workers must be at least 1")
    about = policy_about(args.policy or registry.DEFAULT)
    given = given_settings(args.set, [about.name])
    ranges = _ranges(about, args, given)
    if args.output is not None:
        check_writable(args.output)
    tuned = _tune(args, about, ranges, given)
    text = _config(args, about, tuned.best, given)
    if args.json:
        from hmd.cli.output import print_json

        print_json(result_json(tuned, args) | {"policy": about.name, "config": text})
    else:
        print_result(tuned)
    if args.output is not None:
        write_finished(args.output, text)
        if not args.json:
            print(f"{args.output}: written; hmd config check {args.output}")
    elif not args.json:
        print(text, end="")
    return Exit.OK if tuned.finished else INTERRUPTED


def _tune(
    args: argparse.Namespace, about: About, ranges: Sequence[Range], given: dict[str, str]
) -> Tuned:
    """Search, with progress on standard error."""
    from hmd.emulate.preset import load
    from hmd.simulate.journal import Journal
    from hmd.simulate.simulation_cases import CaseRuntimes
    from hmd.simulate.tuning import TuningProgress, tune

    preset, settings = load(args.preset), simulation_settings(args)
    kept = policy_values(about.knobs, given)
    with open_executor(args.ray, args.workers) as executor, ProgressLine() as progress:
        cases, held_out = _cases(args)
        stage = "before the search"

        def begins(number: int, best: TuningTrial) -> None:
            nonlocal stage
            by = f"trial {best.number}" if best.number else "the defaults"
            stage = f"trial {number} of {args.trials}, best {best.gain:.3f} x first touch by {by}"

        def ends(best: TuningTrial) -> None:
            nonlocal stage
            stage = f"best {best.gain:.3f} x first touch; fresh samples, programs held out"

        def better(best: TuningTrial) -> None:
            progress.note(
                f"trial {best.number}: {best.gain:.3f} x first touch, at worst {best.worst:.3f}"
                f" ({', '.join(_as_setting(each, best) for each in ranges)})"
            )
            if args.output is not None and not is_written_directly(args.output):
                write_finished(args.output, _config(args, about, best, given))

        with CaseRuntimes(
            about.name,
            preset,
            settings,
            executor=executor,
            journal=Journal(args.journal),
            say=lambda what: progress.say(f"{stage}: {what}"),
        ) as runs:
            return tune(
                runs,
                cases,
                held_out,
                kept,
                ranges,
                trials=args.trials,
                seed=args.seed,
                fresh_seed=args.seed + 1,
                watch=TuningProgress(begins, better, ends),
            )


def _as_setting(one: Range, trial: TuningTrial) -> str:
    """Return a knob and its value in a trial, as in the configuration."""
    from hmd.config.policy_sections import written

    return f"{one.knob.key} {written(one.knob, trial.values[one.knob.name])}"


def _ranges(about: About, args: argparse.Namespace, given: dict[str, str]) -> tuple[Range, ...]:
    """Return the ranges to search: those of --knob, or of all knobs that are not set."""
    from hmd.simulate.search_space import chosen, documented

    tick_s = simulation_settings(args).tick_s
    if args.knob:
        ranges = chosen(about, args.knob, tick_s)
        for each in ranges:
            if each.knob.key in given:
                raise UsageError(f"{each.knob.key} is both set and searched: --set or --knob")
    else:
        ranges = tuple(each for each in documented(about, tick_s) if each.knob.key not in given)
    if not ranges:
        raise UsageError(f"policy {about.name} has nothing to search: name knobs with --knob")
    return ranges


def _cases(args: argparse.Namespace) -> tuple[list[SimulationCase], list[SimulationCase]]:
    """Return the cases (program and size) to search, and those held out."""
    from hmd.simulate.simulation_cases import SimulationCase, read_program

    paths = [*args.trace, *args.holdout]
    if twice := [str(path) for path, count in Counter(paths).items() if count > 1]:
        raise UsageError(f"{twice[0]} is named twice: search it or hold it out, once")
    stems = Counter(path.stem for path in paths)
    found = []
    for path in paths:
        stream = read_program(path)
        name = path.stem if stems[path.stem] == 1 else str(path)
        for fast in dict.fromkeys(args.fast or ["25%"]):
            found.append(SimulationCase(name, fast, fast_pages(fast, stream.user_pages), stream))
    searched = len(args.trace) * (len(found) // len(paths))
    return found[:searched], found[searched:]


def _config(
    args: argparse.Namespace, about: About, best: TuningTrial, given: dict[str, str]
) -> str:
    """Return the settings as YAML, with their origin as comments."""
    from hmd.config.policy_sections import fragment
    from hmd.decide.tunables import Unit

    implied = {"headroom", "headroom_min"} - set(given)
    knobs = [k for k in about.knobs if k.name in best.values and k.key not in implied]
    traces = ", ".join(path.name for path in args.trace)
    fast = ", ".join(args.fast or ["25%"])
    lines = [
        f"# hmd tune: {traces}; {fast} of {args.preset} fast; trial {best.number} of"
        f" {args.trials}, seed {args.seed}",
        f"# {best.gain:.3f} times as fast as first touch (geometric mean), at worst"
        f" {best.worst:.3f}",
    ]
    if any(k.unit is Unit.SECONDS and best.values[k.name] is not None for k in knobs):
        lines.append(
            f"# Durations are for ticks of {args.tick:g} ms: take longer ones for a longer tick."
        )
    values = {knob.name: best.values[knob.name] for knob in knobs}
    return "\n".join([*lines, fragment(about.name, values)])
