"""hmd record in the guest: a program placed whole on each tier, its misses sampled by the PMU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hmd.emulate.assets import compile_static
from hmd.emulate.boot import Machine
from hmd.emulate.demo.hotset import INCLUDES, SOURCE
from hmd.machine.process import PAGE_BYTES
from hmd.trace.placement import pages_of
from hmd.trace.reader import read_trace
from hmd.trace.trace import Trace

CHECKOUT = Path(__file__).parents[2]
MIB = 1 << 20
FOOTPRINT = 8 * MIB

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", params=["fast", "slow"])
def trace(request: pytest.FixtureRequest, machine: Machine, machine_share: Path) -> Trace:
    """The program's run on a tier; ``about["tier"]`` says which."""
    path = machine_share / f"{request.param}.hmdt"
    words = ["record", "--json", "--tier", request.param, "--period", "101", "-o", str(path), "--"]
    program = [str(compile_static(SOURCE, INCLUDES)), "--hot=4M", f"--footprint={FOOTPRINT}"]
    machine.start_model()
    try:
        done = machine.run(
            [sys.executable, "-m", "hmd", *words, *program, "--seconds=8"],
            cwd=CHECKOUT,
            timeout=400,
        )
    finally:
        machine.stop_model()
    assert done.returncode == 0, done.stderr
    assert '"integrity_ok": true' in done.stdout
    trace = read_trace(path)
    assert json.loads(done.stderr)["samples"] == len(trace.samples)
    return trace


def buffer_of(trace: Trace) -> tuple[int, int]:
    """Return where the program's memory is: the largest mapping without a name."""
    last = trace.mappings[-1]
    nameless = np.array([path == "" for path in last.path])
    largest = int(np.argmax((last.end - last.start) * nameless))
    return int(last.start[largest]), int(last.end[largest])


def test_all_of_it_lies_on_its_tier(trace: Trace) -> None:
    node = 0 if trace.about["tier"] == "fast" else 1
    start, end = buffer_of(trace)
    found = [pages_of(change) for change in trace.placement]
    page = np.concatenate([p for p, _ in found])
    where = np.concatenate([n for _, n in found])
    inside = (page >= start) & (page < end) & (where >= 0)
    assert len(np.unique(page[inside])) >= FOOTPRINT // PAGE_BYTES
    assert set(where[inside].tolist()) == {node}


def test_samples_are_of_its_memory_and_know_their_latency(trace: Trace) -> None:
    start, end = buffer_of(trace)
    address = trace.samples.address
    inside = (address >= start) & (address < end)
    assert len(address) > 200
    # The rest is its start: the kernel's loader, its stack.
    assert inside.mean() > 0.9, np.unique(address[~inside] >> np.uint64(21), return_counts=True)
    latency = float(np.median(trace.samples.weight_ns[inside & (trace.samples.weight_ns > 0)]))
    slow = trace.about["tier"] == "slow"
    assert (latency > 450) == slow, latency


def test_times_lie_within_the_run(trace: Trace) -> None:
    assert trace.ending is not None
    assert trace.ending.exit_code == 0
    assert 8e9 < trace.runtime_ns < 400e9
    time_ns = trace.samples.time_ns.astype(np.int64)
    assert trace.begin_ns <= time_ns[0]
    assert time_ns[-1] <= trace.begin_ns + trace.runtime_ns + 2e9
    assert np.ptp(time_ns) > 4e9
