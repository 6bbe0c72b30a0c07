# SPDX-License-Identifier: MIT
"""What the daemon costs programs; writes build/daemon_cost.json.

    python -m bench.compare.daemon_cost [PROGRAM,...] [--policy none] [--ratio 1:16] [--pairs 5]
                                        [-o docs/results/daemon_cost.json]

In one boot each program, of one thread, runs by turns next to the daemon at work and next to the
daemon stopped by SIGSTOP without sampling. The policy ``none`` shows what watching costs,
``benefit`` on programs that no move can help what else it does. Runs of one boot get much the same
frames. Frames matter more than the daemon: between boots, and after the daemon has ended, a stream
differs by a tenth, because lines leave the cache in another order and the media writes more of its
granules. A program's sleep counts while another CPU is busy, and a sleep has many causes (I/O, a
page that moves, a lock of its address space that the daemon holds): a loop of the least priority
keeps the services' CPU busy, so that all sleep counts next to both. The cost is the ratio of the
medians. A boot takes four minutes, a pair of runs one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.compare.comparison_case import (
    ComparisonCase,
    ComparisonTrial,
    compared_digest,
    compared_program,
    run_trial,
)
from bench.compare.guest_services import GuestDaemon, running_daemon
from bench.compare.policies import FOLDER, ROOT, SUITE
from bench.compare.systems import hmd_with
from bench.compare.testbed import FIRST_TOUCH, Testbed, footprint_bytes, stage
from bench.documents.markdown import measured_with
from bench.suite.inputs import prepare
from hmd.base.errors import ConfigError, HmdError
from hmd.base.units import MIB
from hmd.emulate.demo.measure import PROGRAM_CPU, SERVICE_CPU, service
from hmd.emulate.vm.guest import Command
from hmd.emulate.vm.images import warm_kernels

OUTPUT = ROOT / "build" / "daemon_cost.json"


@dataclass(frozen=True, slots=True)
class CostRun:
    """One run: modelled seconds, those of sampling among them, and MiB that CPUs moved.

    ``seconds`` contain ``asleep_seconds``. ``program_mib`` and ``daemon_mib`` are reads and writes
    of both nodes by the CPU of the program and by that of the daemon, which has all other services.
    """

    daemon: str
    seconds: float
    asleep_seconds: float
    sampling_seconds: float
    guest_seconds: float
    program_mib: float
    daemon_mib: float


def main() -> int:
    """Run the pairs; write and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="?", default="memcopy", help="of one thread (memcopy)")
    parser.add_argument("--policy", default="none", help="of the daemon (none)")
    parser.add_argument("--ratio", default="1:16", help="fast memory to the rest (1:16)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT)
    args = parser.parse_args()
    if args.pairs < 1:
        parser.error("--pairs: take 1 or more")
    names = args.programs.split(",")
    try:
        runs = measured(names, args.policy, args.ratio, args.pairs)
    except HmdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    programs = {name: summary(found) for name, found in runs.items()}
    document = {
        **measured_with(),
        "policy": args.policy,
        "ratio": args.ratio,
        "programs": programs,
        "worst": max(found["cost"] for found in programs.values()),
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    for name, found in programs.items():
        print(
            f"{name} next to the daemon: {found['cost']:+.2%}, samples {found['sampling']:.2%} "
            f"of its time"
        )
    print(f"written: {args.output}")
    return 0


def measured(names: Sequence[str], policy: str, ratio: str, pairs: int) -> dict[str, list[CostRun]]:
    """Return the runs of programs of one thread by turns; HmdError where one fails."""
    programs = {name: compared_program(name) for name in names}
    for name, program in programs.items():
        if program.threads > 1:
            raise ConfigError(f"{name} has {program.threads} threads: take a program of one")
    commands = {name: prepare(program, SUITE / "inputs") for name, program in programs.items()}
    runs: dict[str, list[CostRun]] = {}
    warm_kernels()
    with (
        stage(list(commands.values()), FOLDER / "share") as ready,
        running_daemon(ready, policy) as daemon,
        _service_cpu_busy(ready),
    ):
        for name, command in commands.items():
            footprint = footprint_bytes(
                name,
                compared_digest(name),
                partial(prepare, programs[name], SUITE / "inputs"),
                FOLDER,
            )
            fast = ComparisonCase(name, ratio, hmd_with(policy).name).fast_bytes(footprint)
            # QEMU translates the daemon's code.
            run_trial(ready, command, FIRST_TOUCH, fast, service=daemon.moving())
            runs[name] = []
            for _ in range(pairs):
                runs[name].append(_run(ready, command, fast, daemon, at_work=True))
                runs[name].append(_run(ready, command, fast, daemon, at_work=False))
    return runs


def _run(
    ready: Testbed, command: Command, fast: int | None, daemon: GuestDaemon, *, at_work: bool
) -> CostRun:
    before = [_counted(ready, cpu) for cpu in (PROGRAM_CPU, SERVICE_CPU)]
    with nullcontext() if at_work else daemon.stopped():
        service = daemon.moving() if at_work else None
        trial: ComparisonTrial = run_trial(ready, command, FIRST_TOUCH, fast, service=service)
    program, services = (
        [after - earlier for after, earlier in zip(_counted(ready, cpu), counted, strict=True)]
        for cpu, counted in zip((PROGRAM_CPU, SERVICE_CPU), before, strict=True)
    )
    run = CostRun(
        daemon="at work" if at_work else "stopped",
        seconds=trial.modelled_seconds,
        asleep_seconds=trial.asleep_seconds or 0.0,
        sampling_seconds=program[1] * 1e-12,
        guest_seconds=trial.guest_seconds,
        program_mib=program[0] / MIB,
        daemon_mib=services[0] / MIB,
    )
    print(
        f"{command.argv[0]}, {run.daemon}: {run.seconds:.4f} s modelled, "
        f"{run.asleep_seconds:.4f} s asleep, in {run.guest_seconds:.0f} s, "
        f"{run.sampling_seconds * 1e3:.2f} ms of samples, "
        f"{run.program_mib:,.0f} MiB by its CPU, {run.daemon_mib:,.1f} MiB by the daemon's",
        file=sys.stderr,
        flush=True,
    )
    return run


@contextmanager
def _service_cpu_busy(ready: Testbed) -> Iterator[None]:
    """Keep the services' CPU from halting, by a loop that leaves it to all others."""
    loop = ["chrt", "--idle", "0", "sh", "-c", "while :; do :; done"]
    said = bytearray()
    job = ready.machine.start(service(loop), stdout=said.extend, stderr=said.extend)
    try:
        yield
    finally:
        job.kill()


def _counted(ready: Testbed, cpu: int) -> tuple[int, int]:
    """Return the bytes that a CPU has moved, and its picoseconds of sampling, since the boot."""
    counters = ready.machine.shared.counters(cpu)
    return sum(node.read_bytes + node.write_bytes for node in counters.nodes), counters.sampling_ps


def summary(runs: Sequence[CostRun]) -> dict[str, Any]:
    """Return medians, the cost relative to a program without the daemon, and all its runs.

    ``busy_cost`` leaves sleep out, most of which is I/O of the program.
    """
    groups = [[run for run in runs if run.daemon == label] for label in ("at work", "stopped")]
    working, alone = groups
    seconds = [median(run.seconds for run in group) for group in groups]
    busy = [median(run.seconds - run.asleep_seconds for run in group) for group in groups]
    asleep = [median(run.asleep_seconds for run in group) for group in groups]
    return {
        "seconds": {working[0].daemon: seconds[0], alone[0].daemon: seconds[1]},
        "asleep": {working[0].daemon: asleep[0], alone[0].daemon: asleep[1]},
        "cost": seconds[0] / seconds[1] - 1,
        "busy_cost": busy[0] / busy[1] - 1,
        "sampling": median(run.sampling_seconds / run.seconds for run in working),
        "daemon_mib": median(run.daemon_mib for run in working),
        "runs": [asdict(run) for run in runs],
    }


if __name__ == "__main__":
    sys.exit(main())
