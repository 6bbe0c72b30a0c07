# SPDX-License-Identifier: MIT
"""The program with a moving hot set (workloads/hotset.c): its command, and its output."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import dataclass, field, replace

from hmd.base.errors import HmdError
from hmd.base.units import MIB
from hmd.emulate.assets import WORKLOADS, compile_static
from hmd.emulate.demo.measure import PROGRAM_CPU, Meter, Reading, Variant, bound_to
from hmd.emulate.vm.boot import Machine

SOURCE = WORKLOADS / "hotset.c"
INCLUDES = tuple(f"-I{SOURCE.parents[1] / folder}" for folder in ("plugin", "timing"))


@dataclass(frozen=True, slots=True)
class HotSet:
    """Settings of the program, which moves its hot set after half of ``seconds``.

    Without hmd the rate is constant, and ``still_seconds`` are enough.
    """

    footprint_bytes: int = 32 * MIB
    hot_bytes: int = 16 * MIB
    seconds: float = 112.0
    still_seconds: float = 16.0
    interval_ms: int = 500

    def for_variant(self, variant: Variant) -> HotSet:
        """Return the settings with the duration of a variant."""
        return self if variant is Variant.HMD else replace(self, seconds=self.still_seconds)

    @property
    def settled(self) -> tuple[float, float]:
        """The window in which rates are measured: the last two fifths of the second phase, s."""
        return self.seconds * 0.8, self.seconds

    def command(self) -> list[str]:
        """Return the command line; compiles the program unless it is cached."""
        return [
            str(compile_static(SOURCE, INCLUDES)),
            f"--footprint={self.footprint_bytes}",
            f"--hot={self.hot_bytes}",
            f"--seconds={self.seconds}",
            f"--interval={self.interval_ms}",
            "--wait",
        ]


@dataclass(frozen=True, slots=True)
class HotsetProgress:
    """One line of the program's output: its guest and modelled time, updates and misses."""

    time_s: float
    phase: int
    updates: int
    modelled_s: float
    reading: Reading


@dataclass(slots=True)
class HotSetRun:
    """The output of a run, in order."""

    progress: list[HotsetProgress] = field(default_factory=list)
    integrity_ok: bool = False

    def rate(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Return updates per second of the guest's clock and of modelled time in a window."""
        inside = [p for p in self.progress if begin_s <= p.time_s <= end_s]
        if len(inside) < 2:
            raise HmdError(f"hotset printed too few lines between {begin_s} s and {end_s} s")
        first, last = inside[0], inside[-1]
        updates = last.updates - first.updates
        return (
            updates / (last.time_s - first.time_s),
            updates / (last.modelled_s - first.modelled_s),
        )

    def fast_share(self, begin_s: float, end_s: float) -> float:
        """Return the share of LLC misses that the fast node served in a window."""
        inside = [p for p in self.progress if begin_s <= p.time_s <= end_s]
        return inside[-1].reading.since(inside[0].reading).fast_share

    def seconds_to_recover(self, moved_s: float, settled_rate: float, share: float) -> float | None:
        """Return guest seconds from the hot set's move until ``share`` of the settled rate.

        The rate is by modelled time per interval; recovery is the start of the first two
        consecutive intervals that reach the share. None without recovery.
        """
        after = [p for p in self.progress if p.time_s >= moved_s]
        good = [
            (b.updates - a.updates) / (b.modelled_s - a.modelled_s) >= share * settled_rate
            for a, b in itertools.pairwise(after)
            if b.modelled_s > a.modelled_s
        ]
        for i in range(len(good) - 1):
            if good[i] and good[i + 1]:
                return after[i].time_s - moved_s
        return None


class _Listener:
    """Parses the program's output line by line, on the agent's thread."""

    def __init__(self, meter: Meter):
        self._meter = meter
        self._pending = b""
        self.run = HotSetRun()
        self.ready = threading.Event()
        self._modelled_start_ps: int | None = None

    def __call__(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, said: dict[str, float]) -> None:
        if "ready" in said:
            self.ready.set()
        elif "integrity_ok" in said:
            self.run.integrity_ok = bool(said["integrity_ok"])
        elif "t_s" in said:
            clock_ps = int(said["modelled_ps"])
            if self._modelled_start_ps is None:
                self._modelled_start_ps = clock_ps
            self.run.progress.append(
                HotsetProgress(
                    said["t_s"],
                    int(said["phase"]),
                    int(said["updates"]),
                    (clock_ps - self._modelled_start_ps) * 1e-12,
                    self._meter.read(),
                )
            )


def run_hot_set(machine: Machine, settings: HotSet, variant: Variant, meter: Meter) -> HotSetRun:
    """Run the program once in a variant; the timing model starts after it has filled its memory.

    Raises HmdError where the program fails; the result reports corrupt words.
    """
    listener = _Listener(meter)
    complaints = bytearray()
    with meter.paused():
        job = machine.start(
            [*bound_to(variant, PROGRAM_CPU), *settings.command()],
            stdin=True,
            stdout=listener,
            stderr=complaints.extend,
        )
        if not listener.ready.wait(120):
            job.kill()
            raise HmdError(f"hotset did not become ready: {complaints.decode(errors='replace')}")
    job.write(b"go\n")
    code = job.wait(settings.seconds * 4 + 120)
    if code not in (0, 1):
        raise HmdError(f"hotset failed with {code}: {complaints.decode(errors='replace')}")
    return listener.run
