"""The results of ``hmd tune``, as tables and as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import Any

from hmd.cli.output import format_seconds, print_table
from hmd.config.policy_sections import written
from hmd.simulate.search_space import Range
from hmd.simulate.tuning import WORST, Tuned, TuningRow, TuningTrial
from hmd.units import PAGE_BYTES

_COLUMNS: tuple[tuple[str, Callable[[TuningRow], float | None]], ...] = (
    ("default", lambda row: row.gain(row.default_s)),
    ("tuned", lambda row: row.gain(row.tuned_s)),
    ("default, fresh", lambda row: row.gain(row.fresh_s[0]) if row.fresh_s else None),
    ("tuned, fresh", lambda row: row.gain(row.fresh_s[1]) if row.fresh_s else None),
    ("oracle", lambda row: row.gain(row.fixed["oracle"])),
    ("all fast", lambda row: row.gain(row.fixed["all fast"])),
)


def print_result(tuned: Tuned) -> None:
    """Print knobs, cases and a summary."""
    default, best = tuned.trials[0], tuned.best
    rows = [_knob_cells(each, default, best) for each in tuned.ranges]
    print_table(("knob", "default", "tuned", "searched"), rows, right=("default", "tuned"))
    print()
    columns = ["fast", "first touch", *(name for name, _ in _COLUMNS)]
    rows = [_case_cells(row) for row in tuned.rows] + _summaries(tuned.rows)
    if tuned.held_out:
        rows += [("held out", *[""] * len(columns))]
        rows += [_case_cells(row) for row in tuned.held_out] + _summaries(tuned.held_out)
    print_table(("program", *columns), rows, right=columns)
    print("times as fast as first touch; fresh: with samples that the search did not see")
    print(_outcome(tuned))


def result_json(tuned: Tuned, args: argparse.Namespace) -> dict[str, Any]:
    """Return the results in seconds and in base units."""
    return {
        "preset": args.preset,
        "seed": args.seed,
        "finished": tuned.finished,
        "best": tuned.best.number,
        "knobs": [
            {
                "key": each.knob.key,
                "low": each.low,
                "high": each.high,
                "log": each.log,
                "default": tuned.trials[0].values[each.knob.name],
                "tuned": tuned.best.values[each.knob.name],
            }
            for each in tuned.ranges
        ],
        "cases": [_case_json(row) for row in tuned.rows],
        "held_out": [_case_json(row) for row in tuned.held_out],
        "geomean_x_first_touch": _means(tuned.rows),
        "held_out_geomean_x_first_touch": _means(tuned.held_out),
        "trials": [
            {
                "number": trial.number,
                "values": {r.knob.key: trial.values[r.knob.name] for r in tuned.ranges},
                "given_up_after_cases": len(trial.logs) if trial.cost is None else None,
                "cost": trial.cost,
                "x_first_touch": trial.gain,
                "worst_x_first_touch": trial.worst,
            }
            for trial in tuned.trials
        ],
    }


def _knob_cells(each: Range, default: TuningTrial, best: TuningTrial) -> tuple[str, ...]:
    before, after = (written(each.knob, t.values[each.knob.name]) for t in (default, best))
    return each.knob.key, before, after, each.span


def _case_cells(row: TuningRow) -> tuple[str, ...]:
    first = format_seconds(row.fixed["first touch"])
    return row.case.trace, row.case.fast, first, *(_number(of(row)) for _, of in _COLUMNS)


def _summaries(rows: Sequence[TuningRow]) -> list[tuple[str, ...]]:
    means = [_number(mean) for mean in _means(rows).values()]
    worst = [_number(_over(rows, of, min)) for _, of in _COLUMNS]
    return [("geometric mean", "", "", *means), ("worst", "", "", *worst)]


def _means(rows: Sequence[TuningRow]) -> dict[str, float | None]:
    return {name: _over(rows, of, geometric_mean) for name, of in _COLUMNS}


def _over(
    rows: Sequence[TuningRow],
    of: Callable[[TuningRow], float | None],
    what: Callable[[list[float]], float],
) -> float | None:
    values = [value for row in rows if (value := of(row)) is not None]
    return what(values) if values else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _case_json(row: TuningRow) -> dict[str, Any]:
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


def _outcome(tuned: Tuned) -> str:
    tried = tuned.trials[1:]
    ended = sum(trial.cost is None for trial in tried)
    text = f"{len(tried)} trials, of which {ended} ended early; "
    text += f"trial {tuned.best.number} is the best" if tuned.best.number else "the defaults stay"
    if tuned.best.worst < WORST:
        text += f"; none keeps all programs above {WORST} of first touch"
    return text if tuned.finished else f"{text}; interrupted: nothing was run with fresh samples"
