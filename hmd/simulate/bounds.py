"""Bounds: the best runtimes found with exact knowledge of a program's misses.

Takes a recorded program, a machine, the number of pages that fit on the fast node and the daemon's
settings; gives a runtime for each kind of knowledge (:mod:`hmd.simulate.known_misses`), the best of
several horizons and thresholds, and of moving nothing. Samples cost nothing, since none are needed.
Costs two replays per program, and as many simulations per bound as there are settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.simulate.known_misses import (
    CLAIRVOYANT,
    EXACT_PAST,
    KnownMisses,
    KnownMissesSettings,
    MissValues,
)
from hmd.simulate.simulated_machine import SimulatedMachine
from hmd.simulate.simulated_pmu import PmuSettings
from hmd.simulate.simulation import Simulated, SimulatedDaemon, SimulationSettings, run_daemon

HORIZONS: Final = (2, 8, 64)
"""Ticks that a policy knows."""

MOVES_S: Final = (1e-6, 3e-6)
"""Seconds that a page must save per move: less than a move costs its program, and about that."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The best run with one kind of knowledge; ``settings`` is None where moving nothing is."""

    run: Simulated
    settings: KnownMissesSettings | None


def bounds(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    settings: SimulationSettings,
    values: MissValues | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Bound]:
    """Return the bounds by name; ``values`` are those of the stream and preset, made if None."""
    values = values or MissValues(stream, preset)
    say = say or (lambda _: None)
    unsampled = replace(settings, sampling=PmuSettings(loss=1.0, free=True))
    found = {}
    for name in (CLAIRVOYANT, EXACT_PAST):
        best: Bound | None = None
        for horizon in HORIZONS:
            for move_s in MOVES_S:
                say(f"{name}, {horizon} ticks, {move_s * 1e6:g} µs per move")
                known = KnownMissesSettings(name == EXACT_PAST, horizon, move_s)
                run = _run(stream, preset, fast_pages, values, known, unsampled)
                if best is None or run.runtime_s < best.run.runtime_s:
                    best = Bound(run, known)
        assert best is not None
        found[name] = best
    say("moving nothing")
    idle = KnownMissesSettings(past=True, horizon_ticks=0, move_s=1.0)
    still = Bound(_run(stream, preset, fast_pages, values, idle, unsampled), None)
    return {
        name: bound if bound.run.runtime_s < still.run.runtime_s else still
        for name, bound in found.items()
    }


def _run(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    values: MissValues,
    known: KnownMissesSettings,
    settings: SimulationSettings,
) -> Simulated:
    with SimulatedMachine(stream, preset, fast_pages, settings.cost) as machine:
        policy = KnownMisses(machine, values, known, settings.delay_s)
        return run_daemon(SimulatedDaemon(machine, policy, settings))
