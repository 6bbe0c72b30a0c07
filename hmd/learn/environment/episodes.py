"""Episodes: what one run in the training of a design is, drawn at random.

Takes recorded programs and ranges; gives a program with a machine, a size of fast memory and a
sampling of its misses. Equal seeds give equal episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hmd.emulate.preset import NodePreset, Preset, load
from hmd.emulate.recordings.layout_replay import tiers_of
from hmd.emulate.recordings.miss_stream import MissStream
from hmd.learn.environment.episode_settings import EpisodeSettings
from hmd.learn.environment.stitching import StreamPart, in_turns, stitched
from hmd.simulate.simulated_pmu import PmuSettings
from hmd.simulate.simulation import SimulationSettings

_VARIED: Final = (
    "read_latency_ns",
    "write_latency_ns",
    "read_bandwidth_gbps",
    "write_bandwidth_gbps",
)
_TRIES: Final = 100
_SEEDS: Final = 2**31


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
