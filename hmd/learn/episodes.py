# SPDX-License-Identifier: MIT
"""Episodes of the training environment: simulated runs of programs, with knobs to set in each tick.

``EpisodeSource`` draws an episode at random: a recorded program, or parts of several stitched
together, so that no recording can be learnt by heart; a machine, a size of fast memory, and a
sampling of its misses. Equal seeds give equal episodes.

``EpisodeRun`` runs the daemon over it tick by tick. The rule is the policy ``benefit``, whose
settings follow from three knobs (``Knobs``). Published designs act on such knobs rather than on
pages: ArtMem (ISCA 2025) on the migration volume and a threshold of heat, IDT (HPDC 2024) on the
age at which pages are demoted. After each tick there are scale-free signals, all known to a daemon,
and a reward: the time that the tick's misses would have taken under first touch without moves, less
the time that they took. Moves cost what they take of the program's time, so that there is no price
to set: rewards add up to the seconds by which the program ends earlier than first touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from hmd.base.errors import UsageError
from hmd.base.units import PAGE_BYTES
from hmd.emulate.preset import NodePreset, Preset, load
from hmd.emulate.recordings.misses import MissFlag, MissOutcomes, MissStream
from hmd.emulate.recordings.replay import tiers_of
from hmd.learn.rows import HEADROOM_BYTES
from hmd.learn.settings import EpisodeSettings
from hmd.policy.builtin.benefit import Benefit, BenefitSettings
from hmd.policy.latency import loaded_latency_ns, tier_latency_ns
from hmd.policy.nodes import Nodes, nodes_of
from hmd.policy.plan import MachineView, Plan
from hmd.simulate.machine import SimulatedMachine
from hmd.simulate.memory import first_touch
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings

if TYPE_CHECKING:
    from hmd.heat.view import PageView

# Address space of one recording; user space has 2**47 bytes.
_APART: Final = np.uint64(1 << 47)
_NO_LOAD: Final = np.uint8(
    MissFlag.STORE | MissFlag.HALT | MissFlag.WRITE_BACK | MissFlag.COVERED | MissFlag.TABLE
)

_VARIED: Final = (
    "read_latency_ns",
    "write_latency_ns",
    "read_bandwidth_gbps",
    "write_bandwidth_gbps",
)

_TRIES: Final = 100
_SEEDS: Final = 2**31

NAMES: Final = ("volume", "confidence", "horizon")
"""The knobs, in the order of their places."""

NEUTRAL: Final = (0.0, 0.0, 0.0)
"""Places at which the knobs leave the rule as it is."""

# Below this place nothing moves; up to 0, each 0.25 doubles the volume; above, all may move.
_NO_VOLUME: Final = -0.9

_VOLUME_OCTAVES: Final = 4.0
_CONFIDENCE: Final = BenefitSettings().confidence

# The horizon at the ends of its range: 16 times shorter or longer.
_HORIZON_OCTAVES: Final = 4.0

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
    *(f"last_{name}" for name in NAMES),
)
"""Names of the figures, in order."""

MOST: Final = 2.0
"""Figures are between minus this and this."""

_LONG: Final = 1 / 16
_LEAST: Final = 1e-9
_HOTTEST: Final = 0.9
Figures = npt.NDArray[np.float32]
_S_PER_PS = 1e-12


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Rows ``begin`` to ``end`` of a recording."""

    stream: MissStream
    begin: int
    end: int


def in_turns(parts: Sequence[StreamPart], turn: int) -> list[StreamPart]:
    """Return the parts cut into turns of at most ``turn`` rows, one of each part after another."""
    cut = [
        [
            StreamPart(part.stream, begin, min(begin + turn, part.end))
            for begin in range(part.begin, part.end, turn)
        ]
        for part in parts
    ]
    most = max(map(len, cut), default=0)
    return [turns[number] for number in range(most) for turns in cut if number < len(turns)]


def stitched(parts: Sequence[StreamPart]) -> MissStream:
    """Return a recording of all parts in order; UsageError for a program of several CPUs."""
    if any(part.stream.threads is not None for part in parts):
        raise UsageError("programs of several CPUs cannot be stitched: record them on one CPU")
    streams: list[MissStream] = []
    owner = [_position(streams, part.stream) for part in parts]
    used, number = _numbering(streams, parts, owner)
    instructions, passed = [], np.uint64(0)
    for part in parts:
        rows = part.stream.instructions[part.begin : part.end]
        before = part.stream.instructions[part.begin - 1] if part.begin else np.uint64(0)
        instructions.append(rows - before + passed)
        passed = instructions[-1][-1] if len(rows) else passed
    spans = [slice(part.begin, part.end) for part in parts]
    whole = [part.stream for part in parts]
    return MissStream(
        instructions=np.concatenate(instructions),
        paid_hits=np.concatenate([s.paid_hits[at] for s, at in zip(whole, spans, strict=True)]),
        near_hits=np.concatenate([s.near_hits[at] for s, at in zip(whole, spans, strict=True)]),
        page=np.concatenate(
            [number[of][s.page[at]] for of, s, at in zip(owner, whole, spans, strict=True)]
        ),
        line=np.concatenate([s.line[at] for s, at in zip(whole, spans, strict=True)]),
        flags=np.concatenate([s.flags[at] for s, at in zip(whole, spans, strict=True)]),
        depends=np.concatenate([_depends(part) for part in parts]),
        page_address=np.concatenate([addresses for addresses, _ in used]),
        user_pages=sum(len(addresses) for addresses, user in used if user),
    )


def _numbering(
    streams: Sequence[MissStream], parts: Sequence[StreamPart], owner: Sequence[int]
) -> tuple[list[tuple[npt.NDArray[np.uint64], bool]], list[npt.NDArray[np.uint32]]]:
    """Return the addresses of the pages that parts use, and the new number of each page by stream.

    Addresses are in runs of one stream's pages, all those of users first.
    """
    seen = [np.zeros(stream.pages, np.bool_) for stream in streams]
    for part, of in zip(parts, owner, strict=True):
        seen[of][part.stream.page[part.begin : part.end]] = True
    number = [np.zeros(stream.pages, np.uint32) for stream in streams]
    used: list[tuple[npt.NDArray[np.uint64], bool]] = []
    count = 0
    for user in (True, False):
        for of, stream in enumerate(streams):
            own = np.arange(stream.pages) < stream.user_pages
            pages = np.flatnonzero(seen[of] & (own == user))
            number[of][pages] = count + np.arange(len(pages))
            count += len(pages)
            used.append((stream.page_address[pages] + np.uint64(of) * _APART, user))
    return used, number


def _depends(part: StreamPart) -> npt.NDArray[np.uint16]:
    """Return the distances to the loads of addresses, 0 where these are before the part."""
    rows = slice(part.begin, part.end)
    load = (part.stream.flags[rows] & _NO_LOAD) == 0
    before = np.cumsum(load) - load
    depends = part.stream.depends[rows]
    return np.where(depends <= before, depends, np.uint16(0))


def _position(streams: list[MissStream], stream: MissStream) -> int:
    """Return the position of a stream in the list, added if it is new."""
    for at, known in enumerate(streams):
        if known is stream:
            return at
    streams.append(stream)
    return len(streams) - 1


@dataclass(frozen=True, slots=True)
class Episode:
    """A program with room for ``fast_pages`` of its pages on the fast node of a machine."""

    stream: MissStream
    preset: Preset
    fast_pages: int
    settings: SimulationSettings


class EpisodeSource:
    """Draws episodes; ``pace`` has the daemon's tick and delay."""

    def __init__(
        self,
        streams: Sequence[MissStream],
        settings: EpisodeSettings,
        pace: SimulationSettings,
    ) -> None:
        self._streams, self._settings, self._pace = tuple(streams), settings, pace
        self._presets = [load(name) for name in settings.presets]

    def draw(self, random: np.random.Generator) -> Episode:
        """Return an episode."""
        settings = self._settings
        stream = self._program(random)
        preset = self._presets[int(random.integers(len(self._presets)))]
        share = _between(random, settings.fast_least, settings.fast_most)
        period = round(_between(random, settings.period_least, settings.period_most))
        loss = float(random.uniform(0, settings.loss_most))
        sampling = PmuSettings(period, loss, seed=int(random.integers(_SEEDS)))
        return Episode(
            stream,
            varied(preset, settings.latency_factor, random),
            max(round(share * stream.user_pages), 1),
            replace(self._pace, sampling=sampling),
        )

    def _program(self, random: np.random.Generator) -> MissStream:
        """Return a program: a part of a recording, or several parts stitched together."""
        settings = self._settings
        count = int(random.integers(1, settings.parts_most + 1))
        of_each = settings.misses_most // count
        parts = []
        for _ in range(count):
            stream = self._streams[int(random.integers(len(self._streams)))]
            if count == 1 and len(stream) <= of_each:
                return stream
            rows = min(of_each, len(stream))
            begin = int(random.integers(len(stream) - rows + 1))
            parts.append(StreamPart(stream, begin, begin + rows))
        shared = bool(random.integers(2))
        return stitched(in_turns(parts, settings.turn_misses) if shared else parts)


def varied(preset: Preset, factor: float, random: np.random.Generator) -> Preset:
    """Return a machine whose latencies and bandwidths are up to ``factor`` times higher or lower.

    The fast node stays the fast one, in latency and in bandwidth.
    """
    fast, slow = tiers_of(preset)
    ahead = preset.nodes[fast].read_latency_ns <= preset.nodes[slow].read_latency_ns
    for _ in range(_TRIES):
        nodes = tuple(_varied_node(node, factor, random) for node in preset.nodes)
        made = preset.model_copy(update={"nodes": nodes})
        sooner = nodes[fast].read_latency_ns <= nodes[slow].read_latency_ns
        if tiers_of(made) == (fast, slow) and sooner == ahead:
            return made
    return preset


def _varied_node(node: NodePreset, factor: float, random: np.random.Generator) -> NodePreset:
    return node.model_copy(
        update={
            name: getattr(node, name) * _between(random, 1 / factor, factor) for name in _VARIED
        }
    )


def _between(random: np.random.Generator, least: float, most: float) -> float:
    """Return a number between two, uniform in its logarithm."""
    return float(np.exp(random.uniform(np.log(least), np.log(most))))


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a rule may move in a tick, and when.

    ``volume`` is the share of the fast node's memory that may move, both ways together.
    ``confidence`` is how certain a gain must be, in standard deviations. ``horizon`` is how long
    heat is taken to last, relative to what the rule expects: moves have to pay in that time.
    """

    volume: float
    confidence: float
    horizon: float

    @classmethod
    def at(cls, place: Sequence[float]) -> Self:
        """Return the knobs at places of shape ``(3,)``; places beyond -1 and 1 are as these."""
        volume, confidence, horizon = (min(max(float(each), -1.0), 1.0) for each in place)
        return cls(
            0.0 if volume < _NO_VOLUME else 2 ** (_VOLUME_OCTAVES * min(volume, 0.0)),
            _CONFIDENCE * (1 + confidence),
            2 ** (_HORIZON_OCTAVES * horizon),
        )


class KnobSignals:
    """Computes the figures, tick by tick."""

    def __init__(self) -> None:
        self._share: float | None = None
        self._long = 0.0

    def of(
        self,
        pages: PageView,
        machine: MachineView,
        nodes: Nodes,
        plan: Plan,
        place: Sequence[float],
    ) -> Figures:
        """Return the figures of a tick, shape ``(len(SIGNALS),)``; ``place`` is of its knobs."""
        size = pages.size.astype(np.float64)
        served = pages.rate * size
        fast = pages.movable & (pages.tier == 0)
        slow = pages.movable & (pages.tier > 0)
        total, resident = max(float(served.sum()), _LEAST), max(float(size.sum()), 1.0)
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
            np.log2(loaded[-1] / max(loaded[0], _LEAST)) / 4,
            np.log2(loaded[-1] / max(idle[-1], _LEAST)) / 4,
            np.log2(1 + samples) / 16,
            np.log2(1 + support) / 8,
            _hotter(pages.rate[slow], served[fast], size[fast]) / 8,
            float(served[pages.wear > 0].sum()) / total,
            float(plan.pages.sum()) / held,
            *place,
        ]
        limited: Figures = np.clip(np.array(figures), -MOST, MOST).astype(np.float32)
        return limited


def _hotter(
    slow: npt.NDArray[np.float32], served: npt.NDArray[np.float64], size: npt.NDArray[np.float64]
) -> float:
    """Return by how many octaves the hottest slow pages are hotter than the mean fast page."""
    if not len(slow) or not len(size):
        return 0.0
    hottest = float(np.quantile(slow, _HOTTEST))
    mean = float(served.sum() / max(size.sum(), 1.0))
    return float(np.log2((hottest + 1.0) / (mean + 1.0)))


class KnobPolicy:
    """Plans as the policy ``benefit`` does, with knobs that the caller sets between ticks.

    ``place`` is where the knobs are in the next tick, ``signals`` are the figures of the last.
    """

    name = "knobs"

    def __init__(self) -> None:
        self._settings = BenefitSettings(headroom=0.0, headroom_min=HEADROOM_BYTES)
        self._rule = Benefit(self._settings)
        self._figures = KnobSignals()
        self.place: Sequence[float] = NEUTRAL
        self.signals: Figures = np.zeros(len(SIGNALS), np.float32)

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Return the rule's moves with the knobs of this tick."""
        settings, knobs = self._settings, Knobs.at(self.place)
        nodes = nodes_of(machine, settings.headroom, settings.headroom_min)
        if nodes.tiers < 2 or not len(pages):
            return Plan.empty(pages.processes)
        move_ns = settings.move_ns / knobs.horizon
        self._rule.settings = settings.model_copy(
            update={"confidence": knobs.confidence, "move_ns": move_ns}
        )
        budget = min(machine.budget_bytes, int(knobs.volume * nodes.fast_bytes))
        plan = self._rule.plan(pages, replace(machine, budget_bytes=budget))
        self.signals = self._figures.of(pages, machine, nodes, plan, self.place)
        return plan


@dataclass(frozen=True, slots=True)
class EpisodeTick:
    """A tick of an episode: the figures at its end, the seconds that it saved, and the end."""

    signals: Figures
    saved_s: float
    done: bool


class EpisodeRun:
    """A running episode; a context manager, which frees the machine.

    ``reference_s`` has the time of each row under first touch, shape ``(rows + 1,)``.
    """

    def __init__(self, episode: Episode) -> None:
        self.reference_s = first_touch_s(episode)
        self.tick_s = episode.settings.tick_s
        self._policy = KnobPolicy()
        self._machine = SimulatedMachine(
            episode.stream, episode.preset, episode.fast_pages, episode.settings.cost
        )
        self._daemon = SimulatedDaemon(self._machine, self._policy, episode.settings)
        self._row, self._program_s = self._machine.row, self._machine.program_s

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the machine."""
        self.close()

    def close(self) -> None:
        """Free the machine."""
        self._machine.__exit__(None, None, None)

    @property
    def signals(self) -> Figures:
        """The figures of the last tick."""
        return self._policy.signals

    @property
    def done(self) -> bool:
        """True once the program has ended."""
        return self._machine.done

    @property
    def runtime_s(self) -> float:
        """How long the program has run."""
        return self._machine.program_s

    def step(self, place: Sequence[float]) -> EpisodeTick:
        """Run a tick with the knobs at ``place``."""
        self._policy.place = place
        self._daemon.tick()
        row, program_s = self._machine.row, self._machine.program_s
        took_s = program_s - self._program_s
        saved_s = float(self.reference_s[row] - self.reference_s[self._row]) - took_s
        self._row, self._program_s = row, program_s
        return EpisodeTick(self.signals, saved_s, self.done)


def first_touch_s(episode: Episode) -> npt.NDArray[np.float64]:
    """Return when each row begins under first touch without moves or samples, and when all end."""
    stream = episode.stream
    outcomes = MissOutcomes.empty(len(stream))
    end_ps = first_touch(stream, episode.preset, episode.fast_pages, outcomes)
    rows_ps = np.append(outcomes.clock_ps, np.uint64(end_ps))
    return np.asarray(rows_ps, np.float64) * _S_PER_PS
