# SPDX-License-Identifier: MIT
"""``hmd estimate``: how long a program would take with its pages placed otherwise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hmd.base.errors import UsageError
from hmd.base.units import PAGE_BYTES
from hmd.cli.arguments import number, whole_number
from hmd.cli.output import (
    console,
    format_bytes,
    format_seconds,
    format_share,
    in_seconds,
    print_json,
    print_records,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hmd.estimate import (
        AlignedRuns,
        Layout,
        PageIndex,
        RuntimeModel,
    )
    from hmd.trace.reader import TraceFile
    from hmd.trace.trace import Trace

Column = Callable[[dict[str, Any]], str]
"""Returns a cell of a row of the JSON document."""

DESCRIPTION = """\
Predict how long a program takes with some of its pages in fast memory and the rest in slow memory,
from two recorded runs: one with all pages slow, one with all pages fast. Without a layout: where
the slow run spends its time, and what each region would save in fast memory. From one run: the
share of its accesses that fast memory would serve, and runtimes with wide intervals where the
latencies of both tiers are known.

Only sampled pages count; pages without samples cost no time in either memory. Addresses are those
of the slow run.
"""

EXAMPLES = """\
examples:
  hmd record -o slow.hmdt --tier slow -- ./program
  hmd record -o fast.hmdt --tier fast -- ./program
  hmd estimate slow.hmdt fast.hmdt                     which regions should be fast
  hmd estimate slow.hmdt fast.hmdt --sweep             how much fast memory it needs
  hmd estimate slow.hmdt fast.hmdt --sweep --steps 50 --picture sweep.png
  hmd estimate slow.hmdt fast.hmdt --hot-first 25%     the hottest quarter of its pages fast
  hmd estimate slow.hmdt fast.hmdt --fast-bytes 512MiB  the hottest that fit
  hmd estimate slow.hmdt fast.hmdt --range 7f0000000000-7f0040000000 --by region
  hmd estimate slow.hmdt fast.hmdt --layout hot.txt --json
  hmd estimate slow.hmdt fast.hmdt --schedule moves.csv --move-ns 3000
  hmd estimate slow.hmdt fast.hmdt --also slow2.hmdt fast2.hmdt   with scatter from run to run
  hmd estimate run.hmdt                                what one run says
  hmd estimate imported.hmdt --recorded-on fast --latencies 90,250

A schedule has one line per move: 1500,7f0000001000,fast moves the page at that address to fast
memory 1500 ms after the start. It starts from the given layout, or from all-slow.

exit codes: 0 done, 1 a trace cannot be read, 2 wrong usage or traces that do not match, 3 an error
in a layout or schedule (with file and line), 4 no matplotlib for the picture
"""

STEPS = 20
NEAR = 0.05
"""Slowdown versus all-fast that counts as enough fast memory."""
MIN_SHARE = 0.001
"""Regions below this share of the accesses, and of the time, are summed up in one line."""

_RECORDING_SHARE = 0.005
"""Share of a run from which the time that samples took is worth a word."""
ONE_RUN_STEPS = 10
NEEDS = (
    "record the same work with its memory on the other tier ('hmd record --tier', or 'numactl "
    "--membind=NODE setarch -R perf mem record'), then 'hmd estimate SLOW FAST'"
)

_REGIONS = "'hmd estimate SLOW FAST --by region' lists regions with their addresses"

OPTIONS = f"""\
SLOW                 trace with all pages slow
[FAST]               trace with all pages fast
--also SLOW2 FAST2 ...
                     another pair of runs of the same program; their scatter widens the interval;
                     may be repeated
one run:
--recorded-on {{fast,slow}}
                     tier that held the pages of the one run (default: that of 'hmd record --tier')
--latencies FAST,SLOW
                     idle latencies of both tiers in ns, as measured (default: those in the trace)
--bandwidths READ,WRITE
                     peak bandwidths of the slow tier in GB/s (default: those in the trace)
--block-bytes BYTES  what the slow tier moves for an access anywhere: 256 for Optane (default 64)
which pages are fast (all others are slow):
| --hot-first P%     the hottest pages: this share of them
| --cold-first P%    the coldest pages: this share of them
| --fast-bytes SIZE  the hottest pages that fit, as in 512MiB
| --interleave P%    this share of pages, evenly spread
| --range START-END ...
                     pages at these addresses, hexadecimal, END exclusive; may be repeated
| --layout FILE      pages in a file's ranges: one START-END per line, # starts a comment; or a JSON
                     list
| --sweep            the hottest pages, from none to all: how much fast memory the program needs
output:
--by {{phase,region}}  break the runtime down by one of these only (default: both)
--steps N            steps of the sweep, of equally many pages (default {STEPS})
--picture FILE       draw the sweep: a .png, .svg or .pdf
--schedule FILE      add the cost of these migrations: CSV, see below
--move-ns NS         time that moving a page costs the program, in nanoseconds (default 2000 for 4
                     KiB)
--json               print JSON: seconds, bytes, shares
the model:
--cut-by {{time,accesses,instructions}}
                     quantity that all windows of a run have in equal parts (default: instructions
                     if both traces count them, else accesses)
--windows N          number of windows (default 60; 600 for a program that waits for streams)
"""

USAGE = "hmd estimate [options] SLOW [FAST]"


def _two_numbers(text: str) -> tuple[float, float]:
    convert = number(1e-3, 1e9)
    words = text.split(",")
    if len(words) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers, such as 90,250")
    return convert(words[0]), convert(words[1])


TYPES = {
    **dict.fromkeys(("latencies", "bandwidths"), _two_numbers),
    **dict.fromkeys(("steps", "windows"), whole_number(100_000)),
    "block_bytes": whole_number(100_000, 64),
    "move_ns": number(1e-3, 1e9),
}


def run(args: argparse.Namespace) -> None:
    """Predict, and print."""
    if args.fast is None:
        _run_of_one(args)
        return
    document = answer_document(args)
    if args.json:
        print_json(document)
    elif args.sweep:
        _print_sweep(document)
    else:
        _print(args, document)


def _run_of_one(args: argparse.Namespace) -> None:
    document = one_run_document(args)
    if args.json:
        print_json(document)
        return
    columns = _capacity_columns(document) | {
        "accesses there": lambda step: format_share(step["access_share"])
    }
    if document["doubts"]:
        columns |= {
            "runtime": lambda step: format_seconds(step["runtime_s"]),
            "95 % interval": _bounds,
        }
    print_records(document["steps"], columns, texts=0, title=document["layout"])
    listed = [each for each in document["regions"] if each["access_share"] >= MIN_SHARE]
    print_records(listed, _REGION_COLUMNS, texts=2, title="\nby region")
    if document["waiting_s"]:
        print(
            f"Loads waited for {format_seconds(document['waiting_s'])} in sum, had none "
            f"overlapped; the run took {format_seconds(document['runtime_s'])}."
        )
    print(document["needs"])


def one_run_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return what ``--json`` prints of one run."""
    from hmd.estimate import find_regions, index_pages
    from hmd.estimate.layout import by_heat
    from hmd.estimate.one_run import access_curve, access_share, region_shares, waiting_ns
    from hmd.trace.reader import TraceFile
    from hmd.trace.summary import sampling_error

    of_two = ("schedule", "picture", "move_ns", "cut_by", "windows")
    given = [name for name in of_two if getattr(args, name) is not None]
    if given or args.by == "phase":
        option = given[0].replace("_", "-") if given else "by phase"
        raise UsageError(f"estimate: --{option} is about runtimes, which take two traces: {NEEDS}")
    recording = TraceFile(args.slow)
    trace, pages = recording.thinned, index_pages(recording)
    if not len(pages):
        raise UsageError(f"{args.slow} has no samples: record with a shorter --period")
    if asked := asked_layout(args, pages):
        layout_name, chosen = asked
        steps, layouts = [(int(chosen.sum()), access_share(pages, chosen))], [chosen]
    else:
        layout_name, curve = "hottest first", access_curve(pages, args.steps or ONE_RUN_STEPS)
        steps = list(zip(curve.pages.tolist(), curve.access_share.tolist(), strict=True))
        layouts = [by_heat(pages, count) for count, _ in steps]
    runtimes, doubts = _predicted(args, recording, layouts)
    error = sampling_error(trace)
    print(f"hmd: note: {error.describe()}", file=sys.stderr)
    return {
        "layout": layout_name,
        "pages": len(pages),
        "runtime_s": trace.runtime_ns / 1e9,
        "waiting_s": waiting_ns(recording) / 1e9,
        "sampling": asdict(error),
        "steps": [
            {"fast_bytes": count * PAGE_BYTES, "access_share": share, **runtime}
            for (count, share), runtime in zip(steps, runtimes, strict=True)
        ],
        "doubts": doubts,
        "regions": [
            {
                "name": name,
                "process": trace.processes[process].name,
                "pid": trace.processes[process].pid,
                "pages": count,
                "access_share": share,
            }
            for name, process, count, share in region_shares(pages, find_regions(trace, pages))
        ],
        "needs": f"{'A closer' if doubts else 'A'} runtime takes a second trace: {NEEDS}.",
    }


def _predicted(
    args: argparse.Namespace, recording: TraceFile, layouts: Sequence[Layout]
) -> tuple[list[dict[str, float]], list[str]]:
    """Return the runtime of each layout by one run, and why it is uncertain.

    Nothing where the tier of the run, or the latencies of both, are unknown, unless they were asked
    for: UsageError then.
    """
    from dataclasses import replace

    from hmd.estimate import TierSpeeds, build_model, interval
    from hmd.estimate.one_run import predict_runs

    about = recording.thinned.about
    tier, speeds = args.recorded_on or about.get("tier"), TierSpeeds.of(about)
    if args.latencies:
        fast_ns, slow_ns = args.latencies
        speeds = replace(speeds, fast_latency_ns=fast_ns, slow_latency_ns=slow_ns)
    if args.bandwidths:
        read, write = args.bandwidths
        speeds = replace(speeds, slow_read_bytes_per_ns=read, slow_write_bytes_per_ns=write)
    if args.block_bytes:
        speeds = replace(speeds, slow_block_bytes=args.block_bytes)
    if (args.latencies or args.bandwidths or args.block_bytes) and tier is None:
        raise UsageError("estimate: which tier held the pages of this run? say --recorded-on TIER")
    timed = bool(recording.thinned.samples.latency_ns.any())
    if tier is None or not (timed and speeds.slow_latency_ns and speeds.fast_latency_ns):
        return [{}] * len(layouts), []
    model = build_model(predict_runs(recording, tier, speeds=speeds))
    found = [interval(model, layout) for layout in layouts]
    return [in_seconds(each) for each in found], [doubt.reason for doubt in model.doubts]


def answer_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return what ``--json`` prints: seconds, bytes, and shares from 0 to 1.

    Raises HmdError where options or traces do not go together, or a file cannot be read.
    """
    from hmd.cli.plots import check_picture
    from hmd.estimate import layout

    _refuse(args)
    check_picture(args.picture, "or use --json")
    subject = read_subject(args, args.slow, args.fast)
    for slow, fast in args.also:
        subject.others.append(read_subject(args, slow, fast))
    pages = subject.runs.pages
    ends = [
        subject.row("all slow", layout.all_slow),
        subject.row("all fast", layout.all_fast),
    ]
    found = _swept(args, subject) if args.sweep else _priced(args, subject, ends)
    return {
        "model": "hmd",
        "cut_by": subject.runs.cut_by.value,
        "windows": subject.runs.windows,
        "pages": len(pages),
        "clock": subject.slow.clock,
        "slow_s": float(subject.runs.slow.ns.sum()) / 1e9,
        "fast_s": float(subject.runs.fast.ns.sum()) / 1e9,
        "pairs": 1 + len(subject.others),
        "doubts": [doubt.reason for doubt in subject.model.doubts],
        "notes": subject.notes,
        "estimates": ends,
        **found,
    }


def _refuse(args: argparse.Namespace) -> None:
    for wrong, why in (
        (args.schedule is not None and args.sweep, "take either --schedule or --sweep"),
        (args.schedule is None and args.move_ns is not None, "--move-ns goes with --schedule"),
        (args.schedule is not None and args.by == "region", "a schedule goes --by phase"),
        (not args.sweep and args.picture is not None, "--picture draws a --sweep: ask for it"),
        (not args.sweep and args.steps is not None, "--steps goes with --sweep"),
        (args.sweep and args.by is not None, "--by goes with one layout, not with --sweep"),
        (
            args.recorded_on or args.latencies or args.bandwidths or args.block_bytes,
            "--recorded-on, --latencies, --bandwidths and --block-bytes go with one trace",
        ),
    ):
        if wrong:
            raise UsageError(f"estimate: {why}")


@dataclass(frozen=True, slots=True)
class Subject:
    """A program's two runs under hmd's model.

    ``slow`` is a thinned trace. ``others`` are other pairs of runs of the program.
    """

    slow: Trace
    runs: AlignedRuns
    model: RuntimeModel
    notes: list[str]
    others: list[Subject]

    @property
    def accesses(self) -> npt.NDArray[np.float64]:
        """The accesses that the model weights, by page."""
        import numpy as np

        counted = np.bincount(self.model.page, self.model.accesses, len(self.runs.pages))
        return counted.astype(np.float64)

    def note(self, text: str) -> None:
        """Add a caveat, and print it on standard error."""
        self.notes.append(text)
        print(f"hmd: note: {text}", file=sys.stderr)

    def over_all_fast(self, runtime_ns: float) -> float:
        """Return a runtime as a multiple of the fast run's."""
        return runtime_ns / max(float(self.runs.fast.ns.sum()), 1.0)

    def row(self, name: str, choose: Callable[[PageIndex], Layout]) -> dict[str, Any]:
        """Return a layout's prediction; of several pairs of runs, for the pages of each."""
        from hmd.estimate import interval, layout, over_pairs

        chosen, accesses = choose(self.runs.pages), self.accesses
        bounds = interval(self.model, chosen)
        if self.others:
            picks = (choose, layout.all_slow, layout.all_fast)
            of_pairs = [
                [interval(each.model, pick(each.runs.pages)) for pick in picks]
                for each in (self, *self.others)
            ]
            bounds = over_pairs(of_pairs)[0]
        return {
            "layout": name,
            "fast_bytes": int(chosen.sum()) * PAGE_BYTES,
            "access_share": float(accesses[chosen].sum()) / max(float(accesses.sum()), 1e-12),
            **in_seconds(bounds),
            "over_all_fast": self.over_all_fast(bounds.runtime_ns),
        }


def read_subject(args: argparse.Namespace, slow_path: Path, fast_path: Path) -> Subject:
    """Return both traces under the model; prints caveats on standard error.

    Raises HmdError where they cannot be read or do not match.
    """
    from hmd.estimate import CutBy, check, side_by_side
    from hmd.trace.reader import TraceFile
    from hmd.trace.summary import is_imported, sampling_error

    slow, fast = TraceFile(slow_path), TraceFile(fast_path)
    notes = check(slow.thinned, fast.thinned, (str(slow_path), str(fast_path)))
    cut_by = None if args.cut_by is None else CutBy(args.cut_by)
    runs = side_by_side(slow, fast, windows=args.windows, cut_by=cut_by)
    model = _build_model(args, runs, notes)
    took = 1 - float(runs.slow.ns.sum()) / max(slow.thinned.runtime_ns, 1)
    if took > _RECORDING_SHARE:
        notes.append(
            f"taking samples was {took:.0%} of the slow run: runtimes here are those without a "
            "recorder".replace("%", " %")
        )
    if is_imported(slow.thinned):
        notes.append(sampling_error(slow.thinned).describe())
    for note in notes:
        print(f"hmd: note: {note}", file=sys.stderr)
    return Subject(slow.thinned, runs, model, notes, [])


def _build_model(args: argparse.Namespace, runs: AlignedRuns, notes: list[str]) -> RuntimeModel:
    """Return hmd's model; adds its caveats to ``notes``."""
    from hmd.estimate import build_model

    # A layout that samples of one run select is priced with those of the other.
    by_heat = args.sweep or any(
        option is not None for option in (args.hot_first, args.cold_first, args.fast_bytes)
    )
    model = build_model(runs, fast_samples=by_heat)
    if not runs.same_addresses:
        notes.append(
            "the two runs have different addresses, so that the slow run's samples alone are "
            "used: record both with 'setarch -R' (as 'hmd record --tier' does)"
        )
    if by_heat and not len(runs.fast.page):
        notes.append("pages that are hot by chance count as hot: estimates are too low")
    notes.extend(f"the interval is wide: {doubt.reason}" for doubt in model.doubts)
    if not model.pairs.enough:
        notes.append(
            "too few pairs of samples to identify overlapping misses, so overlap is inferred from "
            "the runtimes: record with a second counter (without --no-pairs)"
        )
    return model


def _swept(args: argparse.Namespace, subject: Subject) -> dict[str, Any]:
    """Return the answer to ``--sweep``, and draw it."""
    from hmd.cli.plots import draw_capacity_sweep
    from hmd.estimate import layout, sweep

    curve = sweep(subject.model, layout.heat_order(subject.runs.pages), args.steps or STEPS)
    if args.picture is not None:
        command = " ".join(map(str, subject.slow.about.get("command") or []))
        draw_capacity_sweep(curve, args.picture, command or None)
    steps = [
        {
            "fast_bytes": capacity,
            "runtime_s": runtime_ns / 1e9,
            "low_s": low_ns / 1e9,
            "high_s": high_ns / 1e9,
            "over_all_fast": subject.over_all_fast(runtime_ns),
        }
        for capacity, runtime_ns, low_ns, high_ns in zip(
            *(
                column.tolist()
                for column in (curve.fast_bytes, curve.runtime_ns, curve.low_ns, curve.high_ns)
            ),
            strict=True,
        )
    ]
    knee = None if curve.knee is None else steps[curve.knee]
    within, surely = (steps[step] for step in curve.within(NEAR))
    return {
        "sweep": {
            "steps": steps,
            "knee": knee,
            "within_5_percent": within,
            "surely_within_5_percent": surely,
        }
    }


def _priced(
    args: argparse.Namespace, subject: Subject, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return one layout's answer, or that of a schedule that starts from it; adds its row."""
    from hmd.estimate import (
        PAGE_MOVE_NS,
        by_phase,
        by_region,
        find_regions,
        layout,
        price_schedule,
        read_schedule,
    )

    runs = subject.runs
    found: dict[str, Any] = {}
    chosen = layout.all_slow(runs.pages)
    if asked := asked_layout(args, runs.pages):
        name, chosen = asked
        if (args.ranges or args.layout) and not chosen.any():
            subject.note(f"no sampled page lies in these ranges; {_REGIONS}")
        rows.insert(1, subject.row(name, lambda pages: _asked(args, pages)))
    estimate = subject.model.estimate(chosen)
    if args.schedule is not None:
        moves, start = read_schedule(args.schedule, runs.pages, chosen)
        if len(moves.page) and (moves.page >= len(runs.pages)).all():
            subject.note(f"no sampled page lies at the addresses of the schedule; {_REGIONS}")
        priced = price_schedule(subject.model, start, moves, args.move_ns or PAGE_MOVE_NS)
        estimate = priced.estimate
        found["schedule"] = {
            "runtime_s": estimate.runtime_ns / 1e9,
            "moved_pages": priced.moved,
            "moving_s": priced.moving_ns / 1e9,
        }
    if args.by != "region":
        found["phases"] = [
            in_seconds(phase) for phase in by_phase(estimate, runs.slow.ns, runs.fast.ns)
        ]
    if args.schedule is None and args.by != "phase":
        regions = find_regions(subject.slow, runs.pages)
        found["regions"] = [
            {
                **in_seconds(region),
                "pid": subject.slow.processes[region.process].pid,
                "process": subject.slow.processes[region.process].name,
            }
            for region in by_region(regions, subject.accesses, chosen, subject.model.estimate)
        ]
    return found


def _asked(args: argparse.Namespace, pages: PageIndex) -> Layout:
    asked = asked_layout(args, pages)
    assert asked is not None
    return asked[1]


def asked_layout(args: argparse.Namespace, pages: PageIndex) -> tuple[str, Layout] | None:
    """Return the name of the requested layout and its pages, None without one."""
    from hmd.estimate import layout, read_layout

    if args.hot_first is not None:
        count = round(args.hot_first * len(pages))
        return f"hottest {args.hot_first:.0%}", layout.by_heat(pages, count)
    if args.cold_first is not None:
        count = round(args.cold_first * len(pages))
        return f"coldest {args.cold_first:.0%}", layout.by_heat(pages, count, hot_first=False)
    if args.interleave is not None:
        return f"interleaved {args.interleave:.0%}", layout.interleaved(pages, args.interleave)
    if args.fast_bytes is not None:
        return "hottest that fit", layout.by_heat(pages, args.fast_bytes // PAGE_BYTES)
    if args.ranges:
        return "ranges", layout.in_ranges(pages, args.ranges)
    if args.layout is not None:
        return args.layout.name, read_layout(args.layout, pages)
    return None


def _print(args: argparse.Namespace, document: dict[str, Any]) -> None:
    rows = document["estimates"]
    print_records(
        rows,
        {
            "layout": itemgetter("layout"),
            "fast memory": lambda row: format_bytes(row["fast_bytes"]),
            "accesses there": lambda row: format_share(row["access_share"]),
            "runtime": lambda row: format_seconds(row["runtime_s"]),
            "95 % interval": _bounds,
            "over all fast": lambda row: f"{row['over_all_fast']:.3f}",
        },
    )
    name = rows[-2]["layout"] if args.schedule is None else args.schedule.name
    if "schedule" in document:
        schedule = document["schedule"]
        over_all_fast = schedule["runtime_s"] / max(document["fast_s"], 1e-9)
        console().print(
            f"{name}: {format_seconds(schedule['runtime_s'])}, {over_all_fast:.3f} times all fast; "
            f"{format_seconds(schedule['moving_s'])} of it to move {schedule['moved_pages']:,} "
            "pages",
            markup=False,
        )
    if "phases" in document:
        print_records(
            document["phases"],
            {
                "time in the slow run": lambda phase: (
                    f"{format_seconds(phase['from_s'])} to {format_seconds(phase['to_s'])}"
                ),
                "predicted": lambda phase: format_seconds(phase["runtime_s"]),
                "all slow": lambda phase: format_seconds(phase["all_slow_s"]),
                "all fast": lambda phase: format_seconds(phase["all_fast_s"]),
            },
            texts=0,
            title=f"\n{name}, by phase",
        )
    if "regions" in document:
        _print_regions(f"\n{name}, by region", document["regions"], document["slow_s"])


def _bounds(row: dict[str, Any]) -> str:
    if row["low_s"] >= row["high_s"]:
        return "as recorded"
    return f"{format_seconds(row['low_s'])} to {format_seconds(row['high_s'])}"


def _capacity_columns(document: dict[str, Any]) -> dict[str, Column]:
    pages = max(document["pages"], 1)
    return {
        "fast memory": lambda step: format_bytes(step["fast_bytes"]),
        "of sampled": lambda step: format_share(step["fast_bytes"] / PAGE_BYTES / pages),
    }


_REGION_COLUMNS: Final[Mapping[str, Column]] = {
    "region": itemgetter("name"),
    "process": lambda region: f"{region['process']} ({region['pid']})",
    "memory": lambda region: format_bytes(region["pages"] * PAGE_BYTES),
    "accesses": lambda region: format_share(region["access_share"]),
}


def _print_regions(title: str, regions: Sequence[dict[str, Any]], slow_s: float) -> None:
    listed = [
        region
        for region in regions
        if region["access_share"] >= MIN_SHARE or abs(region["saves_s"]) >= MIN_SHARE * slow_s
    ]
    columns = {
        **_REGION_COLUMNS,
        "of it fast": lambda region: format_share(region["fast_share"]),
        "all fast would save": lambda region: format_seconds(region["saves_s"]),
    }
    if len({region["pid"] for region in regions}) < 2:
        del columns["process"]
    print_records(listed, columns, texts=len(columns) - 4, title=title)
    if len(listed) < len(regions):
        console().print(
            f"and {len(regions) - len(listed)} that have less than {format_share(MIN_SHARE)} of "
            "the accesses and of the time each"
        )


def _print_sweep(document: dict[str, Any]) -> None:
    steps, knee = document["sweep"]["steps"], document["sweep"]["knee"]
    enough = document["sweep"]["within_5_percent"]
    surely = document["sweep"]["surely_within_5_percent"]
    columns = _capacity_columns(document) | {
        "runtime": lambda step: format_seconds(step["runtime_s"]),
        "95 % interval": _bounds,
        "over all fast": lambda step: f"{step['over_all_fast']:.3f}",
        "": lambda step: "<- knee" if step is knee else "",
    }
    print_records(steps, columns, texts=0)
    if surely is steps[0]:
        print("It needs no fast memory: with all of its pages slow it is within 5 % of all fast.")
        return
    if knee is None:
        print("There is no knee: each part of fast memory buys about as much as the one before.")
    else:
        print(
            f"The knee is at {format_bytes(knee['fast_bytes'])} of fast memory: "
            f"{format_seconds(knee['runtime_s'])}, {knee['over_all_fast']:.2f} times all fast; "
            "more buys less."
        )
    print(f"To be within 5 % of all fast it needs {format_bytes(surely['fast_bytes'])}", end="")
    if enough is not surely:
        print(f", by the upper bound; {format_bytes(enough['fast_bytes'])} may do", end="")
    print(".")
