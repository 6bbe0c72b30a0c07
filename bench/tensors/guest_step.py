# SPDX-License-Identifier: MIT
"""Training steps in the emulated machine, where kernels compute from DRAM and slow memory.

    python -m bench.tensors.guest_step [--publish] [MODEL...] [SHARE...] [SYSTEM...]

PyTorch itself takes 290 MiB and five minutes of a guest's time to be imported, and a step a hundred
times its own: bench/workloads/tensor_step.c replays recorded steps of it instead, scaled to
``PEAK_BYTES``. It passes over the tensors of each kernel in their order, in one mapping with the
addresses that the arena of :mod:`hmd.torch.tiering` would give, and sends its hints.
Between its passes a kernel computes for as long as it would on a socket of 24 cores, in relation to
what its passes take (:mod:`bench.tensors.training_shapes`).

The machine's nodes have the share of their bandwidth that one core's is of a socket's: many cores
wait for bandwidth where one would not. Systems are those of :mod:`bench.compare.systems`, with
settings of a policy as in ``hmd:tensors,move_ns=500``; all-fast is the ideal. Rows go to
build/deep-learning-guest.json, with ``--publish`` also to docs/results/deep-learning.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.compare import guest_services
from bench.compare.comparison_case import run_trial
from bench.compare.systems import ALL_FAST, BootService, System, system_named
from bench.compare.testbed import PRESET, Testbed, stage
from bench.documents.markdown import commit
from bench.tensors.training_memory import compact
from bench.tensors.training_shapes import FOLDER, on_socket
from hmd.base.paths import SOCKET
from hmd.base.units import MIB, PAGE_BYTES
from hmd.emulate.assets import compile_static
from hmd.emulate.preset import Preset, load
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command
from hmd.emulate.vm.images import warm_kernels
from hmd.tensors.lifetimes import vitality
from hmd.tensors.memory_system import STRICT, load_system
from hmd.tensors.move_plan import use_runs
from hmd.tensors.planner import StepProblem
from hmd.tensors.planners import planner_named
from hmd.tensors.trace import Ints, TensorTrace, read_trace

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT: Final = ROOT / "build/deep-learning-guest.json"
PUBLISHED: Final = ROOT / "docs/results/deep-learning.json"
PROGRAM: Final = ROOT / "bench/workloads/tensor_step.c"
MODELS: Final = {
    "transformer": "transformer_decoder",
    "resnet": "residual_network",
    "lstm": "recurrent_network",
}
SYSTEMS: Final = ("first-touch", "kernel-tiering", "damon", "hmd:benefit", "hmd:tensors")
SHARES: Final = (0.2, 0.1)
WHERE: Final = "emulated machine, dram-pm, a core's share of the bandwidth"

SOCKET_CORES: Final = 105 / 7.6
"""How many times slower one core of the emulated machine is than a socket: its twelve line fill
buffers carry 7.6 GB/s from DRAM. It computes as much slower."""

SPIN_NS: Final = 0.2
"""A round of the program's loop that computes: two instructions of the timing model."""

PEAK_BYTES: Final = 24 * MIB
STEPS: Final = 6
ADDRESS: Final = 0x2000_0000_0000
_PARTS: Final = 1 << 20
_USES_PER_HINT: Final = 48
_MAX_USES: Final = 1024
_PLANNED: Final = 0.9
"""Part of the fast memory that plans use: the rest is for what is not in the step."""


def scaled_step(model: str, peak_bytes: int = PEAK_BYTES) -> TensorTrace:
    """Return a recorded step whose tensors are as much smaller as its peak is."""
    system = load_system("dram-pm")
    trace = read_trace(FOLDER / f"{MODELS[model]}.npz")
    factor = peak_bytes / vitality(trace).peak_bytes
    size = np.maximum((trace.tensor_bytes * factor).astype(np.int64), 64)
    ticks = (trace.kernel_ticks * factor).astype(np.int64)
    return on_socket(replace(trace, tensor_bytes=size, kernel_ticks=ticks), system)


def computing_ns(trace: TensorTrace) -> Ints:
    """Return what each kernel computes beyond its passes over memory, in ns of one core, (K,)."""
    none = np.zeros(trace.kernels, np.int64)
    passes = on_socket(replace(trace, kernel_ticks=none), load_system("dram-pm"))
    beyond = np.maximum(trace.kernel_ticks - passes.kernel_ticks, 0)
    return np.asarray(beyond * SOCKET_CORES, np.int64)


def layout(trace: TensorTrace) -> tuple[Ints, int]:
    """Return the offset of each tensor, (T,), and the bytes of all: first fit in whole pages."""
    life = vitality(trace)
    pages = -(-trace.tensor_bytes // PAGE_BYTES)
    birth = np.where(trace.tensor_persistent, -1, life.first)
    death = np.where(trace.tensor_persistent, trace.kernels, np.maximum(life.death, life.last + 1))
    offset = np.zeros(trace.tensors, np.int64)
    taken: list[tuple[int, int, int]] = []
    most = 0
    for tensor in np.lexsort((np.arange(trace.tensors), birth)).tolist():
        taken = sorted(each for each in taken if each[2] > birth[tensor])
        at = 0
        for first, end, _ in taken:
            if first - at >= pages[tensor]:
                break
            at = max(at, end)
        taken.append((at, at + int(pages[tensor]), int(death[tensor])))
        offset[tensor] = at * PAGE_BYTES
        most = max(most, at + int(pages[tensor]))
    return offset, most * PAGE_BYTES


def hint_lines(trace: TensorTrace, offset: Ints, capacity: int, planner: str) -> list[bytes]:
    """Return the begins of the hints of a plan for ``capacity`` bytes of fast memory."""
    system = load_system("dram-pm").changed({"dram": int(capacity * _PLANNED)})
    problem = StepProblem(trace, system, STRICT)
    plan = planner_named(planner).plan(problem)
    result = problem.price(plan)
    ends = np.append(0, result.end) / result.end[-1]
    uses = []
    for run in use_runs(trace, plan):
        size = run.fast_bytes // PAGE_BYTES * PAGE_BYTES
        if size:
            begin = int(ends[run.uses[0][0]] * _PARTS)
            end = max(int(ends[run.uses[-1][0] + 1] * _PARTS), begin + 1)
            passes = sum(each for _, each in run.uses)
            address = ADDRESS + int(offset[run.tensor])
            uses.append([address, size, begin, min(end, _PARTS), passes * PAGE_BYTES // 64])
    uses = sorted(uses, key=lambda use: -use[1] * use[4])[:_MAX_USES]
    lines = []
    for first in range(0, len(uses), _USES_PER_HINT):
        hint = {"command": "hint", "plan": 1, "first": first}
        text = json.dumps({**hint, "uses": uses[first : first + _USES_PER_HINT]})
        lines.append(text.replace(" ", "")[:-1].encode() + b",")
    return lines


def write_step(trace: TensorTrace, capacity: int, path: Path, planner: str = "portfolio") -> int:
    """Write the file that the program reads; return the bytes of its mapping."""
    offset, size = layout(trace)
    lines = hint_lines(trace, offset, capacity, planner)
    uses = np.stack(
        [offset[trace.use_tensor], trace.tensor_bytes[trace.use_tensor], trace.use_mode], axis=1
    )
    head = [ADDRESS, size, trace.kernels, len(uses), len(lines)]
    kernels = np.stack([trace.use_start[1:], (computing_ns(trace) / SPIN_NS).astype(int)], axis=1)
    parts = (np.array(head), kernels, uses)
    data = b"".join(part.astype(np.int64).tobytes() for part in parts)
    for line in lines:
        padded = line + b"\0" * (8 - len(line) % 8)
        data += np.int64(len(padded)).tobytes() + padded
    path.write_bytes(data)
    return size


def command_of(file: Path, steps: int = STEPS) -> Command:
    """Return the program with a step file."""
    program = compile_static(PROGRAM)
    return Command(
        argv=(str(program), str(file), str(steps), str(SOCKET)),
        env=BASE_ENVIRONMENT,
        expect="tensor_step done",
    )


def service_of(
    system: System,
    settings: Mapping[str, float],
    ready: Testbed,
    running: guest_services.GuestDaemon | None,
) -> AbstractContextManager[object]:
    """Return what runs beside the program."""
    if system.service is BootService.DAMON:
        return guest_services.running_damon(ready)
    if running is None:
        return nullcontext()
    running.use(system.policy, settings)
    return running.moving()


def share_of_socket() -> Preset:
    """Return the machine with a core's share of the bandwidth that its nodes have."""
    preset = load(PRESET)
    nodes = tuple(
        node.model_copy(
            update={
                name: getattr(node, name) / SOCKET_CORES
                for name in ("read_bandwidth_gbps", "write_bandwidth_gbps")
            }
        )
        for node in preset.nodes
    )
    return preset.model_copy(update={"nodes": nodes})


def system_of(name: str) -> tuple[str, System, dict[str, float]]:
    """Return a system, and settings of its policy, of ``hmd:tensors`` or ``hmd:tensors,key=1``."""
    plain, *settings = name.split(",")
    pairs = (each.partition("=") for each in settings)
    return name, system_named(plain), {key: float(value) for key, _, value in pairs}


def measure(
    models: list[str], shares: list[float], names: list[str], folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield a row per model, share and system; all-fast is measured first."""
    share_folder = folder / "share"
    share_folder.mkdir(parents=True, exist_ok=True)
    files: dict[tuple[str, float], tuple[Path, int]] = {}
    for model in models:
        for share in shares:
            path = share_folder / f"{model}-{share:g}.step"
            files[model, share] = (
                path,
                write_step(scaled_step(model), int(share * PEAK_BYTES), path),
            )
    commands = {key: command_of(path) for key, (path, _) in files.items()}
    systems = [(ALL_FAST.name, ALL_FAST, dict[str, float]()), *map(system_of, names)]
    ideal: dict[str, float] = {}
    for service in BootService:
        chosen = [each for each in systems if each[1].service is service]
        if not chosen:
            continue
        if service is BootService.HMD:
            warm_kernels()
        with stage(list(commands.values()), share_folder, machine=share_of_socket()) as ready:
            daemon: AbstractContextManager[guest_services.GuestDaemon | None] = nullcontext()
            if service is BootService.HMD:
                daemon = guest_services.running_daemon(ready, chosen[0][1].policy)
            with daemon as running:
                for name, system, settings in chosen:
                    for (model, share), command in commands.items():
                        if system is ALL_FAST and model in ideal:
                            continue
                        size = files[model, share][1]
                        fast = int(share * size) if system.scarce else None
                        hints = running.hints() if running else 0
                        with ready.having(system.knobs):
                            trial = run_trial(
                                ready, command, system.start, fast,
                                service=service_of(system, settings, ready, running),
                            )  # fmt: skip
                        if system is ALL_FAST:
                            ideal[model] = trial.modelled_seconds
                        row = {
                            "model": model,
                            "where": WHERE,
                            "fast_share": share if system.scarce else 1.0,
                            "system": name,
                            "seconds": trial.modelled_seconds,
                            "ideal_seconds": ideal[model],
                            "peak_bytes": size,
                            "loss_identical": None,
                            "moved_bytes": trial.migrated_bytes,
                            "fast_misses": trial.fast_share,
                            "hints": (running.hints() if running else 0) - hints,
                            "guest_seconds": trial.guest_seconds,
                            "commit": commit(),
                        }
                        print(
                            f"{model:12} {row['fast_share']:5.0%} {name:26}"
                            f" {ideal[model] / trial.modelled_seconds:6.1%} of ideal,"
                            f" {trial.fast_share:.0%} of misses fast,"
                            f" {trial.migrated_bytes >> 20} MiB moved,"
                            f" {trial.guest_seconds:.0f} s",
                            flush=True,
                        )
                        yield row


def keep(row: dict[str, Any], path: Path) -> None:
    """Put a row into a document, in place of that of the same case."""
    document = json.loads(path.read_text()) if path.exists() else {"rows": []}
    case = ("model", "where", "fast_share", "system")
    others = [
        each for each in document["rows"] if any(each.get(name) != row[name] for name in case)
    ]
    document["rows"] = [*others, row]
    text = compact(document) if "memory" in document else json.dumps(document, indent=1)
    path.write_text(text + "\n")


def main() -> int:
    """Measure what is named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="MODEL|SHARE|SYSTEM")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    models = [word for word in args.words if word in MODELS]
    shares = [float(word) for word in args.words if word.replace(".", "").isdigit()]
    names = [word for word in args.words if word not in MODELS and not word[0].isdigit()]
    OUTPUT.parent.mkdir(exist_ok=True)
    for row in measure(
        models or list(MODELS), shares or list(SHARES), names or list(SYSTEMS),
        ROOT / "build/guest-step",
    ):  # fmt: skip
        for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
            keep(row, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
