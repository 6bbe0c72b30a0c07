"""``hmd emulate``: run a command on an emulated machine with several memory tiers."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hmd.cli.arguments import duration_or_seconds
from hmd.errors import Exit, MissingError, UsageError

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.emulate.model_params import ModelPart
    from hmd.emulate.preset import Preset
    from hmd.emulate.virtual_machine.boot import Machine
    from hmd.emulate.virtual_machine.guest_agent import Job

TIMED_OUT = 124
"""The exit code of timeout(1)."""

GRACE_S = 5
"""Time that a guest whose command timed out has to write its shares back."""

DESCRIPTION = """\
Boot a real Linux kernel on an emulated machine with several NUMA nodes of different speed, and run
COMMAND on it. The guest sees this machine's files; what it writes is discarded, except in --rw
folders. Needs no PMU, no second node and no virtualisation support. Output, exit code and standard
input of COMMAND are as if it ran here.
"""

EXAMPLES = """\
examples:
  hmd emulate --list                                     the available machines
  hmd emulate -- numactl --hardware                      DRAM and Optane, 1 GiB each, 2 CPUs
  hmd emulate --preset dram-cxl -- numactl -m 1 ./a.out  all memory of ./a.out on CXL
  hmd emulate --node size=512MiB,cpus=0-3 --node size=2GiB,read-latency=400 -- ./a.out
  hmd emulate --json counters.json --rw "$PWD" --timeout 10min -- make check
  hmd emulate --without prefetch -- ./a.out              leave out a part of the timing model
  hmd emulate --calibrate                                measure the machine against its preset
  hmd emulate --counters --json                          in the guest: current counters

environment:
  HMD_MACHINE_DIR   the kernel: a folder with boot/vmlinuz-VERSION and lib/modules/VERSION
  HMD_CACHE_DIR     where programs compiled for the guest are kept

exit codes: that of COMMAND; 124 if --timeout ended it; 128+N if signal N did; those of 'hmd --help'
if the machine did not boot.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd emulate``."""
    parser = subparsers.add_parser(
        "emulate",
        help="run a command on an emulated machine with two memory tiers",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        usage="%(prog)s [options] -- COMMAND [ARGUMENT ...]",
    )
    _add_actions(parser)
    _add_machine(parser)
    _add_command(parser)
    parser.set_defaults(func=run)


def _add_actions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("instead of a command").add_mutually_exclusive_group()
    group.add_argument("--list", action="store_true", help="print the presets and their sources")
    group.add_argument(
        "--calibrate",
        action="store_true",
        help="compare latency and bandwidth measured in the guest with the preset's; exits with 1 "
        "if a figure is out of bounds",
    )
    group.add_argument(
        "--counters", action="store_true", help="in an emulated machine: print its current counters"
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machine")
    group.add_argument(
        "--preset", default="dram-pm", metavar="NAME|FILE", help="machine (default: dram-pm)"
    )
    group.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="a node instead of the preset's; may be repeated. Fields: name, size (1GiB), cpus "
        "(0-1, or none), read-latency and write-latency (ns), read-bandwidth and "
        "write-bandwidth (GB/s), granularity (bytes); omitted fields are the preset's",
    )
    group.add_argument(
        "--cpus", type=int, metavar="N", help="number of CPUs (default: the preset's)"
    )
    group.add_argument(
        "--parts",
        metavar="PART,...",
        help="parts of the timing model: cache, mlp, prefetch, bandwidth, kernel, sampling, "
        "tlb, shootdown (default: all)",
    )
    group.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PART",
        help="leave out this part of the timing model; may be repeated",
    )
    group.add_argument(
        "--no-model",
        action="store_true",
        help="no timing model: memory of one speed, and the guest as fast as possible",
    )
    group.add_argument(
        "--dilation",
        type=float,
        metavar="FACTOR",
        help="guest time per modelled time (default: 20, with --calibrate what the preset's "
        "streams need; 0: no pacing, modelled time only)",
    )
    group.add_argument(
        "--append", action="append", default=[], metavar="TEXT", help="kernel parameters to add"
    )


def _add_command(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the command")
    group.add_argument(
        "--cwd", type=Path, metavar="DIR", help="working directory (default: the current one)"
    )
    group.add_argument(
        "--rw",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="folder that the guest may write to; may be repeated",
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable to add; may be repeated",
    )
    group.add_argument(
        "--timeout",
        type=duration_or_seconds,
        metavar="TIME",
        help="end the command after this time, as in 10min or 600 (seconds), without the boot",
    )
    group.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write counters and times as JSON at the end (without FILE: to standard output)",
    )
    group.add_argument(
        "--verbose", action="store_true", help="print the guest kernel's log on standard error"
    )
    group.add_argument("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    if args.json not in (None, "-"):
        from hmd.finished_file import check_writable

        check_writable(Path(args.json))
    if args.list:
        return _list(args)
    if args.counters:
        return _counters(args)
    if args.calibrate:
        return _calibrate(args)
    if not args.command:
        raise UsageError("no command: hmd emulate [options] -- COMMAND")
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    from hmd.emulate.virtual_machine.boot import DEFAULT_DILATION, Machine

    _check_folders(args)
    signal.signal(signal.SIGTERM, _terminate)
    dilation = _dilation(args)
    machine = Machine(
        _preset(args),
        share=args.rw,
        console=sys.stderr.fileno() if args.verbose else None,
        append=args.append,
        parts=_parts(args),
        dilation=DEFAULT_DILATION if dilation is None else dilation,
    )
    environment = dict(os.environ) | dict(_assignment(text) for text in args.env)
    with machine:
        code, seconds = _command(machine, args, environment)
        if args.json:
            _write_json(args.json, _document(machine, code, seconds, args.no_model))
        if code is None:
            machine.stop(flush_s=GRACE_S)
    if code is None:
        sys.stderr.write(f"hmd: the command had not ended after {args.timeout:g} s\n")
        return TIMED_OUT
    return code


def _command(
    machine: Machine, args: argparse.Namespace, environment: dict[str, str]
) -> tuple[int | None, float]:
    """Run the command; its exit code, None at the timeout, and the guest seconds it took."""
    from hmd.emulate.virtual_machine.boot import exit_code

    if not args.no_model:
        machine.start_model()
    began = time.monotonic()
    job = machine.start(
        args.command,
        cwd=args.cwd.resolve() if args.cwd else None,
        env=environment,
        stdin=True,
        stdout=lambda data: _write(1, data),
        stderr=lambda data: _write(2, data),
    )
    threading.Thread(target=_feed, args=(job,), daemon=True).start()
    try:
        return exit_code(job.wait(args.timeout)), time.monotonic() - began
    except subprocess.TimeoutExpired:
        job.kill()
        return None, time.monotonic() - began


def _feed(job: Job) -> None:
    """Forward standard input as the command reads it."""
    try:
        while data := os.read(0, 65536):
            job.write(data)
    except OSError:  # closed, or a terminal of another session
        pass
    job.close_stdin()


def _write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        os.kill(os.getpid(), signal.SIGTERM)


def _terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _document(machine: Machine, code: int | None, seconds: float, bare: bool) -> dict[str, Any]:
    from hmd.emulate.machine_report import counters_document

    document: dict[str, Any] = {
        "preset": machine.preset.name,
        "exit_code": TIMED_OUT if code is None else code,
        "timed_out": code is None,
        "guest_s": seconds,
    }
    if not bare:
        machine.stop_model()
        document |= counters_document(machine.shared, [n.name for n in machine.preset.nodes])
    return document


def _check_folders(args: argparse.Namespace) -> None:
    """Raise UsageError for a folder that is none."""
    folders = [("--rw", path) for path in args.rw]
    folders += [("--cwd", args.cwd)] if args.cwd else []
    for option, path in folders:
        if not path.is_dir():
            raise UsageError(f"{option} {path}: no such folder")


def _write_json(target: str, document: dict[str, Any]) -> None:
    import json

    from hmd.cli.output import print_json
    from hmd.finished_file import write_finished

    if target == "-":
        print_json(document)
    else:
        write_finished(Path(target), json.dumps(document, indent=2) + "\n")


def _preset(args: argparse.Namespace) -> Preset:
    from hmd.emulate.preset import load
    from hmd.emulate.preset_overrides import with_cpus, with_nodes

    preset = load(args.preset)
    if args.node:
        preset = with_nodes(preset, args.node)
    return preset if args.cpus is None else with_cpus(preset, args.cpus)


def _parts(args: argparse.Namespace) -> ModelPart | None:
    from hmd.emulate.model_params import ModelPart
    from hmd.emulate.timing_params import parts_named

    if args.no_model:
        return None
    parts = (
        ModelPart.ALL
        if args.parts is None
        else parts_named([p for p in args.parts.split(",") if p])
    )
    return parts & ~parts_named(args.without)


def _dilation(args: argparse.Namespace) -> float | None:
    if args.dilation is None:
        return None
    if not 0 <= args.dilation <= 10_000:
        raise UsageError("--dilation: take 0 to 10000")
    return float(args.dilation)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env: {text!r} is not NAME=VALUE")
    return name, value


def _list(args: argparse.Namespace) -> int:
    from hmd.cli.output import print_json
    from hmd.cli.tables.emulate_tables import print_presets
    from hmd.emulate.preset import load, preset_names

    presets = [load(name) for name in preset_names()]
    if args.json:
        print_json([preset.model_dump() for preset in presets])
    else:
        print_presets(presets)
    return Exit.OK


def _counters(args: argparse.Namespace) -> int:
    from hmd.cli.output import print_json
    from hmd.cli.tables.emulate_tables import print_counters
    from hmd.emulate.machine_report import counters_document
    from hmd.machine.plugin_memory import SharedMemory, find_device

    device = find_device()
    if device is None:
        raise MissingError("not in an emulated machine with a timing model: see hmd emulate")
    with SharedMemory.open(device) as shared:
        document = counters_document(shared)
    if args.json:
        print_json(document)
    else:
        print_counters(document)
    return Exit.OK


def _calibrate(args: argparse.Namespace) -> int:
    from hmd.cli.tables.emulate_tables import print_calibration
    from hmd.emulate.calibration import calibrate

    if args.parts is not None or args.without or args.no_model:
        raise UsageError("--calibrate measures the whole timing model: leave no part of it out")
    report = calibrate(
        _preset(args),
        dilation=_dilation(args),
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if args.json:
        _write_json(args.json, report.document())
    else:
        print_calibration(report)
    return Exit.OK if report.within_bounds else Exit.FAILURE
