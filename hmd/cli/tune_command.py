# SPDX-License-Identifier: MIT
"""``hmd tune``: search the settings of a policy that make recorded programs fastest."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from hmd.base.atomic_file import check_writable, is_written_directly, write_finished
from hmd.base.errors import Exit, UsageError
from hmd.base.units import PAGE_BYTES
from hmd.cli.arguments import open_executor, policy_info
from hmd.cli.main import INTERRUPTED
from hmd.cli.output import format_seconds, print_json, print_records, print_table
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
    from hmd.policy.settings import PolicyInfo
    from hmd.simulate.cases import SimulationCase
    from hmd.simulate.tuning import Range, Tuned, TuningRow, TuningTrial

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

OPTIONS = f"""\
TRACE ...           recorded misses
the search:
--policy NAME|FILE.py
                    policy to tune, or a Python file with one (the default policy)
--knob KEY[=LOW:HIGH] ...
                    setting to search, from LOW to HIGH; may be repeated (all settings, each in its
                    documented range)
--trials N = 60     settings to try (60)
--holdout TRACE ...
                    program to evaluate the result on, not used in the search; may be repeated
--seed N = 1        random seed of the search and the sampling (1)
--workers N = 1     simulations at a time, each with 12 bytes of memory per miss (1)
--ray
--journal FILE      keep results of trials in FILE, and continue from them
the machine:
--preset
--fast SIZE|SHARE ...
                    fast memory of the machine: a size, as in 64MiB, or a share of each program's
                    pages; may be repeated (25%)
the daemon, in modelled time:
--set
{DAEMON_OPTIONS}output:
-o, --output FILE   write the best settings as YAML whenever they improve
--json              print JSON, with all trials
"""

USAGE = "%(prog)s TRACE ... [options]"
TYPES = DAEMON_TYPES


def run(args: argparse.Namespace) -> int:
    """Search, print, write."""
    from hmd.policy import registry

    if args.trials < 1 or args.workers < 1:
        raise UsageError("--trials and --workers must be at least 1")
    about = policy_info(args.policy or registry.DEFAULT)
    if args.ray and about.name in registry.FILES:
        raise UsageError(f"--ray needs a policy that is installed on all nodes, not {args.policy}")
    given = given_settings(args.set, [about.name])
    ranges = _ranges(about, args, given)
    if args.output is not None:
        check_writable(args.output)
    tuned = _tune(args, about, ranges, given)
    text = _config(args, about, tuned.best, given)
    if args.output is not None:
        write_finished(args.output, text)
    if args.json:
        print_json(_document(tuned, args) | {"policy": about.name, "config": text})
    else:
        _print(tuned)
        wrote = f"{args.output}: written; hmd config check {args.output}\n"
        print(text if args.output is None else wrote, end="")
    return Exit.OK if tuned.finished else INTERRUPTED


def _tune(
    args: argparse.Namespace, about: PolicyInfo, ranges: Sequence[Range], given: dict[str, str]
) -> Tuned:
    from hmd.emulate.preset import load
    from hmd.simulate.cases import CaseRuntimes
    from hmd.simulate.executors import Journal
    from hmd.simulate.tuning import TuningProgress, tune

    preset, settings = load(args.preset), simulation_settings(args)
    kept = policy_values(about, given)
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
                f" ({', '.join(f'{each.setting.name} {_value(each, best)}' for each in ranges)})"
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


def _ranges(
    policy: PolicyInfo, args: argparse.Namespace, given: dict[str, str]
) -> tuple[Range, ...]:
    """Return the ranges to search: those of --knob, or of all settings that are not set."""
    from hmd.simulate.tuning import chosen, documented

    tick_s = simulation_settings(args).tick_s
    if args.knob:
        ranges = chosen(policy, args.knob, tick_s)
        for each in ranges:
            if each.setting.name in given:
                raise UsageError(f"{each.setting.name} is both set and searched: --set or --knob")
    else:
        ranges = tuple(
            each for each in documented(policy, tick_s) if each.setting.name not in given
        )
    if not ranges:
        raise UsageError(f"policy {policy.name} has nothing to search: name knobs with --knob")
    return ranges


def _cases(args: argparse.Namespace) -> tuple[list[SimulationCase], list[SimulationCase]]:
    """Return the cases (program and size) to search, and those held out."""
    from hmd.simulate.cases import SimulationCase, read_program

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
    args: argparse.Namespace, about: PolicyInfo, best: TuningTrial, given: dict[str, str]
) -> str:
    """Return the settings as YAML, with their origin as comments."""
    from hmd.config.decide import fragment
    from hmd.policy.settings import SECONDS

    implied = {"headroom", "headroom_min"} - set(given)
    settings = [s for s in about.settings if s.name in best.values and s.name not in implied]
    traces = ", ".join(path.name for path in args.trace)
    fast = ", ".join(args.fast or ["25%"])
    lines = [
        f"# hmd tune: {traces}; {fast} of {args.preset} fast; trial {best.number} of"
        f" {args.trials}, seed {args.seed}",
        f"# {best.gain:.3f} times as fast as first touch (geometric mean), at worst"
        f" {best.worst:.3f}",
    ]
    if any(s.unit.name == SECONDS.name and best.values[s.name] is not None for s in settings):
        lines.append(
            f"# Durations are for ticks of {args.tick:g} ms: take longer ones for a longer tick."
        )
    values = {each.name: best.values[each.name] for each in settings}
    return "\n".join([*lines, fragment(about.name, values)])


_GAINS: Mapping[str, Callable[[TuningRow], float | None]] = {
    "default": lambda row: row.gain(row.default_s),
    "tuned": lambda row: row.gain(row.tuned_s),
    "default, fresh": lambda row: row.gain(row.fresh_s[0]) if row.fresh_s else None,
    "tuned, fresh": lambda row: row.gain(row.fresh_s[1]) if row.fresh_s else None,
    "oracle": lambda row: row.gain(row.fixed["oracle"]),
    "all fast": lambda row: row.gain(row.fixed["all fast"]),
}
"""Speeds of a case relative to first touch."""


def _print(tuned: Tuned) -> None:
    from hmd.simulate.tuning import WORST

    print_records(
        tuned.ranges,
        {
            "knob": lambda each: each.setting.name,
            "searched": lambda each: each.span,
            "default": lambda each: _value(each, tuned.trials[0]),
            "tuned": lambda each: _value(each, tuned.best),
        },
        texts=2,
    )
    print()
    columns = ["fast", "first touch", *_GAINS]
    rows = _rows(tuned.rows)
    if tuned.held_out:
        rows += [["held out", *[""] * len(columns)], *_rows(tuned.held_out)]
    print_table(("program", *columns), rows, right=columns)
    print("times as fast as first touch; fresh: with samples that the search did not see")
    tried = tuned.trials[1:]
    ended = sum(trial.cost is None for trial in tried)
    text = f"{len(tried)} trials, of which {ended} ended early; "
    text += f"trial {tuned.best.number} is the best" if tuned.best.number else "the defaults stay"
    if tuned.best.worst < WORST:
        text += f"; none keeps all programs above {WORST} of first touch"
    if not tuned.finished:
        text += "; interrupted: nothing was run with fresh samples"
    print(text)


def _value(one: Range, trial: TuningTrial) -> str:
    return one.setting.format(trial.values[one.setting.name])


def _rows(cases: Sequence[TuningRow]) -> list[list[str]]:
    """Return a line for each case, then geometric means and the worst of each column."""

    def cells(gains: Iterable[float | None]) -> list[str]:
        return ["-" if gain is None else f"{gain:.3f}" for gain in gains]

    rows = []
    for row in cases:
        first = format_seconds(row.fixed["first touch"])
        gains = cells(gain(row) for gain in _GAINS.values())
        rows.append([row.case.trace, row.case.fast, first, *gains])
    means, worst = _over(cases, geometric_mean), _over(cases, min)
    rows.append(["geometric mean", "", "", *cells(means.values())])
    rows.append(["worst", "", "", *cells(worst.values())])
    return rows


def _over(
    cases: Sequence[TuningRow], combine: Callable[[list[float]], float]
) -> dict[str, float | None]:
    """Return each column's gains combined into one figure, None without any."""
    columns = {
        name: [value for row in cases if (value := gain(row)) is not None]
        for name, gain in _GAINS.items()
    }
    return {name: combine(values) if values else None for name, values in columns.items()}


def _document(tuned: Tuned, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "preset": args.preset,
        "seed": args.seed,
        "finished": tuned.finished,
        "best": tuned.best.number,
        "knobs": [
            {
                "key": each.setting.name,
                "low": each.low,
                "high": each.high,
                "log": each.log,
                "default": tuned.trials[0].values[each.setting.name],
                "tuned": tuned.best.values[each.setting.name],
            }
            for each in tuned.ranges
        ],
        "cases": [_case_document(row) for row in tuned.rows],
        "held_out": [_case_document(row) for row in tuned.held_out],
        "geomean_x_first_touch": _over(tuned.rows, geometric_mean),
        "held_out_geomean_x_first_touch": _over(tuned.held_out, geometric_mean),
        "trials": [
            {
                "number": trial.number,
                "values": {r.setting.name: trial.values[r.setting.name] for r in tuned.ranges},
                "given_up_after_cases": len(trial.logs) if trial.cost is None else None,
                "cost": trial.cost,
                "x_first_touch": trial.gain,
                "worst_x_first_touch": trial.worst,
            }
            for trial in tuned.trials
        ],
    }


def _case_document(row: TuningRow) -> dict[str, Any]:
    before, after = row.fresh_s or (None, None)
    return {
        "trace": row.case.trace,
        "fast": row.case.fast,
        "fast_bytes": row.case.fast_pages * PAGE_BYTES,
        "baselines_s": row.fixed,
        "default_s": row.default_s,
        "tuned_s": row.tuned_s,
        "fresh_default_s": before,
        "fresh_tuned_s": after,
    }
