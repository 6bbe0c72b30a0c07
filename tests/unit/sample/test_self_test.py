# SPDX-License-Identifier: MIT
"""What the self-test says of a PMU that works, and of those that open and show something else.

The child process is real; the test writes what a PMU would record of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hmd._native import lib
from hmd.base.errors import MissingError, TransientError
from hmd.linux.procfs import PROC, identify
from hmd.sample import self_test
from hmd.sample.access_batch import AccessBatch, Kind
from hmd.sample.attribution import TrackedPids
from hmd.sample.perf_ring import Ring, SampleType
from hmd.sample.ring_sampler import RingSampler
from hmd.sample.self_test import Accesses, Observation, Probe, judge, prove

TYPE = SampleType.TID | SampleType.ADDR | SampleType.PERIOD | SampleType.WEIGHT
RECORD = struct.Struct("<IHHIIQQQ")
THROTTLE = struct.Struct("<IHHQQQ")
DONE = Accesses(loads=100_000, load_ns=100.0, load_range=(0x1000, 0x9000), store_range=(1, 2))


class MadePmu:
    """Two rings, of loads and of stores, and what this PMU does wrong.

    It samples one load in ``period`` of those that it counts, one in ``tagged``.
    """

    record_s = 1e-6
    now_s = 0.0
    adapts_store_period = False
    has_buffer = True
    active = True
    delay_s = 0.0
    time_offset_ns = 0
    running_share = 1.0
    tagged = 1
    period = 199
    throttles_below = 0
    latency_ns = 0
    store_kind = Kind.STORE

    def __init__(self) -> None:
        self.memory: dict[Kind, npt.NDArray[np.uint8]] = {
            kind: np.zeros(4096 + (1 << 18), np.uint8) for kind in (Kind.LOAD, Kind.STORE)
        }
        self.on = False

    def sampler(self) -> RingSampler:
        rings = [
            Ring.over(memory, TYPE, self.store_kind if kind is Kind.STORE else kind, 0)
            for kind, memory in self.memory.items()
        ]
        return RingSampler(
            "pmu", "made", rings, self, TrackedPids(), period=1009, periods=(199, 1009)
        )

    def start(self) -> None:
        self.on = True

    def stop(self) -> None:
        self.on = False

    def publish(self) -> None: ...

    def set_period(self, period: int, store_multiplier: int) -> None:
        self.period = period

    def close(self) -> None:
        pass

    def address(self, start: int, index: int) -> int:
        return start + 128 * index

    def write(self, kind: Kind, record: bytes) -> None:
        memory = self.memory[kind]
        (head,) = words = memory[1024:1032].view(np.uint64)
        at = np.arange(int(head), int(head) + len(record)) % (1 << 18) + 4096
        memory[at] = np.frombuffer(record, np.uint8)
        words[0] = int(head) + len(record)

    def see(self, pid: int, kind: Kind, start: int, accesses: int) -> None:
        """Record a round of accesses."""
        if self.period < self.throttles_below:
            self.write(kind, THROTTLE.pack(5, 0, 32, 0, 0, 0))
        period = self.period * (64 if kind is Kind.STORE else 1)
        for i in range(accesses // (self.tagged * period)):
            place = self.address(start, i)
            self.write(kind, RECORD.pack(9, 0, 40, pid, pid, place, period, self.latency_ns))


@pytest.fixture
def prove_made(monkeypatch: pytest.MonkeyPatch) -> Callable[[MadePmu], tuple[RingSampler, str]]:
    """Return a function that tests a made PMU, and gives its sampler and the result."""

    def prove_pmu(pmu: MadePmu) -> tuple[RingSampler, str]:
        class SeenProbe(Probe):
            def run(self, what: int) -> None:
                before = self.accesses
                super().run(what)
                done, pid = self.accesses, self.process.pid
                assert pmu.on, "samples are read while the child works"
                loads, stores = done.loads - before.loads, done.stores - before.stores
                pmu.see(pid, Kind.LOAD, done.load_range[0], loads)
                pmu.see(pid, Kind.STORE, done.store_range[0], stores)

        monkeypatch.setattr(self_test, "Probe", SeenProbe)
        sampler = pmu.sampler()
        try:
            return sampler, prove(sampler)
        finally:
            assert not pmu.on
            assert sampler.period == 1009

    return prove_pmu


ProveMade = Callable[[MadePmu], tuple[RingSampler, str]]


def test_self_test_of_exact_pmu_passes_without_a_factor(prove_made: ProveMade) -> None:
    sampler, said = prove_made(MadePmu())
    assert said.startswith("tested: ")
    assert said.endswith("loads")
    assert sampler.load_factor == 1.0


def test_self_test_of_tagged_loads_scales_samples_of_loads_alone(prove_made: ProveMade) -> None:
    pmu = MadePmu()
    pmu.tagged = 7
    sampler, said = prove_made(pmu)
    assert "a sample is worth" in said
    assert 6.0 < sampler.load_factor < 8.0
    process = identify(os.getpid())
    assert process is not None
    sampler.track([process])
    pmu.write(Kind.LOAD, RECORD.pack(9, 0, 40, process.pid, process.pid, 0x5000, 199, 0))
    pmu.write(Kind.STORE, RECORD.pack(9, 0, 40, process.pid, process.pid, 0x5000, 199, 0))
    assert sampler.read().period.tolist() == [round(199 * sampler.load_factor), 199]


class NoAddress(MadePmu):
    def address(self, start: int, index: int) -> int:
        return 0


class OtherAddress(MadePmu):
    def address(self, start: int, index: int) -> int:
        return 0x1000 + index


class NoSamples(MadePmu):
    tagged = 1 << 40


class StoresAsLoads(MadePmu):
    store_kind = Kind.LOAD


class LoadsAsStores(MadePmu):
    def sampler(self) -> RingSampler:
        self.memory = {Kind.LOAD: self.memory[Kind.STORE], Kind.STORE: self.memory[Kind.LOAD]}
        sampler = super().sampler()
        self.memory = {Kind.LOAD: self.memory[Kind.STORE], Kind.STORE: self.memory[Kind.LOAD]}
        return sampler


class SlowClock(MadePmu):
    latency_ns = 1 << 20


@pytest.mark.parametrize(
    ("pmu", "problem"),
    [
        (NoAddress, "samples have no address"),
        (OtherAddress, "only 0% of its addresses lie in the memory"),
        (NoSamples, "no sample of [0-9,]+ loads"),
        (StoresAsLoads, "stores are reported as loads"),
        (LoadsAsStores, "loads are reported as stores"),
        (SlowClock, "latencies of 1048576 ns for loads that took"),
    ],
)
def test_self_test_of_wrong_pmu_is_refused_with_reason(
    pmu: type[MadePmu], problem: str, prove_made: ProveMade
) -> None:
    with pytest.raises(MissingError, match=f"^made failed the self-test: .*{problem}"):
        prove_made(pmu())


class Multiplexed(MadePmu):
    running_share = 0.5


class Throttled(MadePmu):
    throttles_below = 1 << 30


@pytest.mark.parametrize(
    ("pmu", "problem"),
    [(Multiplexed, "its counter ran 50% of the time"), (Throttled, "the kernel throttled it")],
)
def test_self_test_of_starved_pmu_is_refused_for_now(
    pmu: type[MadePmu], problem: str, prove_made: ProveMade
) -> None:
    with pytest.raises(TransientError, match=problem):
        prove_made(pmu())


def test_self_test_throttled_at_shortest_period_alone_passes(prove_made: ProveMade) -> None:
    pmu = MadePmu()
    pmu.throttles_below = 1000
    _, said = prove_made(pmu)
    assert said.startswith("tested: ")


def test_self_test_where_model_is_off_is_not_run(prove_made: ProveMade) -> None:
    pmu = MadePmu()
    pmu.active = False
    assert prove_made(pmu)[1] == "not tested: the timing model is off"


@pytest.mark.parametrize(
    ("interrupts", "buffered"), [(None, None), (0, None), (3, True), (480, False)]
)
def test_self_test_records_per_interrupt_are_noticed(
    interrupts: int | None, buffered: bool | None
) -> None:
    batch = AccessBatch.of(np.arange(0x1000, 0x1000 + 500), period=200)
    loads = Observation(batch, records=500, interrupts=interrupts)
    stores = Observation(AccessBatch.of([1], kind=Kind.STORE))
    verdict = judge(loads, stores, DONE, has_buffer=True)
    assert (verdict.problem, verdict.buffered) == (None, buffered)
    assert ("each record takes an interrupt" in verdict.summary) == (buffered is False)
    assert judge(loads, stores, DONE).buffered is None


def test_self_test_of_few_samples_has_no_factor() -> None:
    batch = AccessBatch.of(np.arange(0x1000, 0x1000 + 40), period=200)
    stores = Observation(AccessBatch.empty())
    verdict = judge(Observation(batch), stores, DONE)
    assert verdict.load_factor == 1.0
    assert verdict.summary == "tested: 40 samples of 100,000 loads, stores are not seen"


def test_self_test_with_lost_samples_has_no_factor() -> None:
    batch = AccessBatch.of(np.arange(0x1000, 0x1000 + 100), period=200)
    stores = Observation(AccessBatch.empty())
    assert judge(Observation(batch), stores, DONE).load_factor == 5.0
    assert judge(Observation(batch, lost=400), stores, DONE).load_factor == 1.0


def test_self_test_in_another_proc_is_not_run(tmp_path: Path) -> None:
    said = prove(MadePmu().sampler(), tmp_path)
    assert said == "not tested: no process of this machine is in its /proc"


def test_probe_does_what_it_is_asked_and_leaves_nothing() -> None:
    with Probe(1 << 20) as probe:
        pid = probe.process.pid
        assert (PROC / str(pid)).exists()
        for what in (lib.HMD_PROBE_LOADS, lib.HMD_PROBE_STORES, lib.HMD_PROBE_TOUCHES):
            probe.run(what)
        done = probe.accesses
    assert (done.loads, done.stores, done.touches) == (4096, 4 * 4096, 256)
    assert done.load_range[1] - done.load_range[0] == 1 << 19
    assert done.load_ns > 0
    assert not (PROC / str(pid)).exists()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG | 0x40000000)  # __WALL
