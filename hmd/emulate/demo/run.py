# SPDX-License-Identifier: MIT
"""The demonstration from boot to result: each program in each variant, in one boot.

The result is that of build/demo.json and of the table.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hmd import __version__
from hmd.emulate.demo.daemon import TICK_S, DemoDaemon, running_daemon
from hmd.emulate.demo.measure import (
    FAST_NODE,
    PROGRAM_CPU,
    SLOW_NODE,
    FastNode,
    Meter,
    Variant,
    bound_to,
    open_fast_node,
)
from hmd.emulate.demo.programs import (
    BenchmarkRun,
    HotSet,
    HotSetRun,
    RedisLoad,
    redis_starts,
    run_hot_set,
    running_redis,
)
from hmd.emulate.preset import Preset, load, with_node_size
from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.images import warm_kernels

PRESET = "dram-pm"

FAST_NODE_BYTES = 256 << 20
"""Smaller than in the preset: the kernel's per-CPU page lists grow with a node's size, and those
of a 1 GiB node hold a tenth of the hot set."""

DILATION = {"hotset": 75.0, "redis": 200.0}
"""Guest time over modelled time while a program is measured: more than emulation takes, so that
the guest's clock follows the model in all four variants."""

SETTLING_DILATION = 50.0
"""Dilation while redis settles under hmd; nothing is measured then."""

PERIOD = {"hotset": 1249, "redis": 83}
"""Cache misses per sample. A sample costs the program 0.25 µs and its part of an interrupt: of
hotset 1 % of its time, as the daemon's own limit is. redis misses far less often, and one period
suits only one of them."""

SPARE = 1.10
"""Size of the reduced fast node in hot sets."""

RECOVERED = 0.95
"""Share of the settled rate at which a program counts as recovered."""

HOTSET, REDIS = "hotset", "redis-server"
"""Commands of the two programs, by which the daemon selects them."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OperationRates:
    """Operations per second by the guest's clock and by modelled time."""

    ops_per_s: float
    modelled_ops_per_s: float


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """One program, run in the four variants.

    ``fast_share_*`` are shares of LLC misses served by the fast node, from the plugin's counters,
    before hmd moved anything and after it settled. ``seconds_to_recover`` is the guest time from
    the move of the hot set until the settled rate is reached again, None for a program whose hot
    set stays. Its bound ``recover_limit_s`` is the time to copy the hot bytes at a quarter of the
    slow node's bandwidth, in guest time, plus two ticks.
    """

    rates: dict[Variant, OperationRates]
    fast_share_before: float
    fast_share_after: float
    pages_promoted: int
    pages_demoted: int
    integrity_ok: bool
    hot_bytes: int
    fast_bytes: int
    seconds_to_recover: float | None = None
    recover_limit_s: float | None = None

    def relative(self, variant: Variant, to: Variant) -> float:
        """Return the modelled rate of one variant over that of another."""
        return self.rates[variant].modelled_ops_per_s / self.rates[to].modelled_ops_per_s

    def as_json(self) -> dict[str, Any]:
        """Return the program's part of demo.json."""
        rest = asdict(self)
        del rest["rates"]
        return {variant.value: asdict(rates) for variant, rates in self.rates.items()} | rest


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of the demonstration, and whether it was reached."""

    text: str
    reached: bool


def goals(programs: dict[str, ProgramResult]) -> list[Goal]:
    """Return the goals of the demonstration, each with its figure."""
    found = []
    for name, program in programs.items():
        over = program.relative(Variant.HMD, Variant.FIRST_TOUCH)
        found.append(Goal(f"{name}: hmd {over:.2f} x first touch (above 1)", over > 1))
        found.append(Goal(f"{name}: every word of memory verified", program.integrity_ok))
        if program.recover_limit_s is not None:
            share = program.relative(Variant.HMD, Variant.ALL_FAST)
            found.append(Goal(f"{name}: hmd {share:.2f} x all fast (0.90 at least)", share >= 0.90))
            took, limit = program.seconds_to_recover, program.recover_limit_s
            found.append(
                Goal(
                    f"{name}: recovered {'never' if took is None else f'{took:.1f} s'} after its "
                    f"hot set moved (in {limit:.1f} s)",
                    took is not None and took <= limit,
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Duration of the programs in guest seconds, and the number of redis-benchmark runs."""

    hot_set: HotSet = field(default_factory=HotSet)
    redis: RedisLoad = field(default_factory=RedisLoad)
    redis_rounds: int = 2
    redis_rounds_to_settle: int = 24


@dataclass(frozen=True, slots=True)
class Demonstration:
    """All results; ``heat`` is the daemon's heat map of the hot-set program, for the plot."""

    machine: dict[str, Any]
    programs: dict[str, ProgramResult]
    heat: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return demo.json."""
        programs = {name: program.as_json() for name, program in self.programs.items()}
        return {"machine": self.machine, "programs": programs}


class _Stage:
    """The booted machine, its preset, meter, fast node and output folder."""

    def __init__(
        self, machine: Machine, preset: Preset, fast_node: FastNode, folder: Path, say: Say
    ):
        self.machine, self.preset, self.meter = machine, preset, Meter(machine)
        self._fast_node = fast_node
        self.folder, self.say = folder, say

    @contextmanager
    def prepared(
        self, program: str, variant: Variant, hot_bytes: int, starts: Sequence[Sequence[str]]
    ) -> Iterator[int]:
        """Reduce the fast node if the variant requires it; yields the bytes for a program.

        ``starts`` are commands that end at once and read the files of the program into the page
        cache, which is empty otherwise: read later, they would take a tenth of that room.
        """
        self.say(f"{program}, {variant.value.replace('_', ' ')}")
        if not variant.fast_node_is_scarce:
            yield self.preset.nodes[FAST_NODE].size
            return
        with self.meter.paused():
            self.machine.run(["sh", "-c", "echo 3 > /proc/sys/vm/drop_caches"], check=True)
            for command in starts:
                self.machine.run([*bound_to(variant, PROGRAM_CPU), *command])
            left = self._fast_node.leave(int(hot_bytes * SPARE), drop_caches=False)
        try:
            yield left
        finally:
            self._fast_node.release()


def demonstrate(folder: Path, settings: DemoSettings, say: Say) -> Demonstration:
    """Boot the machine and run everything; ``folder`` receives logs, ``say`` progress lines."""
    began = time.monotonic()
    preset = with_node_size(load(PRESET), FAST_NODE, FAST_NODE_BYTES)
    say("compiling hmd's kernels for the guest's CPU, unless they are cached")
    warm_kernels()
    say(f"booting {preset.description}")
    with (
        Machine(preset, share=[folder], dilation=SETTLING_DILATION) as machine,
        open_fast_node(machine, FAST_NODE, FastNode) as fast_node,
    ):
        machine.start_model()
        stage = _Stage(machine, preset, fast_node, folder, say)
        hot_set, redis = _HotSetTrials(stage, settings), _RedisTrials(stage, settings)
        for variant in (Variant.ALL_FAST, Variant.ALL_SLOW, Variant.FIRST_TOUCH):
            hot_set.run(variant)
            redis.run(variant)
        say("starting the daemon in the guest")
        with running_daemon(
            machine, (HOTSET, REDIS), PERIOD["hotset"], folder, stage.meter
        ) as daemon:
            hot_set.run(Variant.HMD, daemon)
            with stage.meter.paused():
                daemon.sample_every(PERIOD["redis"])
            redis.run(Variant.HMD, daemon)
        programs = {"hotset": hot_set.result(), "redis": redis.result()}
        about = _describe(machine, preset, time.monotonic() - began)
    return Demonstration(about, programs, hot_set.heat)


class _HotSetTrials:
    """The program with a moving hot set, once per variant."""

    def __init__(self, stage: _Stage, settings: DemoSettings):
        self._stage, self._program = stage, settings.hot_set
        self._runs: dict[Variant, HotSetRun] = {}
        self._moved, self._fast_bytes = (0, 0), 0
        self.heat: dict[str, Any] = {}

    def run(self, variant: Variant, daemon: DemoDaemon | None = None) -> None:
        """Run one variant; under hmd, keep the daemon's counters and heat map."""
        stage, program = self._stage, self._program
        with (
            stage.prepared(
                HOTSET, variant, program.hot_bytes, [[program.command()[0], "--help"]]
            ) as self._fast_bytes,
            stage.meter.dilated(DILATION["hotset"]),
        ):
            self._runs[variant] = run_hot_set(
                stage.machine, program.for_variant(variant), variant, stage.meter
            )
        if daemon is not None:
            with stage.meter.paused():
                self._moved, self.heat = daemon.moved(HOTSET), daemon.ask("heatmap")

    def result(self) -> ProgramResult:
        """Return the result of the four runs."""
        program, ours = self._program, self._runs[Variant.HMD]
        rates = {
            variant: OperationRates(*run.rate(*program.for_variant(variant).settled))
            for variant, run in self._runs.items()
        }
        slow = self._stage.preset.nodes[SLOW_NODE]
        at_a_quarter_s = program.hot_bytes / (slow.read_bandwidth_gbps * 1e9 / 4)
        return ProgramResult(
            rates=rates,
            fast_share_before=ours.fast_share(0, 1.0),
            fast_share_after=ours.fast_share(*program.settled),
            pages_promoted=self._moved[0],
            pages_demoted=self._moved[1],
            integrity_ok=all(run.integrity_ok for run in self._runs.values()),
            hot_bytes=program.hot_bytes,
            fast_bytes=self._fast_bytes,
            seconds_to_recover=ours.seconds_to_recover(
                program.seconds / 2, rates[Variant.HMD].modelled_ops_per_s, RECOVERED
            ),
            recover_limit_s=at_a_quarter_s * DILATION["hotset"] + 2 * TICK_S,
        )


class _RedisTrials:
    """redis-server under redis-benchmark, once per variant."""

    def __init__(self, stage: _Stage, settings: DemoSettings):
        self._stage, self._settings = stage, settings
        self._rates: dict[Variant, OperationRates] = {}
        self._moved, self._wrong, self._fast_bytes = (0, 0), 0, 0
        self._before = self._after = 0.0

    def run(self, variant: Variant, daemon: DemoDaemon | None = None) -> None:
        """Run one variant; under hmd, first until moves have settled."""
        stage, settings = self._stage, self._settings
        load = settings.redis
        with (
            stage.prepared(REDIS, variant, load.hot_bytes, redis_starts()) as self._fast_bytes,
            running_redis(stage.machine, load, variant, stage.meter) as redis,
        ):
            if daemon is not None:
                self._before = redis.round().fast_share
                for _ in range(settings.redis_rounds_to_settle):
                    redis.round()
            with stage.meter.dilated(DILATION["redis"]):
                rounds = [redis.round() for _ in range(settings.redis_rounds)]
            self._rates[variant] = _mean(rounds)
            if daemon is not None:  # only moves can corrupt memory
                self._after = rounds[-1].fast_share
                with stage.meter.paused():
                    self._wrong = redis.wrong_values()
                    self._moved = daemon.moved(REDIS)

    def result(self) -> ProgramResult:
        """Return the result of the four runs."""
        return ProgramResult(
            rates=self._rates,
            fast_share_before=self._before,
            fast_share_after=self._after,
            pages_promoted=self._moved[0],
            pages_demoted=self._moved[1],
            integrity_ok=self._wrong == 0,
            hot_bytes=self._settings.redis.hot_bytes,
            fast_bytes=self._fast_bytes,
        )


def _mean(rounds: list[BenchmarkRun]) -> OperationRates:
    """Return the rates over all runs (equal requests per run: harmonic means)."""
    count = len(rounds)
    return OperationRates(
        count / sum(1 / r.ops_per_s for r in rounds),
        count / sum(1 / r.modelled_ops_per_s for r in rounds),
    )


def _describe(machine: Machine, preset: Preset, seconds: float) -> dict[str, Any]:
    release = machine.run(["uname", "-r"], check=True).stdout.strip()
    return {
        "preset": preset.name,
        "description": preset.description,
        "guest_kernel": release,
        "hmd": __version__,
        "host": f"{platform.system()} {platform.machine()}",
        "host_seconds": round(seconds),
        "dilation": DILATION,
        "tick_s": TICK_S,
    }
