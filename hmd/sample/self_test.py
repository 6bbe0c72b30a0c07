# SPDX-License-Identifier: MIT
"""The self-test of a sampler: a child process whose accesses are known, and what samples say of it.

That events open does not show that they work: an old kernel gives no addresses, another program
holds the counter, a virtual machine counts nothing, a threshold counts but some loads. So a new
sampler is tracked on a child (``Probe``, hmd/native/probe.c) that loads from memory line by line,
in an order that no prefetcher follows, stores, and touches new pages. ``judge`` compares what was
sampled with what was done. The accesses that a load sample stands for follow from it; for load
latency that is a lower bound: the child waits for each load, and the more of them are in flight,
the fewer the CPU tags.

Costs 0.2 s on a PMU, 64 MiB while it runs, and up to ``SCAN_PATIENCE_S`` for a sampler that scans
pages. Where the test itself cannot run (no process, no memory, another /proc), the sampler is taken
untested, and the result says so.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hmd._native import ffi, lib
from hmd.base.errors import MissingError, TransientError, UnavailableError
from hmd.base.units import MIB, PAGE_BYTES
from hmd.linux.procfs import PROC, ProcessId, identify, read_text
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.periods import PEBS_RECORD
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.sampler import Sampler, SamplerStats

ROUND_S: Final = 0.05
"""Time of a round of loads or stores at most."""
START_PATIENCE_S: Final = 5.0
"""Time for the child to have its memory, and for a round to end, at most: the machine may be busy.
"""
SCAN_PATIENCE_S: Final = 2.0
"""Time until a sampler that scans pages, as DAMON does, should have shown the child's."""
MAX_ROUNDS: Final = 4
"""Rounds of loads, at most, until there are ``ENOUGH_SAMPLES``."""
ENOUGH_SAMPLES: Final = 50
"""Samples with which the accesses per sample are known to some 14 %."""

_MIN_IN_MEMORY: Final = 0.5
"""Share of addresses in the memory that was accessed; the others are the child's stack and code."""
_MIN_OF_KIND: Final = 0.8
_MIN_RUNNING: Final = 0.9
_PLAUSIBLE_LATENCIES: Final = (0.2, 5.0)
"""Bounds of the median latency of samples over the time that the child measured for a load."""
_EXACT: Final = (0.8, 1.25)
"""A factor between these is not told from 1: most events count each access."""
_MIN_BUFFERED_RECORDS: Final = 16
_MAX_CPU_S: Final = 10
_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Accesses:
    """What the child did: counts, memory as (start, end), and the mean time of a load."""

    loads: int = 0
    stores: int = 0
    touches: int = 0
    load_ns: float = 0.0
    load_range: tuple[int, int] = (0, 0)
    store_range: tuple[int, int] = (0, 0)
    touch_range: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the sampler showed in the test alone; ``interrupts`` are all PMUs', None: not known."""

    batch: AccessBatch
    without_address: int = 0
    throttled: int = 0
    lost: int = 0
    records: int = 0
    interrupts: int | None = None
    running_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. ``problem`` is why samples cannot be trusted, None where they can.

    ``transient``: it may pass. ``summary`` is one clause for the log. ``load_factor`` is what a
    load sample's period is to be multiplied by. ``buffered``: whether one interrupt empties many
    records, None where that is not known.
    """

    summary: str
    problem: str | None = None
    transient: bool = False
    load_factor: float = 1.0
    buffered: bool | None = None


class Probe:
    """The child process, a context manager; UnavailableError where it does not start or ends."""

    def __init__(self, memory_bytes: int, proc: Path = PROC) -> None:
        """Start it with ``memory_bytes``, a power of two; half of them for loads."""
        self._c: Any = ffi.NULL
        out = ffi.new("struct hmd_probe **")
        self._pid = int(
            lib.hmd_probe_start(memory_bytes // 2, round(ROUND_S * 1e9), _MAX_CPU_S, out)
        )
        if self._pid < 0:
            why = os.strerror(-self._pid)
            raise MissingError(f"no process could be started for it ({why})")
        self._c = out[0]
        try:
            process = identify(self._pid, proc)
            if process is None:
                raise MissingError(f"{proc} does not show its process")
            self.process: ProcessId = process
            self._wait()
        except BaseException:
            self.close()
            raise

    def run(self, what: int) -> None:
        """Let it load, store or touch (``HMD_PROBE_...``), and wait until it has."""
        self._c.state = what
        self._wait()

    def _wait(self) -> None:
        until_s = time.monotonic() + START_PATIENCE_S
        while self._c.state != lib.HMD_PROBE_WAITING:
            if self._c.state == lib.HMD_PROBE_FAILED:
                raise MissingError(f"no memory for it ({os.strerror(self._c.error)})")
            if not lib.hmd_probe_alive(self._pid):
                raise MissingError("its process was killed (a limit of memory or CPU time?)")
            if time.monotonic() > until_s:
                raise MissingError(f"its process did not answer in {START_PATIENCE_S:g} s")
            time.sleep(_POLL_S)

    @property
    def accesses(self) -> Accesses:
        """What it has done since its start."""
        c = self._c
        touched = lib.HMD_PROBE_TOUCHED_PAGES * PAGE_BYTES
        return Accesses(
            int(c.loads),
            int(c.stores),
            int(c.touches),
            c.load_ns / max(c.loads, 1),
            (int(c.load_start), int(c.load_start + c.bytes)),
            (int(c.store_start), int(c.store_start + c.bytes)),
            (int(c.touch_start), int(c.touch_start) + touched),
        )

    def close(self) -> None:
        """Kill it and wait for its end; may be called twice."""
        if self._c != ffi.NULL:
            lib.hmd_probe_end(self._pid, self._c)
            self._c = ffi.NULL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prove(sampler: Sampler, proc: Path = PROC, *, modelled: bool = False) -> str:
    """Test a sampler that tracks nothing, calibrate it, and return a clause about it for the log.

    Raises MissingError with the reason where its samples cannot be trusted, TransientError where
    that may pass. The sampler has its period again afterwards. On the emulated machine the test
    takes seconds, of which its programs would have less: only where ``modelled`` is set.
    """
    if sampler.capabilities.modelled_clock and not modelled:
        return "not tested: hmd doctor does"
    if identify(os.getpid(), proc) is None:
        return "not tested: no process of this machine is in its /proc"
    if isinstance(sampler, RingSampler) and not sampler.control.active:
        return "not tested: the timing model is off"
    period = sampler.period
    try:
        with Probe(_memory_bytes(sampler), proc) as probe:
            verdict = _test(sampler, probe, proc)
    except UnavailableError as error:
        return f"not tested: {error}"
    finally:
        sampler.track([])
        sampler.read()
        sampler.set_period(period)
        sampler.stats = SamplerStats()  # those of the child are no program's
    if verdict.problem is not None:
        kind = TransientError if verdict.transient else MissingError
        raise kind(f"{sampler.detail} failed the self-test: {verdict.problem}")
    if isinstance(sampler, RingSampler):
        known = verdict.buffered is not None
        record_s = PEBS_RECORD.seconds(buffered=bool(verdict.buffered)) if known else None
        sampler.calibrate(verdict.load_factor, record_s)
    return verdict.summary


def _memory_bytes(sampler: Sampler) -> int:
    """Return memory beyond the caches of a CPU, of the emulated one's 2 MiB, or for page scans."""
    able = sampler.capabilities
    if not able.counts_accesses:
        return 4 * MIB
    return 4 * MIB if able.modelled_clock else 64 * MIB


def _test(sampler: Sampler, probe: Probe, proc: Path) -> Verdict:
    if not sampler.capabilities.perf_events and not sampler.capabilities.counts_accesses:
        return _test_scan(sampler, probe)
    assert isinstance(sampler, RingSampler)
    if not sampler.capabilities.counts_accesses:
        sampler.set_period(sampler.periods[0])
        return judge_faults(*_observe(sampler, probe, lib.HMD_PROBE_TOUCHES, 1, proc))
    period = sampler.period
    sampler.set_period(sampler.periods[0])
    loads, done = _observe(sampler, probe, lib.HMD_PROBE_LOADS, MAX_ROUNDS, proc)
    sampler.set_period(period)
    if loads.throttled:  # perhaps only at the shortest period
        loads, done = _observe(sampler, probe, lib.HMD_PROBE_LOADS, MAX_ROUNDS, proc)
    stores, _ = _observe(sampler, probe, lib.HMD_PROBE_STORES, 1, proc)
    return judge(
        loads,
        stores,
        done,
        has_buffer=sampler.control.has_buffer,
        real_time=not sampler.capabilities.modelled_clock,
    )


def _observe(
    sampler: RingSampler, probe: Probe, what: int, rounds: int, proc: Path
) -> tuple[Observation, Accesses]:
    """Let the child do rounds of one thing until there are enough samples."""
    loads = probe.accesses.loads
    sampler.track([probe.process])
    sampler.read()
    stats = sampler.stats
    before = (stats.without_address, stats.throttled, stats.lost, stats.records)
    interrupts = count_pmu_interrupts(proc)
    batches = []
    for _ in range(rounds):
        probe.run(what)
        batches.append(sampler.read())
        until_s = time.monotonic() + sampler.control.delay_s
        while not len(batches[-1]) and time.monotonic() < until_s:
            time.sleep(50 * _POLL_S)
            batches.append(sampler.read())
        if sum(map(len, batches)) >= ENOUGH_SAMPLES:
            break
    sampler.track([])
    after = count_pmu_interrupts(proc)
    seen = Observation(
        AccessBatch.concatenated(batches),
        stats.without_address - before[0],
        stats.throttled - before[1],
        stats.lost - before[2],
        stats.records - before[3],
        None if interrupts is None or after is None else after - interrupts,
        stats.running_share,
    )
    done = probe.accesses
    return seen, replace(done, loads=done.loads - loads)


def _test_scan(sampler: Sampler, probe: Probe) -> Verdict:
    """Let the child access all of its memory until the sampler shows some of it."""
    sampler.track([probe.process])
    sampler.read()
    until_s = time.monotonic() + SCAN_PATIENCE_S
    rows = 0
    while not rows and time.monotonic() < until_s:
        probe.run(lib.HMD_PROBE_LOADS)
        probe.run(lib.HMD_PROBE_STORES)
        batch = sampler.read()
        done = probe.accesses
        inside = _within(batch, done.load_range) | _within(batch, done.store_range)
        rows = int(np.count_nonzero(inside))
    if not rows:
        # No proof: on a slow machine the first scan takes longer.
        return Verdict(f"tested: memory in use was not seen within {SCAN_PATIENCE_S:g} s")
    return Verdict(f"tested: {rows:,} samples of memory in use")


def judge_faults(seen: Observation, done: Accesses) -> Verdict:
    """Compare sampled page faults, of period 1, with the pages that were touched first."""
    if seen.running_share < _MIN_RUNNING:
        return Verdict("", _not_running(seen), transient=True)
    inside = _within(seen.batch, done.touch_range)
    faults = int(seen.batch.period[inside].sum())
    if not 0.9 * done.touches <= faults <= 1.1 * done.touches:
        return Verdict("", f"{faults} faults in memory where {done.touches} pages were touched")
    return Verdict(f"tested: {faults} of {done.touches} page faults")


def judge(
    loads: Observation,
    stores: Observation,
    done: Accesses,
    *,
    has_buffer: bool = False,
    real_time: bool = True,
) -> Verdict:
    """Compare samples of a round of loads and one of stores with what the child did.

    ``has_buffer``: records may be many per interrupt. ``real_time``: latencies
    are of the clock by which the child times its rounds, not of a model's.
    """
    for seen in (loads, stores):
        if seen.running_share < _MIN_RUNNING:
            return Verdict("", _not_running(seen), transient=True)
        if seen.throttled:
            return Verdict("", "the kernel throttled it for too many interrupts", transient=True)
    problem = _wrong_addresses(loads, done) or _wrong_kinds(loads, stores, done)
    of_load = _within(loads.batch, done.load_range) & (loads.batch.kind == Kind.LOAD)
    if problem is None and real_time:
        problem = _wrong_latency(loads.batch.latency_ns[of_load], done.load_ns)
    if problem is not None:
        return Verdict("", problem)
    samples = int(np.count_nonzero(of_load))
    factor = done.loads / max(float(loads.batch.period[of_load].sum()), 1.0)
    if samples < ENOUGH_SAMPLES or loads.lost or _EXACT[0] <= factor <= _EXACT[1]:
        factor = 1.0
    buffered = None
    if has_buffer and loads.interrupts and loads.records >= 2 * _MIN_BUFFERED_RECORDS:
        buffered = loads.records / loads.interrupts >= _MIN_BUFFERED_RECORDS
    clauses = [f"tested: {samples:,} samples of {done.loads:,} loads"]
    if factor != 1.0:
        clauses.append(f"a sample is worth {factor:.3g} times its period")
    if buffered is False:
        clauses.append("each record takes an interrupt")
    if not (stores.batch.kind == Kind.STORE).any():
        clauses.append("stores are not seen")
    return Verdict(", ".join(clauses), load_factor=factor, buffered=buffered)


def _not_running(seen: Observation) -> str:
    return (
        f"its counter ran {seen.running_share:.0%} of the time: another program (perf, a profiler,"
        " the NMI watchdog) holds it"
    )


def _wrong_addresses(loads: Observation, done: Accesses) -> str | None:
    batch = loads.batch
    if loads.without_address > len(batch):
        return f"{loads.without_address:,} samples have no address"
    if not len(batch):
        return f"no sample of {done.loads:,} loads from memory"
    share = np.count_nonzero(_within(batch, done.load_range)) / len(batch)
    if share < _MIN_IN_MEMORY:
        return f"only {share:.0%} of its addresses lie in the memory that was loaded"
    return None


def _wrong_kinds(loads: Observation, stores: Observation, done: Accesses) -> str | None:
    loaded = loads.batch.kind[_within(loads.batch, done.load_range)]
    stored = stores.batch.kind[_within(stores.batch, done.store_range)]
    if np.count_nonzero(loaded == Kind.LOAD) < _MIN_OF_KIND * len(loaded):
        return "loads are reported as stores"
    if np.count_nonzero(stored == Kind.STORE) < _MIN_OF_KIND * len(stored):
        return "stores are reported as loads"
    return None


def _wrong_latency(latency_ns: npt.NDArray[np.uint32], load_ns: float) -> str | None:
    known = latency_ns[latency_ns > 0]
    if not len(known) or not load_ns:
        return None
    median_ns = float(np.median(known))
    low, high = _PLAUSIBLE_LATENCIES
    if low <= median_ns / load_ns <= high:
        return None
    return f"latencies of {median_ns:.0f} ns for loads that took {load_ns:.0f} ns"


def _within(batch: AccessBatch, span: tuple[int, int]) -> npt.NDArray[np.bool_]:
    start, end = map(np.uint64, span)
    return (batch.address >= start) & (batch.address < end)


def count_pmu_interrupts(proc: Path = PROC) -> int | None:
    """Return the PMU interrupts of all CPUs (PMI in /proc/interrupts), None if not counted."""
    for line in (read_text(proc / "interrupts") or "").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "PMI":
            return sum(int(word) for word in counts.split() if word.isdigit())
    return None
