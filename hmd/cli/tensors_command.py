# SPDX-License-Identifier: MIT
"""``hmd tensors``: record the trace of a training step, and show it."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from hmd.base.errors import UsageError, os_error
from hmd.cli.arguments import add_action, number, whole_number
from hmd.cli.output import format_bytes, format_count, format_seconds, print_json, print_table

_LARGEST = 8
"""Tensors that are named."""

DESCRIPTION = """\
Record the kernels and tensors of a PyTorch program's training step, and show what such a trace
contains: kernels, tensors by kind, peak and working set, inactive periods and reuse distances
(docs: tensor traces and plans).
"""

RECORD_DESCRIPTION = """\
Run a PyTorch training script unchanged and record its step: kernels with their times, tensors, and
which kernel uses which. A step ends when an optimizer's step() returns. The script is stopped when
enough steps are recorded. With --graph, the step of an exported graph is derived without running
it, for models that are too large for this machine. Needs the extra torch.
"""

RECORD_EXAMPLES = """\
examples:
  hmd tensors record -o step.npz train.py --batch 32
  hmd tensors record --graph --tflops 312 --gbps 2039 -o step.npz model.pt2

exit codes: 0 recorded; 1 the script or graph has no step; 2 wrong usage; 4 PyTorch is missing
"""

EXAMPLES = """\
examples:
  hmd tensors record -o step.npz train.py --batch 32
  hmd tensors info step.npz
  hmd tensors info step.npz --picture step.png     lifetimes and footprint over the step
"""

INFO = """\
TRACE           a tensor trace (.npz)
--picture FILE  draw lifetimes and footprint: .png, .svg
--json          print JSON: seconds, bytes, counts
"""

RECORD = """\
-o, --output FILE  the trace (default SCRIPT.npz here)
--warmup N = 2     steps before the recording (default 2)
--steps N = 5      recorded steps; times are their medians (default 5)
--graph            SCRIPT is a graph of torch.export.save (.pt2): no step runs, times are modelled
--optimizer {adam,sgd} = adam
                   with --graph: the update of the step (default adam)
--tflops N = 19.5  with --graph: 10^12 operations per second of the processor (default 19.5, A100
                   fp32)
--gbps N = 1555    with --graph: 10^9 bytes per second of its memory (default 1555, A100)
SCRIPT             a Python program, or a graph with --graph
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of ``hmd tensors``."""
    parser.usage = "hmd tensors record|info [options] SCRIPT|TRACE"
    family = parser.add_subparsers(metavar="ACTION", required=True)
    add_action(family, "info", "show a trace as tables", run_info, INFO)
    record = add_action(
        family,
        "record",
        "record the step of a PyTorch training script",
        run_record,
        RECORD,
        **dict.fromkeys(("warmup", "steps"), whole_number(1000)),
        **dict.fromkeys(("tflops", "gbps"), number(1e-3, 1e9)),
    )
    record.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="the script's arguments"
    )
    record.usage = "hmd tensors record [options] SCRIPT [ARGUMENTS]"
    record.description, record.epilog = RECORD_DESCRIPTION, RECORD_EXAMPLES


def run_record(args: argparse.Namespace) -> None:
    """Record a script's step, write the trace and print its summary."""
    from importlib.util import find_spec

    from hmd.base.errors import missing_extra
    from hmd.tensors.trace import write_trace

    if args.words and args.words[0] in ("-o", "--output", "--warmup", "--steps", "--graph"):
        raise UsageError(
            f"tensors record: {args.words[0]} stands behind SCRIPT: put it before,"
            " or write -- there if the script takes it"
        )
    if args.words[:1] == ["--"]:
        del args.words[0]
    if find_spec("torch") is None:
        raise missing_extra("hmd tensors record", "PyTorch", "torch")
    from hmd.tensors.capture.script import RecordedSteps, record_script

    if args.graph:
        from hmd.tensors.capture.exported_graph import record_graph
        from hmd.tensors.memory_system import Roofline

        trace = record_graph(args.script, args.optimizer, Roofline(args.tflops, args.gbps))
    else:
        trace = record_script(args.script, args.words, RecordedSteps(args.warmup, args.steps))
    output = args.output or Path(f"{trace.name}.npz")
    try:
        write_trace(trace, output)
    except OSError as error:
        raise os_error(error, f"cannot write {output}: {error.strerror}") from None
    alike = re.search(r"(\d+) of (\d+) steps alike", trace.source)
    if alike and alike[1] != alike[2]:
        print(
            f"the recorded steps differ: {alike[1]} of {alike[2]} are alike, and the trace is of"
            " these or, of several kinds, of the one that allocates most",
            file=sys.stderr,
        )
    _print(_document(trace))
    print(f"wrote {output}")


def run_info(args: argparse.Namespace) -> None:
    """Print a trace's summary."""
    from hmd.cli.plots import check_picture
    from hmd.tensors.trace import read_trace

    check_picture(args.picture, "or use --json")
    trace = read_trace(args.trace)
    if args.picture is not None:
        from hmd.cli.plots import draw_lifetimes

        draw_lifetimes(trace, args.picture)
    document = _document(trace)
    if args.json:
        print_json(document)
    else:
        _print(document)


def _document(trace: Any) -> dict[str, Any]:
    import numpy as np

    from hmd.tensors.lifetimes import reuse_distances, vitality
    from hmd.tensors.trace import TensorKind

    life = vitality(trace)
    seconds, (distances, sizes) = life.periods.seconds, reuse_distances(trace)
    # The median byte that is used again, not the median use: most uses may be of scalars.
    order = np.argsort(distances, kind="stable")
    middle = np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2)
    largest = np.argsort(-trace.tensor_bytes, kind="stable")[:_LARGEST]
    return {
        "name": trace.name,
        "source": trace.source,
        "kernels": trace.kernels,
        "tensors": trace.tensors,
        "seconds": trace.ideal_seconds,
        "peak_bytes": life.peak_bytes,
        "working_set_bytes": int(life.working_bytes.max()),
        "inactive_periods": len(seconds),
        "median_inactive_seconds": float(np.median(seconds)) if len(seconds) else None,
        "median_reuse_distance_bytes": int(distances[order[middle]]) if len(order) else None,
        "kernel_times": trace.device,
        "largest": [
            {
                "tensor": each,
                "name": trace.tensor_name(each),
                "kind": TensorKind(trace.tensor_kind[each]).name.lower(),
                "bytes": int(trace.tensor_bytes[each]),
            }
            for each in largest.tolist()
        ],
        "kinds": {
            kind.name.lower(): {
                "tensors": int((trace.tensor_kind == kind).sum()),
                "bytes": int(trace.tensor_bytes[trace.tensor_kind == kind].sum()),
            }
            for kind in TensorKind
            if (trace.tensor_kind == kind).any()
        },
    }


def _print(document: dict[str, Any]) -> None:
    rows = [
        ("kernels", format_count(document["kernels"])),
        ("kernel times of", document["kernel_times"] or "-"),
        ("tensors", format_count(document["tensors"])),
        ("step with unlimited fast memory", format_seconds(document["seconds"])),
        ("peak", format_bytes(document["peak_bytes"])),
        ("largest kernel", format_bytes(document["working_set_bytes"])),
        ("inactive periods", format_count(document["inactive_periods"])),
        ("median inactive period", format_seconds(document["median_inactive_seconds"])),
        ("median reuse distance of a byte", format_bytes(document["median_reuse_distance_bytes"])),
    ]
    print_table(("quantity", "value"), rows, title=document["name"], right=("value",))
    kinds = (
        (name, format_count(row["tensors"]), format_bytes(row["bytes"]))
        for name, row in document["kinds"].items()
    )
    print_table(("kind", "tensors", "bytes"), kinds, right=("tensors", "bytes"))
    columns = ("tensor", "name", "kind", "bytes")
    named = [
        (str(row["tensor"]), row["name"], row["kind"], format_bytes(row["bytes"]))
        for row in document["largest"]
    ]
    print_table(columns, named, title="largest tensors", right=("tensor", "bytes"))
