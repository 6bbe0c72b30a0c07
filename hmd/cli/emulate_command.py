# SPDX-License-Identifier: MIT
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

from hmd.base.atomic_file import check_writable
from hmd.base.errors import Exit, MissingError, UsageError
from hmd.cli.arguments import number
from hmd.cli.output import (
    console,
    format_bytes,
    format_count,
    print_json,
    print_records,
    write_json,
)

if TYPE_CHECKING:
    from hmd.emulate.preset import Preset
    from hmd.emulate.vm.boot import Machine
    from hmd.emulate.vm.guest import Job

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
  hmd emulate --counters --json                          in the guest: current counters

environment:
  HMD_MACHINE_DIR   the kernel: a folder with boot/vmlinuz-VERSION and lib/modules/VERSION
  HMD_CACHE_DIR     where programs compiled for the guest are kept

exit codes: that of COMMAND; 124 if --timeout ended it; 128+N if signal N did; those of 'hmd --help'
if the machine did not boot.
"""

OPTIONS = """\
instead of a command:
| --list             print the presets and their sources
| --counters         in an emulated machine: print its current counters
the machine:
--preset NAME|FILE = dram-pm
                     machine (default: dram-pm)
--node FIELD=VALUE,... ...
                     a node instead of the preset's; may be repeated. Fields: name, size (1GiB),
                     cpus (0-1, or none), read-latency and write-latency (ns), read-bandwidth and
                     write-bandwidth (GB/s), granularity (bytes); omitted fields are the preset's
--cpus N             number of CPUs (default: the preset's)
--parts PART,...     parts of the timing model: cache, mlp, prefetch, bandwidth, kernel, sampling,
                     tlb, shootdown (default: all)
--without PART ...   leave out this part of the timing model; may be repeated
--no-model           no timing model: memory of one speed, and the guest as fast as possible
--dilation FACTOR    guest time per modelled time (default: 20; 0: no pacing, modelled time only)
--append TEXT ...    kernel parameters to add
the command:
--cwd DIR            working directory (default: the current one)
--rw DIR ...         folder that the guest may write to; may be repeated
--env NAME=VALUE ...  environment variable to add; may be repeated
--timeout TIME       end the command after this time, as in 10min or 600 (seconds), without the boot
--json [FILE]        write counters and times as JSON at the end (without FILE: to standard output)
--verbose            print the guest kernel's log on standard error
[COMMAND ...]        (hidden)
"""

USAGE = "%(prog)s [options] -- COMMAND [ARGUMENT ...]"
TYPES = {"dilation": number(0, 10_000)}


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    if args.json not in (None, "-"):
        check_writable(Path(args.json))
    if args.list:
        _print_presets(args)
    elif args.counters:
        _print_counters(args)
    elif args.command:
        return _run(args)
    else:
        raise UsageError("no command: hmd emulate [options] -- COMMAND")
    return Exit.OK


def _run(args: argparse.Namespace) -> int:
    from hmd.emulate.timing_params import ModelPart, parts_named
    from hmd.emulate.vm.boot import DEFAULT_DILATION, Machine

    for option, path in [*(("--rw", path) for path in args.rw), ("--cwd", args.cwd)]:
        if path is not None and not path.is_dir():
            raise UsageError(f"{option} {path}: no such folder")
    dilation = DEFAULT_DILATION if args.dilation is None else args.dilation
    parts = None
    if not args.no_model:
        parts = ModelPart.ALL & ~parts_named(args.without)
        if args.parts is not None:
            parts &= parts_named([name for name in args.parts.split(",") if name])
    environment = dict(os.environ) | dict(_assignment(text) for text in args.env)
    machine = Machine(
        _preset(args),
        share=args.rw,
        console=sys.stderr.fileno() if args.verbose else None,
        append=args.append,
        parts=parts,
        dilation=dilation,
    )
    signal.signal(signal.SIGTERM, _terminate)
    with machine:
        code, seconds = _command(machine, args, environment)
        if args.json:
            document = _document(machine, code, seconds, with_model=not args.no_model)
            write_json(args.json, document, sys.stdout)
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
    from hmd.emulate.vm.boot import exit_code

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


def _document(
    machine: Machine, code: int | None, seconds: float, *, with_model: bool
) -> dict[str, Any]:
    from hmd.emulate.vm.qemu import counters_document

    document: dict[str, Any] = {
        "preset": machine.preset.name,
        "exit_code": TIMED_OUT if code is None else code,
        "timed_out": code is None,
        "guest_s": seconds,
    }
    if with_model:
        machine.stop_model()
        document |= counters_document(machine.shared, [n.name for n in machine.preset.nodes])
    return document


def _preset(args: argparse.Namespace) -> Preset:
    from hmd.emulate.preset import load, with_cpus, with_nodes

    preset = load(args.preset)
    if args.node:
        preset = with_nodes(preset, args.node)
    return preset if args.cpus is None else with_cpus(preset, args.cpus)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--env: {text!r} is not NAME=VALUE")
    return name, value


def _print_presets(args: argparse.Namespace) -> None:
    from hmd.emulate.preset import load, preset_names

    presets = [load(name) for name in preset_names()]
    if args.json:
        print_json({"presets": [preset.model_dump() for preset in presets]})
        return
    print_records(
        [(preset, node) for preset in presets for node in preset.nodes],
        {
            "preset": lambda row: row[0].name if row[1] is row[0].nodes[0] else "",
            "node": lambda row: row[1].name,
            "size": lambda row: format_bytes(row[1].size),
            "CPUs": lambda row: ",".join(map(str, row[1].cpus)) or "none",
            "read ns": lambda row: f"{row[1].read_latency_ns:g}",
            "write ns": lambda row: f"{row[1].write_latency_ns:g}",
            "read GB/s": lambda row: f"{row[1].read_bandwidth_gbps:g}",
            "write GB/s": lambda row: f"{row[1].write_bandwidth_gbps:g}",
        },
        texts=2,
    )
    out = console()
    for preset in presets:
        out.print(f"{preset.name}: {preset.description}", style="bold", markup=False)
        for node in preset.nodes:
            out.print(f"  {node.name}: {node.source}", markup=False)


def _print_counters(args: argparse.Namespace) -> None:
    from hmd.emulate.vm.qemu import counters_document
    from hmd.linux.emulator_memory import SharedMemory, find_device

    device = find_device()
    if device is None:
        raise MissingError("not in an emulated machine with a timing model: see hmd emulate")
    with SharedMemory.open(device) as shared:
        document = counters_document(shared)
    if args.json:
        print_json(document)
        return
    print_records(
        document["nodes"],
        {
            "node": lambda node: node["name"],
            "load misses": lambda node: format_count(node["load_misses"]),
            "store misses": lambda node: format_count(node["store_misses"]),
            "prefetched": lambda node: format_count(node["prefetched_lines"]),
            "kernel lines": lambda node: format_count(node["kernel_lines"]),
            "read": lambda node: format_bytes(node["read_bytes"]),
            "written": lambda node: format_bytes(node["write_bytes"]),
            "stalled s": lambda node: f"{node['stall_s']:.4f}",
        },
    )
    console().print(
        f"modelled {document['modelled_s']:.6f} s; the guest's clock runs "
        f"{document['dilation']:g} times as long"
    )
