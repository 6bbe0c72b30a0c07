# SPDX-License-Identifier: MIT
"""``hmd trace``: summarise, draw, export and import traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hmd.base.units import MIB, PAGE_BYTES
from hmd.cli.arguments import number
from hmd.cli.output import (
    console,
    format_latency,
    format_seconds,
    format_share,
    print_heat,
    print_json,
    print_records,
    table,
)

if TYPE_CHECKING:
    from hmd.trace.perf_recording import PerfRecording
    from hmd.trace.trace import Trace

DESCRIPTION = """\
Summarise, draw, export and import traces of 'hmd record', recordings of perf, and accesses that
Pin and DynamoRIO print.
docs/reference/trace-format.md describes the file format.
"""

EXAMPLES = """\
examples:
  hmd trace info run.hmdt                      program, losses, hottest mappings and functions
  hmd trace heatmap run.hmdt                   time on x, addresses on y, as text
  hmd trace heatmap run.hmdt -o run.png        time on x, addresses on y, samples as colour
  hmd trace export run.hmdt -o run.npz         samples as arrays (numpy); .parquet for the rest
  hmd trace import perf.data -o run.hmdt       a recording of 'perf mem record'
  hmd trace import script.txt -o run.hmdt      what this printed of one:
    perf script --header --ns --show-mmap-events \\
      -F comm,pid,tid,cpu,time,period,event,addr,data_src,weight
  hmd trace import misses.gz --seconds 12 -o run.hmdt  misses that drcachesim wrote
  hmd trace import knl.npz -o knl.hmdt         a trace as published with the ISC 2022 paper

An incomplete file (its recorder was killed) or a damaged one is an error; --salvage reads what
precedes the damage.
"""

TRACE = """\
FILE       a trace
--salvage  read a damaged or unfinished file up to its damage or end
"""

INFO = f"{TRACE}--json  print JSON"
HEATMAP = f"{TRACE}-o, --output FILE  draw a .png, .svg or .pdf instead of text"
EXPORT = f"{TRACE}-o, --output FILE  a .npz, or a .parquet (needs the extra parquet)"
IMPORT = """\
FILE           perf.data, what perf script, Pin or DynamoRIO printed, or a .npz with arrays time_tsc
               and vaddr
-o, --output FILE  the trace to write
--fields LIST  fields of the text, as given to perf script -F (those of the example)
--seconds TIME  runtime of a program whose accesses have no times
--ghz N        clock of the cycles in which latencies are (that of the recording)
--cached       keep samples that a cache answered: they tell nothing of tiers
"""

ACTIONS = {
    "info": ("summarise a trace", INFO),
    "heatmap": ("draw samples over time and address", HEATMAP),
    "export": ("export samples as arrays: .npz or .parquet", EXPORT),
    "import": ("import a recording of perf, Pin or DynamoRIO, or a KNL trace", IMPORT),
}
REQUIRED = {"export": ("output",), "import": ("output",)}
TYPES = {"ghz": number(0.1, 20)}


def _read(args: argparse.Namespace) -> Trace:
    from hmd.trace.reader import TraceError, read_trace

    trace = read_trace(args.file, salvage=args.salvage)
    if trace.ending is None and not args.salvage:
        raise TraceError(
            f"the trace {args.file} is incomplete: its recorder was killed, or still runs; "
            "'--salvage' reads it as far as it goes"
        )
    if trace.damage is not None:
        print(f"hmd: {args.file} is damaged: {trace.damage}; read up to there", file=sys.stderr)
    return trace


def run_info(args: argparse.Namespace) -> None:
    """Print the figures of a trace."""
    from hmd.trace.summary import SamplingError, summarise

    summary = summarise(_read(args))
    if args.json:
        print_json(summary)
        return
    screen = console()
    rows: list[tuple[str, Any]] = [
        ("program", " ".join(summary["command"]) or _listed(summary["processes"])),
        ("recorded", f"{summary['date']}, hmd {summary['hmd']}, Linux {summary['kernel']}"),
        ("placed", f"whole on the {summary['tier']} tier" if summary["tier"] else "by the kernel"),
        ("runtime", _runtime(summary)),
        ("processes", str(len(summary["processes"]))),
        ("sampled", f"{summary['detail']}, one in {summary['period']}"),
        ("pairs", _pairs(summary)),
        (
            "samples",
            f"{summary['samples']:,} ({summary['stores']:,} stores), {summary['pages']:,} pages",
        ),
        ("lost", f"{summary['lost']:,} samples, {summary['throttled']:,} times throttled"),
    ]
    if isinstance(summary["levels"], dict):
        rows.append(("answered by", _levels(summary["levels"])))
    if summary["mean_latency_ns"]:
        rows.append(("latency", f"{summary['mean_latency_ns']:.0f} ns in the mean"))
    counted = summary["instructions"]
    described = summary["instructions_detail"]
    rows.append(("instructions", described if counted is None else f"{counted:,} {described}"))
    if summary["stalled_s"]:
        rows.append(("waits", f"{summary['stalled_s']:.3f} s for memory, of all threads in sum"))
    rows += [(f"tier {rank}", _speed(tier)) for rank, tier in enumerate(summary["tiers"])]
    rows += [
        (f"node {node}", f"{count * PAGE_BYTES / MIB:,.1f} MiB at the end")
        for node, count in summary["resident_pages"].items()
    ]
    if summary["source"]:
        rows[1] = ("imported", f"{summary['source']}, {summary['machine'] or 'of an unknown CPU'}")
        rows[2] = ("placed", "unknown: an import does not say where pages lay")
        rows.append(("error", SamplingError(**summary["sampling"]).describe()))
    screen.print(table(["", str(args.file)], rows))
    many = len(summary["processes"]) > 1
    hottest = [
        (
            ("{mapping}, {process}" if many else "{mapping}").format(**each),
            f"{each['bytes'] / MIB:,.1f} MiB",
            f"{each['pages'] * PAGE_BYTES / MIB:,.1f} MiB",
            format_share(each["share"]),
        )
        for each in summary["mappings"][:_HOTTEST]
    ]
    if hottest:
        numbers = ["size", "sampled", "of accesses"]
        screen.print(table(["hottest memory", *numbers], hottest, right=numbers))
    if functions := summary["functions"][:_HOTTEST]:
        print_records(functions, _FUNCTION_COLUMNS, texts=2)
    for path in dict.fromkeys(each["mapping"] for each in functions):
        if path in summary["unnamed"]:
            print(f"functions in {path}: {summary['unnamed'][path]}")


_FUNCTION_COLUMNS: Final[Mapping[str, Callable[[Any], object]]] = {
    "hottest code": lambda each: each["function"] or "-",
    "in": lambda each: each["mapping"] + (f"+{each['offset']:#x}" if each["offset"] else ""),
    "latency": lambda each: format_latency((each["mean_latency_ns"] or 0) / 1e9),
    "on slow": lambda each: format_share(each["slow_share"]),
    "of accesses": lambda each: format_share(each["share"]),
}


def _listed(processes: list[str]) -> str:
    more = f" and {len(processes) - _LISTED} more" if len(processes) > _LISTED else ""
    return ", ".join(processes[:_LISTED]) + more


def _levels(levels: dict[str, Any]) -> str:
    """Return the shares of what answered a recording's samples of user memory."""
    counts = {
        str(name): count for name, count in levels.items() if type(count) is int and count > 0
    }
    whole = max(1, sum(counts.values()))
    return ", ".join(f"{name} {format_share(count / whole)}" for name, count in counts.items())


_HOTTEST = 8
"""Mappings and functions that ``hmd trace info`` lists."""
_LISTED = 16
"""Processes that are named of a recording without a command."""
_RECORDING_SHARE = 0.005
"""Share of the runtime from which the cost of samples is worth a word."""


def _runtime(summary: dict[str, Any]) -> str:
    """Return the runtime, with the clock where it is not the machine's own."""
    described = f"{summary['runtime_s']:.3f} s"
    if summary["clock"] == "modelled":
        described += f" of modelled time, {summary['elapsed_s']:.3f} s by the guest's clock"
    if summary["recording_s"] > _RECORDING_SHARE * summary["runtime_s"]:
        described += f", {summary['recording_s']:.3f} s of it to take samples"
    return described if summary["ended"] else f"{described} (broke off)"


def _pairs(summary: dict[str, Any]) -> str:
    """Return whether loads had a second counter, and the distance within which two may overlap."""
    if summary["pair_period"] is None:
        return "none: overlapping misses cannot be identified"
    described = f"loads also by a second counter, one in {summary['pair_period']}"
    if summary["reorder_window"] is None:
        return described
    return f"{described}; the core looks {summary['reorder_window']} instructions ahead"


def _speed(tier: dict[str, Any]) -> str:
    """Return a tier's nodes, and its latency and bandwidth from the firmware."""
    parts = [f"nodes {', '.join(map(str, tier['nodes']))}"]
    for way in ("read", "write"):
        latency_ns, mbps = tier.get(f"{way}_latency_ns"), tier.get(f"{way}_bandwidth_mbps")
        if latency_ns is not None:
            parts.append(f"{way} {latency_ns:.0f} ns")
        if mbps is not None:
            parts.append(f"{way} {mbps / 1000:.1f} GB/s")
    return ", ".join(parts) if len(parts) > 1 else f"{parts[0]}, speed unknown (no HMAT)"


def run_heatmap(args: argparse.Namespace) -> None:
    """Draw a trace."""
    from hmd.cli.plots import check_picture, count_samples, draw_trace
    from hmd.trace.summary import is_imported, sampling_error

    check_picture(args.output)
    trace = _read(args)
    if args.output is None:
        count, addresses, span_ns = count_samples(trace)
        print_heat(count.astype(float), addresses, format_seconds(span_ns * 1e-9))
    else:
        draw_trace(trace, args.output)
        print(f"wrote {args.output}")
    if is_imported(trace):
        print(sampling_error(trace).describe())


def run_export(args: argparse.Namespace) -> None:
    """Write the samples of a trace for other tools."""
    from hmd.trace.convert import export

    export(_read(args), args.output)
    print(f"wrote {args.output}")


def run_import(args: argparse.Namespace) -> None:
    """Write the trace of what another tool recorded."""
    from hmd.trace.convert import open_recording, read_knl
    from hmd.trace.writer import write_trace

    recording = open_recording(args.file, args.fields, args.seconds)
    if recording is not None:
        _import_recording(args, recording)
        return
    trace = read_knl(args.file)
    write_trace(args.output, trace)
    print(f"wrote {args.output}: {len(trace.samples):,} samples, {trace.runtime_ns / 1e9:.2f} s")


def _import_recording(args: argparse.Namespace, recording: PerfRecording) -> None:
    from hmd.trace.perf_recording import import_recording
    from hmd.trace.reader import TraceFile
    from hmd.trace.summary import sampling_error

    found = import_recording(recording, args.file, args.output, cached=args.cached, ghz=args.ghz)
    left_out = {"answered by caches": found.cached, "of no user memory": found.no_user_address}
    shown = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
    print(
        f"wrote {args.output}: {found.kept:,} samples ({found.stores:,} stores), "
        f"{found.runtime_ns / 1e9:.2f} s{shown and f'; left out: {shown}'}"
    )
    print(sampling_error(TraceFile(args.output).thinned).describe())
    for note in found.notes:
        print(f"hmd: note: {note}", file=sys.stderr)
