"""The training environment as gymnasium has them: an episode is a simulated run of a program.

Takes a source of episodes. Actions are places of the knobs (:mod:`hmd.learn.environment.knobs`),
observations figures of the system (:mod:`hmd.learn.environment.knob_signals`), rewards seconds
saved (:mod:`hmd.learn.environment.episode_run`); a step is a tick of the daemon. Needs the extra
train; the API is that of Towers et al., "Gymnasium: a standard interface for reinforcement learning
environments", arXiv:2407.17032.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from hmd.learn.environment.episode_run import EpisodeRun
from hmd.learn.environment.episodes import EpisodeSource
from hmd.learn.environment.knob_signals import MOST, SIGNALS, Figures
from hmd.learn.environment.knobs import NAMES


class TieringEnv(gymnasium.Env):
    """Memory tiering of one program at a time; ``saved_s`` in the information is the reward."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, source: EpisodeSource) -> None:
        self._source = source
        self._run: EpisodeRun | None = None
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(NAMES),), np.float32)
        self.observation_space = gymnasium.spaces.Box(-MOST, MOST, (len(SIGNALS),), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Figures, dict[str, Any]]:
        """Begin another episode; ``seed`` makes this one and those after it repeatable."""
        super().reset(seed=seed, options=options)
        self.close()
        self._run = EpisodeRun(self._source.draw(self.np_random))
        return self._run.signals, {}

    def step(self, action: Figures) -> tuple[Figures, float, bool, bool, dict[str, Any]]:
        """Run a tick."""
        if self._run is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        tick = self._run.step(np.asarray(action, np.float64).tolist())
        found = {"saved_s": tick.saved_s, "runtime_s": self._run.runtime_s}
        return tick.signals, tick.saved_s, tick.done, False, found

    def close(self) -> None:
        """Free the machine of the episode."""
        if self._run is not None:
            self._run.close()
            self._run = None
