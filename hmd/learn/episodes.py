# SPDX-License-Identifier: MIT
"""Episodes of the training environment: simulated runs of programs, with knobs to set in each tick.

``draw_episode`` draws one at random: a part of a recorded program, a machine, a size of fast
memory, and a sampling of its misses. Equal seeds give equal episodes.

``EpisodeRun`` runs the daemon over it tick by tick. The rule is the policy ``benefit``, whose
settings follow from three knobs (``Knobs``). Published designs act on such knobs rather than on
pages: ArtMem (ISCA 2025) on the migration volume and a threshold of heat, IDT (HPDC 2024) on the
age at which pages are demoted. After each tick there are scale-free signals, all known to a daemon,
and a reward: the time that the tick's misses would have taken under first touch without moves, less
the time that they took. Rewards add up to the seconds by which the program ends earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.learn.rows import HEADROOM_BYTES
from hmd.learn.settings import EpisodeSettings
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.latency import loaded_latency_ns, tier_latency_ns
from hmd.policy.nodes import Nodes, nodes_of
from hmd.policy.plan import MachineView, Plan
from hmd.simulate.machine import SimulatedMachine, first_touch
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings

if TYPE_CHECKING:
    from hmd.heat.view import PageView

_SEEDS: Final = 2**31
_NO_LOAD: Final = np.uint8(
    MissFlag.STORE | MissFlag.HALT | MissFlag.WRITE_BACK | MissFlag.COVERED | MissFlag.TABLE
)

# Below this place of the volume nothing moves; up to 0, each 0.25 doubles it; above, all may move.
_NO_VOLUME: Final = -0.9
_OCTAVES: Final = 4.0
"""Of the volume below its place 0, and of the horizon to either side."""

SIGNALS: Final = (
    "fast_share",  # share of accesses that the fast tier serves, by the rates of pages
    "fast_share_change",  # since the last tick
    "fast_share_16",  # its average over 16 ticks
    "tick_gap",  # the same share by the samples of this tick alone, less fast_share
    "free",  # share of the fast tier's memory that is free
    "fits",  # share of the resident pages that the fast tier can hold
    "latency_ratio",  # latency of the slow tier over that of the fast one, in 4 octaves
    "queueing",  # loaded over idle latency of the slow tier, in 4 octaves
    "samples",  # samples of the tick, in 16 octaves
    "support",  # samples behind the rate of a page, mean over accesses, in 8 octaves
    "hot_slow",  # rate of the hottest tenth of slow pages over the fast mean, in 8 octaves
    "worn",  # share of accesses to pages that have moved lately
    "planned",  # pages of the plan over those of the fast tier
    "last_volume",  # places of the knobs in this tick
    "last_confidence",
    "last_horizon",
)
"""Names of the signals, in order."""
MAX_SIGNAL: Final = 2.0
"""Signals are between minus this and this."""

_LONG: Final = 1 / 16
_MIN_RATE: Final = 1e-9
_HOTTEST: Final = 0.9
_S_PER_PS: Final = 1e-12
Signals = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Episode:
    """A program with room for ``fast_pages`` of its pages on the fast node of a machine."""

    stream: MissStream
    preset: Preset
    fast_pages: int
    settings: SimulationSettings


def draw_episode(
    streams: Sequence[MissStream],
    settings: EpisodeSettings,
    pace: SimulationSettings,
    random: np.random.Generator,
) -> Episode:
    """Return an episode of recorded programs; ``pace`` has the daemon's tick and delay."""
    stream = streams[int(random.integers(len(streams)))]
    rows = min(settings.misses_most, len(stream))
    begin = int(random.integers(len(stream) - rows + 1))
    if rows < len(stream):
        stream = part_of(stream, begin, begin + rows)
    preset = load(settings.presets[int(random.integers(len(settings.presets)))])
    share = _between(random, settings.fast_least, settings.fast_most)
    period = round(_between(random, settings.period_least, settings.period_most))
    loss = float(random.uniform(0, settings.loss_most))
    sampling = PmuSettings(period, loss, seed=int(random.integers(_SEEDS)))
    return Episode(
        stream,
        preset,
        max(round(share * stream.user_pages), 1),
        replace(pace, sampling=sampling),
    )


def part_of(stream: MissStream, begin: int, end: int) -> MissStream:
    """Return a program of some rows of a recording, and the pages that they access."""
    before = stream.instructions[begin - 1] if begin else np.uint64(0)
    used, page = np.unique(stream.page[begin:end], return_inverse=True)
    # A load whose address came before the part depends on none.
    load = (stream.flags[begin:end] & _NO_LOAD) == 0
    known = stream.depends[begin:end] <= np.cumsum(load) - load
    return MissStream(
        instructions=stream.instructions[begin:end] - before,
        paid_hits=stream.paid_hits[begin:end],
        near_hits=stream.near_hits[begin:end],
        page=page.astype(np.uint32),
        line=stream.line[begin:end],
        flags=stream.flags[begin:end],
        depends=np.where(known, stream.depends[begin:end], np.uint16(0)),
        page_address=stream.page_address[used],
        user_pages=int(np.searchsorted(used, stream.user_pages)),
    )


def _between(random: np.random.Generator, least: float, most: float) -> float:
    """Return a number between two, uniform in its logarithm."""
    return float(np.exp(random.uniform(np.log(least), np.log(most))))


class Knobs(NamedTuple):
    """What a rule may move in a tick, and when.

    ``volume`` is the share of the fast node's memory that may move, both ways together,
    ``confidence`` how certain a gain must be, in standard deviations, ``horizon`` how long heat is
    taken to last, relative to what the rule expects.
    """

    volume: float
    confidence: float
    horizon: float

    @classmethod
    def at(cls, place: Sequence[float]) -> Self:
        """Return the knobs at places of shape ``(3,)``, 0 where the rule is as it is.

        Places beyond -1 and 1 are as these.
        """
        volume, confidence, horizon = (min(max(float(each), -1.0), 1.0) for each in place)
        return cls(
            0.0 if volume < _NO_VOLUME else 2 ** (_OCTAVES * min(volume, 0.0)),
            BenefitSettings().confidence * (1 + confidence),
            2 ** (_OCTAVES * horizon),
        )


NEUTRAL: Final = (0.0,) * len(Knobs._fields)
"""Places at which the knobs leave the rule as it is."""


class EpisodeRun:
    """A running episode; ``close`` frees the machine.

    It is the policy of its daemon: it plans as ``benefit`` does, with the knobs of the tick.
    ``signals`` are of the last tick, shape ``(len(SIGNALS),)``. ``reference_s`` has the time of
    each row under first touch without moves or samples, shape ``(rows + 1,)``.
    """

    name = "knobs"

    def __init__(self, episode: Episode) -> None:
        stream = episode.stream
        outcomes = MissOutcomes.empty(len(stream))
        end_ps = first_touch(stream, episode.preset, episode.fast_pages, outcomes)
        rows_ps = np.append(outcomes.clock_ps, np.uint64(end_ps))
        self.reference_s: npt.NDArray[np.float64] = rows_ps.astype(np.float64) * _S_PER_PS
        self.signals: Signals = np.zeros(len(SIGNALS), np.float32)
        self._settings = BenefitSettings(headroom=0.0, headroom_min=HEADROOM_BYTES)
        self._rule, self._place = Benefit(self._settings), NEUTRAL
        self._share: float | None = None
        self._long = 0.0
        self._machine = SimulatedMachine(
            stream, episode.preset, episode.fast_pages, episode.settings.cost
        )
        self._daemon = SimulatedDaemon(self._machine, self, episode.settings)
        self._row, self._program_s = self._machine.row, self._machine.program_s

    def close(self) -> None:
        """Free the machine."""
        self._machine.__exit__(None, None, None)

    @property
    def done(self) -> bool:
        """True once the program has ended."""
        return self._machine.done

    @property
    def runtime_s(self) -> float:
        """How long the program has run."""
        return self._machine.program_s

    def step(self, place: Sequence[float]) -> float:
        """Run a tick with the knobs at ``place``; return the seconds that it saved."""
        volume, confidence, horizon = place
        self._place = float(volume), float(confidence), float(horizon)
        self._daemon.tick()
        row, program_s = self._machine.row, self._machine.program_s
        took_s = program_s - self._program_s
        saved_s = float(self.reference_s[row] - self.reference_s[self._row]) - took_s
        self._row, self._program_s = row, program_s
        return saved_s

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the rule's moves with the knobs of this tick."""
        settings, knobs = self._settings, Knobs.at(self._place)
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        move_ns = settings.move_ns / knobs.horizon
        self._rule.settings = settings.model_copy(
            update={"confidence": knobs.confidence, "move_ns": move_ns}
        )
        budget = min(machine.budget_bytes, int(knobs.volume * nodes.fast_bytes))
        plan = self._rule.plan(pages, replace(machine, budget_bytes=budget))
        self.signals = self._signals(pages, machine, nodes, plan)
        return plan

    def _signals(self, pages: PageView, machine: MachineView, nodes: Nodes, plan: Plan) -> Signals:
        size = pages.size.astype(np.float64)
        served = pages.rate * size
        fast = pages.movable & (pages.tier == 0)
        slow = pages.movable & (pages.tier > 0)
        total, resident = max(float(served.sum()), _MIN_RATE), max(float(size.sum()), 1.0)
        share = float(served[fast].sum()) / total
        before = share if self._share is None else self._share
        self._long += (share - self._long) * (1.0 if self._share is None else _LONG)
        self._share = share
        sampled = pages.tick_samples
        samples = float(sampled.sum())
        of_tick = float(sampled[fast].sum()) / samples if samples else share
        held = max(nodes.fast_bytes / PAGE_BYTES, 1.0)
        idle = tier_latency_ns(machine.topology, nodes)
        loaded = loaded_latency_ns(pages, machine.topology, nodes)
        support = float((pages.effective_samples * served).sum()) / total
        figures = [
            share,
            share - before,
            self._long,
            of_tick - share,
            float(nodes.by_tier(nodes.room)[0]) / held,
            held / resident,
            np.log2(loaded[-1] / max(loaded[0], _MIN_RATE)) / 4,
            np.log2(loaded[-1] / max(idle[-1], _MIN_RATE)) / 4,
            np.log2(1 + samples) / 16,
            np.log2(1 + support) / 8,
            _hotter(pages.rate[slow], served[fast], size[fast]) / 8,
            float(served[pages.wear > 0].sum()) / total,
            float(plan.pages.sum()) / held,
            *self._place,
        ]
        signals: Signals = np.clip(figures, -MAX_SIGNAL, MAX_SIGNAL).astype(np.float32)
        return signals


def _hotter(
    slow: npt.NDArray[np.float32], served: npt.NDArray[np.float64], size: npt.NDArray[np.float64]
) -> float:
    """Return by how many octaves the hottest slow pages are hotter than the mean fast page."""
    if not len(slow) or not len(size):
        return 0.0
    hottest = float(np.quantile(slow, _HOTTEST))
    mean = float(served.sum() / max(size.sum(), 1.0))
    return float(np.log2((hottest + 1.0) / (mean + 1.0)))
