"""The demonstration from boot to result: each program in each way, in one emulated machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmd import __version__
from hmd.emulate.boot import Machine
from hmd.emulate.demo import fast_node
from hmd.emulate.demo.daemon import TICK_S, GuestDaemon, Moved, running_daemon
from hmd.emulate.demo.hotset import HotSet, HotSetRun, run_hot_set
from hmd.emulate.demo.meter import Meter
from hmd.emulate.demo.placement import FAST_NODE, SLOW_NODE, Way
from hmd.emulate.demo.redis import RedisLoad, Round, running_redis
from hmd.emulate.demo.result import ProgramResult, Rates
from hmd.emulate.kernel_cache import warm_kernels
from hmd.emulate.preset import Preset, load

PRESET = "dram-pm"
DILATION = 100.0
"""Guest time over modelled time: what emulation of these programs takes, and more, so that the
guest's clock follows the model in all four ways."""

SPARE = 1.10
"""The fast node is left with the hot set and a tenth."""

RECOVERED = 0.95
"""Share of the settled rate at which a program counts as recovered."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How long the programs run, in seconds of the guest, and how many rounds redis gets."""

    hot_set: HotSet = field(default_factory=HotSet)
    redis: RedisLoad = field(default_factory=RedisLoad)
    redis_rounds: int = 2
    redis_rounds_to_settle: int = 3


@dataclass(frozen=True, slots=True)
class Demonstration:
    """All that was measured; ``heat`` is the daemon's heat map of the hot set, for the picture."""

    machine: dict[str, Any]
    programs: dict[str, ProgramResult]
    heat: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return demo.json."""
        programs = {name: program.as_json() for name, program in self.programs.items()}
        return {"machine": self.machine, "programs": programs}


class _Stage:
    """The booted machine, its preset and meter, and where files go."""

    def __init__(self, machine: Machine, preset: Preset, meter: Meter, folder: Path, say: Say):
        self.machine, self.preset, self.meter = machine, preset, meter
        self.folder, self.say = folder, say

    @contextmanager
    def prepared(
        self, program: str, way: Way, hot_bytes: int
    ) -> Iterator[tuple[GuestDaemon | None, int]]:
        """Cut the fast node down and start the daemon, as the way asks; undone at the end.

        Yields the daemon, None without, and how much of the fast node is left for the program.
        """
        self.say(f"{program}, {way.value.replace('_', ' ')}")
        fast_bytes = self.preset.nodes[FAST_NODE].size
        if not way.fast_node_is_scarce:
            yield None, fast_bytes
            return
        try:
            if way is Way.HMD:
                with running_daemon(self.machine, program, self.folder, self.meter) as daemon:
                    yield daemon, self._cut(hot_bytes)
            else:
                yield None, self._cut(hot_bytes)
        finally:
            fast_node.release(self.machine, FAST_NODE)

    def _cut(self, hot_bytes: int) -> int:
        with self.meter.paused():
            return fast_node.leave(self.machine, FAST_NODE, int(hot_bytes * SPARE))


def demonstrate(folder: Path, settings: Settings, say: Say) -> Demonstration:
    """Boot the machine and run everything; ``folder`` takes logs, ``say`` gets progress lines."""
    began = time.monotonic()
    preset = load(PRESET)
    say("compiling hmd's kernels for the guest's CPU, where they are not yet")
    warm_kernels()
    say(f"booting {preset.description}")
    with Machine(preset, share=[folder], dilation=DILATION) as machine:
        machine.start_model()
        stage = _Stage(machine, preset, Meter(machine), folder, say)
        hot_set, heat = _hot_set(stage, settings)
        programs = {"hotset": hot_set, "redis": _redis(stage, settings)}
        about = _describe(machine, preset, time.monotonic() - began)
    return Demonstration(about, programs, heat)


def _hot_set(stage: _Stage, settings: Settings) -> tuple[ProgramResult, dict[str, Any]]:
    program = settings.hot_set
    runs: dict[Way, HotSetRun] = {}
    moved: Moved = Moved(0, 0)
    heat: dict[str, Any] = {}
    for way in Way:
        with stage.prepared("hotset", way, program.hot_bytes) as (daemon, fast_bytes):
            runs[way] = run_hot_set(stage.machine, program, way, stage.meter)
            if daemon is not None:
                moved, heat = daemon.moved(), daemon.ask("heatmap")
    half, end = program.seconds / 2, program.seconds
    settled = (end - half * 0.4, end)
    rates = {way: Rates(*run.rate(*settled)) for way, run in runs.items()}
    ours = runs[Way.HMD]
    slow = stage.preset.nodes[SLOW_NODE]
    at_a_quarter_s = program.hot_bytes / (slow.read_bandwidth_gbps * 1e9 / 4)
    result = ProgramResult(
        rates=rates,
        fast_share_before=ours.fast_share(0, 1.0),
        fast_share_after=ours.fast_share(*settled),
        pages_promoted=moved.promoted_pages,
        pages_demoted=moved.demoted_pages,
        integrity_ok=all(run.integrity_ok for run in runs.values()),
        hot_bytes=program.hot_bytes,
        fast_bytes=fast_bytes,
        seconds_to_recover=ours.seconds_to_recover(
            half, rates[Way.HMD].modelled_ops_per_s, RECOVERED
        ),
        recover_limit_s=at_a_quarter_s * stage.meter.dilation + 2 * TICK_S,
    )
    return result, heat


def _redis(stage: _Stage, settings: Settings) -> ProgramResult:
    load = settings.redis
    rates: dict[Way, Rates] = {}
    moved, wrong, before, after = Moved(0, 0), 0, 0.0, 0.0
    for way in Way:
        with (
            stage.prepared("redis-server", way, load.hot_bytes) as (daemon, fast_bytes),
            running_redis(stage.machine, load, way, stage.meter) as redis,
        ):
            if daemon is not None:
                before = redis.round().fast_share
                for _ in range(settings.redis_rounds_to_settle):
                    redis.round()
            rounds = [redis.round() for _ in range(settings.redis_rounds)]
            rates[way] = _mean(rounds)
            if daemon is not None:
                after = rounds[-1].fast_share
                moved = daemon.moved()
                with stage.meter.paused():
                    wrong = redis.wrong_values()
    return ProgramResult(
        rates=rates,
        fast_share_before=before,
        fast_share_after=after,
        pages_promoted=moved.promoted_pages,
        pages_demoted=moved.demoted_pages,
        integrity_ok=wrong == 0,
        hot_bytes=load.hot_bytes,
        fast_bytes=fast_bytes,
    )


def _mean(rounds: list[Round]) -> Rates:
    """Return the rates over all rounds together (equal requests each: harmonic means)."""
    count = len(rounds)
    return Rates(
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
