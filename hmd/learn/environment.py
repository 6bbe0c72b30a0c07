# SPDX-License-Identifier: MIT
"""The training environment of gymnasium: an episode is a simulated run of a program.

A step is a tick of the daemon. Actions are places of the knobs, observations the signals, rewards
seconds saved (:mod:`hmd.learn.episodes`). Needs the extra train; the API is that of Towers et al.,
"Gymnasium: a standard interface for reinforcement learning environments", arXiv:2407.17032::

    env = TieringEnv.from_plan(read_plan(Path("train.yaml")))
    signals, _ = env.reset(seed=1)
    signals, saved_s, done, _, _ = env.step(np.zeros(3, np.float32))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import gymnasium
import numpy as np

from hmd.emulate.recordings.misses import MissStream
from hmd.learn.episodes import MAX_SIGNAL, NEUTRAL, SIGNALS, EpisodeRun, Signals, draw_episode
from hmd.learn.settings import EpisodeSettings, TrainingPlan
from hmd.simulate.cases import read_program
from hmd.simulate.simulation import SimulationSettings


class TieringEnv(gymnasium.Env):
    """Memory tiering of one program at a time; ``saved_s`` in the information is the reward."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(
        self, streams: Sequence[MissStream], settings: EpisodeSettings, pace: SimulationSettings
    ) -> None:
        self._drawn_from = tuple(streams), settings, pace
        self._run: EpisodeRun | None = None
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(NEUTRAL),), np.float32)
        self.observation_space = gymnasium.spaces.Box(
            -MAX_SIGNAL, MAX_SIGNAL, (len(SIGNALS),), np.float32
        )

    @classmethod
    def from_plan(cls, plan: TrainingPlan) -> Self:
        """Return the environment of a training's configuration, on the recordings to train on."""
        streams = [read_program(plan.recordings[name]) for name in plan.trained]
        settings = plan.settings
        pace = settings.simulation(settings.periods[0], settings.seed)
        return cls(streams, settings.episodes, pace)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Signals, dict[str, Any]]:
        """Begin another episode; ``seed`` makes this one and those after it repeatable."""
        super().reset(seed=seed, options=options)
        self.close()
        self._run = EpisodeRun(draw_episode(*self._drawn_from, self.np_random))
        return self._run.signals, {}

    def step(self, action: Signals) -> tuple[Signals, float, bool, bool, dict[str, Any]]:
        """Run a tick."""
        if self._run is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        run = self._run
        saved_s = run.step(np.asarray(action, np.float64).tolist())
        found = {"saved_s": saved_s, "runtime_s": run.runtime_s}
        return run.signals, saved_s, run.done, False, found

    def close(self) -> None:
        """Free the machine of the episode."""
        if self._run is not None:
            self._run.close()
            self._run = None
