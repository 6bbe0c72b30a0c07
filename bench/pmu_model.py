# SPDX-License-Identifier: MIT
"""What it costs that load latency counts loads which a tag has followed, and what scaling brings.

    python -m bench.pmu_model -o docs/results/pmu_model.json

In the emulated machine one program loads as often from a region by dependent loads as from another
by independent ones (bench/workloads/two_patterns.c), and is sampled in each of these ways:

- counted: every miss is counted (MEM_LOAD_RETIRED.L3_MISS, ``loads: miss``);
- tagged: tagged loads, each sample taken for ``period`` misses;
- scaled: the same, scaled by the counter of misses beside it (``loads: latency``).

Per way: misses that samples stand for over misses that the machine counted (the estimator's and the
savings' error), those of the dependent region over those of the independent one (1: as it is), and
the share of the loads of a third of the pages, the hottest by samples, over that of the third that
is hottest (what a policy loses that has room for a third).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.documents.markdown import measured_with
from hmd.emulate.assets import compile_static
from hmd.emulate.preset import load, with_nodes
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import guest_environment, warm_kernels
from hmd.linux.emulator_memory import SharedMemory, find_device
from hmd.linux.procfs import identify
from hmd.sample.access_batch import Kind
from hmd.sample.emulated_pebs import open_emulated
from hmd.sample.sampler import SampleSettings

CHECKOUT = Path(__file__).parents[1]
SOURCE = Path(__file__).with_name("workloads") / "two_patterns.c"
PROGRAM_MIB = 12
PERIOD = {"counted": 199, "tagged": 7, "scaled": 7}
"""Such that each way has some ten thousand samples."""
SECONDS = 5.0
PAGE = 4096


def main() -> None:
    """Measure on the host, or as a part of it in the guest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--guest", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.guest:
        print(
            json.dumps({way: measure(way, args.guest[0], args.seconds) for way in args.guest[1:]})
        )
        return
    program = compile_static(SOURCE)
    found = in_guest(program, args.seconds)
    document = {
        **measured_with(),
        "preset": "dram-pm",
        "tag_interval": load("dram-pm").sampling.tag_interval,
        "ways": found,
    }
    text = json.dumps(document, indent=2) + "\n"
    print(text, end="")
    if args.output:
        args.output.write_text(text)


def in_guest(program: Path, seconds: float) -> dict[str, Any]:
    """Return what the ways show, measured in one boot."""
    preset = with_nodes(load("dram-pm"), ["size=640MiB,cpus=0-1", "size=640MiB"])
    warm_kernels()
    words = ["-m", "bench.pmu_model", "--seconds", str(seconds), "--guest", str(program), *PERIOD]
    environment = {**guest_environment(), "PYTHONPATH": str(CHECKOUT)}
    with Machine(preset) as machine:
        machine.start_model()
        done = machine.run(
            [sys.executable, *words], cwd=CHECKOUT, env=environment, timeout=300 + 10 * seconds
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(way: str, program: str, seconds: float) -> dict[str, float]:
    """Sample the program in one way; in the guest."""
    device = find_device()
    assert device is not None
    loads: Literal["miss", "latency"] = "latency" if way == "scaled" else "miss"
    sampler = open_emulated(SampleSettings(period=PERIOD[way], loads=loads))
    words = ["taskset", "-c", "1", program, str(PROGRAM_MIB)]
    with (
        SharedMemory.open(device) as memory,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as popen,
    ):
        if way == "tagged":
            memory.tag_loads(tagged=True)
        assert popen.stdout is not None
        chased, gathered, *lines = map(int, popen.stdout.readline().split())
        process = identify(popen.pid)
        assert process is not None
        heat = np.zeros((2, len(lines)))
        sampler.track([process])
        sampler.read()
        samples, before = 0, memory.vcpu_sum(1, "load_misses")
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(0.2)
            batch = sampler.read()
            taken = batch.kind == Kind.LOAD
            samples += int(taken.sum())
            for number, start in enumerate((chased, gathered)):
                heat[number] += pages_of(
                    batch.address[taken], batch.period[taken], start, len(lines)
                )
        misses = memory.vcpu_sum(1, "load_misses") - before
        sampler.close()
        popen.kill()
    return figures(heat, np.array([lines, lines], np.float64), misses, samples)


def pages_of(
    address: npt.NDArray[np.uint64], weight: npt.NDArray[np.uint32], start: int, pages: int
) -> npt.NDArray[np.float64]:
    """Return the weight of samples per page of a region."""
    number = (address.astype(np.int64) - start) // PAGE
    inside = (number >= 0) & (number < pages)
    return np.bincount(number[inside], weight[inside], minlength=pages).astype(np.float64)


def figures(
    heat: npt.NDArray[np.float64], truth: npt.NDArray[np.float64], misses: int, samples: int
) -> dict[str, float]:
    """Return the figures of sampled and true loads per page, both of shape ``(2, pages)``."""
    third = heat.size // 3
    chosen = np.argsort(-heat.ravel(), kind="stable")[:third]
    best = np.sort(truth.ravel())[::-1][:third].sum()
    return {
        "samples": samples,
        "misses_of_samples": round(float(heat.sum()) / misses, 4),
        "dependent_over_independent": round(float(heat[0].sum() / heat[1].sum()), 3),
        "fast_share_of_best": round(float(truth.ravel()[chosen].sum() / best), 3),
    }


if __name__ == "__main__":
    main()
