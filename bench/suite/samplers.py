# SPDX-License-Identifier: MIT
"""Recall of all samplers in the emulated machine; writes build/samplers.json.

    python -m bench.suite.samplers [SECONDS]        time per sampler (60)

Prints the table of docs/reference/samplers.md. Takes about 12 minutes on two cores.

Recall of samplers: how much of a program's hot memory each one finds, versus all misses.

Takes a running machine with room for a recording. ``workloads/graded.c`` runs alone on one CPU, and
one sampler after another on the other. The result per sampler is the rank correlation of sampled
and true heat, the share of the hottest memory that it finds, and its cost. A sampler runs for the
given time and some seconds of warm-up.

``workloads/flush_tlb.c`` shares the program's CPU, because accessed bits are only set again after a
TLB flush.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.documents.markdown import measured_with
from hmd.base.errors import HmdError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.assets import compile_static
from hmd.emulate.preset import load, with_nodes
from hmd.emulate.recordings.recorder import read_recording
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import guest_environment
from hmd.sample.sampler import SamplerName

PROGRAM_CPU = 1
SERVICE_CPU = 0
FOOTPRINT_MIB = 32
BLOCK_KIB = 256
FLUSH_US = 2_000
HOT_SHARE = 0.25
Case = tuple[SamplerName, int]
"""A sampler and its period."""
CASES: tuple[Case, ...] = (
    ("emulated", 97),
    ("emulated", 997),
    ("damon", 1000),
    ("damon", 4000),
    ("faults", 1),
)
"""Samplers of the guest's kernel, with periods for the slow emulated machine."""

_WORKLOADS = Path(__file__).parents[1] / "workloads"
_SAMPLE = Path(__file__).with_name("sample_pages.py")
_START_S = 300.0
_Floats = npt.NDArray[np.float64]

RECORDING_BYTES = 2 << 30

HEAD = """\
| sampler | period | rank correlation | hot memory found | misses covered | CPU | kernel | rows |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a sampler.

    ``correlation`` is Spearman's, of sampled and true heat over all pages, 0 for constant heat.
    ``hot_found`` is the share of the truly hottest quarter among as many pages of the highest
    sampled heat, with ties broken at random; ``misses_covered`` are the misses on those pages over
    the misses on the truly hottest. ``cpu`` and ``kernel_cpu`` are CPU seconds per second in the
    guest, of the reader and of the kernel's thread.
    """

    sampler: str
    period: int
    rows: int
    pages: int
    correlation: float
    hot_found: float
    misses_covered: float
    cpu: float
    kernel_cpu: float
    seconds: float
    misses: int


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """The running program: its pid in the guest, and its pages."""

    pid: int
    first_page: int
    pages: int


def compare(
    machine: Machine,
    share: Path,
    seconds: float,
    checkout: Path,
    env: dict[str, str],
    cases: Sequence[Case] = CASES,
) -> Iterator[Found]:
    """Yield the result of each sampler after ``seconds`` of the guest's clock.

    The guest writes to the folder ``share``; ``env`` is the environment of its Python.
    """
    with program(machine) as running:
        words = [str(running.pid), str(seconds), str(share)]
        asked = [f"{name}:{period}" for name, period in cases]
        guest = _Guest(machine, [*words, *asked], checkout, env)
        try:
            for case, sampled in zip(cases, asked, strict=True):
                guest.expect("ready", _START_S)
                # Python starts and warms up with the model off, which takes a tenth of the time.
                machine.start_model()
                with machine.record_misses(PROGRAM_CPU) as path:
                    guest.go_on()
                    guest.expect("sampled", seconds * 2 + _START_S)
                    count = machine.shared.recorded
                machine.stop_model()
                guest.go_on()
                guest.expect("written", _START_S)
                yield _found(case, running, _truth(running, path, count), share / f"{sampled}.npz")
            guest.end()
        finally:
            guest.kill()


class _Guest:
    """The sampling process in the guest (sample_pages.py), and its output."""

    def __init__(
        self, machine: Machine, words: Sequence[str], checkout: Path, env: dict[str, str]
    ) -> None:
        self._output: queue.Queue[str] = queue.Queue()
        self._line = b""
        self._wrong = bytearray()
        self._job = machine.start(
            ["taskset", "-c", str(SERVICE_CPU), sys.executable, str(_SAMPLE), *words],
            cwd=checkout,
            env=env,
            stdin=True,
            stdout=self._listen,
            stderr=self._wrong.extend,
        )

    def _listen(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._output.put(line.decode())

    def expect(self, word: str, timeout_s: float) -> None:
        """Wait for a word of its output; raises HmdError for another word or none."""
        output, deadline = "nothing", time.monotonic() + timeout_s
        while output == "nothing" and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                output = self._output.get(timeout=0.5)
            if self._job.poll() is not None:
                break
        if output != word:
            wrong = self._wrong.decode(errors="replace").strip()
            raise HmdError(f"sampling in the guest printed {output}, not {word}: {wrong}")

    def go_on(self) -> None:
        """Send a line of input, for which it waits."""
        self._job.write(b"\n")

    def end(self) -> None:
        """Wait until it has ended; raises HmdError where it fails."""
        if self._job.wait(_START_S):
            raise HmdError(f"sampling in the guest failed: {self._wrong.decode(errors='replace')}")

    def kill(self) -> None:
        """Kill it."""
        self._job.kill()
        self._job.wait(_START_S)


@contextmanager
def program(machine: Machine) -> Iterator[GuestProgram]:
    """Run the program and flush_tlb on the program's CPU."""
    ready, output = threading.Event(), bytearray()

    def listen(data: bytes) -> None:
        output.extend(data)
        if b"\n" in output:
            ready.set()

    on_cpu = ["taskset", "-c", str(PROGRAM_CPU)]
    graded = str(compile_static(_WORKLOADS / "graded.c"))
    flush = str(compile_static(_WORKLOADS / "flush_tlb.c"))
    job = machine.start(
        [*on_cpu, graded, str(FOOTPRINT_MIB), str(BLOCK_KIB)], stdout=listen, stderr=output.extend
    )
    flusher = machine.start(
        [*on_cpu, flush, str(FLUSH_US)], stdout=output.extend, stderr=output.extend
    )
    try:
        if not ready.wait(_START_S):
            raise HmdError(f"graded did not become ready: {output.decode(errors='replace')}")
        sampled = json.loads(output)
        yield GuestProgram(
            sampled["pid"], sampled["start"] // PAGE_BYTES, sampled["bytes"] // PAGE_BYTES
        )
    finally:
        for each in (job, flusher):
            each.kill()
            each.wait(30)


def _truth(program: GuestProgram, path: Path, count: int) -> _Floats:
    """Return the recorded misses on each page of the program."""
    stream = read_recording(path, count).stream
    page = stream.page_address[stream.page[stream.sampled()]] // np.uint64(PAGE_BYTES)
    return _by_page(program, page, np.ones(len(page)))


def _by_page(program: GuestProgram, page: npt.NDArray[np.uint64], weight: _Floats) -> _Floats:
    place = page.astype(np.int64) - program.first_page
    inside = (place >= 0) & (place < program.pages)
    sums = np.bincount(place[inside], weights=weight[inside], minlength=program.pages)
    return sums.astype(np.float64)


def _found(case: Case, program: GuestProgram, truth: _Floats, path: Path) -> Found:
    with np.load(path, allow_pickle=False) as sampled:
        heat = _by_page(program, sampled["page"], sampled["heat"])
        rows, elapsed_s = int(sampled["rows"]), float(sampled["elapsed_s"])
        cpu_s, kernel_cpu_s = float(sampled["cpu_s"]), float(sampled["kernel_cpu_s"])
    hot_found, covered = hottest(heat, truth, HOT_SHARE)
    return Found(
        sampler=case[0],
        period=case[1],
        rows=rows,
        pages=int(np.count_nonzero(heat)),
        correlation=rank_correlation(heat, truth),
        hot_found=hot_found,
        misses_covered=covered,
        cpu=cpu_s / elapsed_s,
        kernel_cpu=kernel_cpu_s / elapsed_s,
        seconds=elapsed_s,
        misses=int(truth.sum()),
    )


def rank_correlation(a: _Floats, b: _Floats) -> float:
    """Return Spearman's rank correlation, ties by their mean rank; 0 where one is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def _ranks(values: _Floats) -> _Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean = np.cumsum(count) - (count - 1) / 2
    ranks: _Floats = mean[place]
    return ranks


def hottest(sampled: _Floats, true: _Floats, share: float) -> tuple[float, float]:
    """Return the share of the truly hottest pages found, and of their misses covered.

    Pages of equal sampled heat at the threshold count by the probability of being selected.
    """
    count = round(share * len(true))
    best = np.argsort(-true, kind="stable")[:count]
    threshold = np.sort(sampled)[::-1][count - 1]
    ties = sampled == threshold
    selected: _Floats = np.where(sampled > threshold, 1.0, 0.0)
    selected[ties] = (count - selected.sum()) / np.count_nonzero(ties)
    return float(selected[best].sum() / count), float(selected @ true / max(1.0, true[best].sum()))


CHECKOUT = Path(__file__).resolve().parents[2]
OUT = CHECKOUT / "build/samplers.json"


def main(seconds: float) -> None:
    """Boot, measure, print and write."""
    preset = with_nodes(load("dram-pm"), ["size=640MiB,cpus=0-1", "size=640MiB"])
    env = {**os.environ, **guest_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    found: list[Found] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Machine(preset, share=[Path(folder)], recording_bytes=RECORDING_BYTES) as machine,
    ):
        print(HEAD)
        for one in compare(machine, Path(folder), seconds, CHECKOUT, env):
            found.append(one)
            print(line(one), flush=True)
    document = {
        "samplers": [asdict(one) for one in found],
        **measured_with(),
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")


def line(found: Found) -> str:
    """Return a row of the table."""
    cells = (
        found.sampler,
        str(found.period),
        f"{found.correlation:.2f}",
        *(f"{x:.0%}" for x in (found.hot_found, found.misses_covered)),
        *(f"{x:.0%}" for x in (found.cpu, found.kernel_cpu)),
        f"{found.rows:,}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
