"""Training of the network that sets the knobs, by PPO of stable-baselines3.

Takes episodes, gives a network. PPO is that of Schulman et al., "Proximal policy optimization
algorithms", arXiv:1707.06347. Needs the extra train. ``workers`` environments run at a time, each
in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from hmd.extras import missing_extra
from hmd.learn.environment.episodes import EpisodeSource
from hmd.learn.knob_designs.knob_network import Floats, KnobNetwork

_HIDDEN: Final = (32, 32)
_TICKS_EACH: Final = 256  # of each environment between two fits
_BATCH: Final = 128
_DISCOUNT: Final = 0.98
_RATE: Final = 5e-4
# Places are within 1: a first policy that explores some of that, around neutral knobs.
_LOG_DEVIATION: Final = -1.0
_CHECKPOINT: Final = "ppo.zip"
_SCALE: Final = "ppo-scale.pickle"


class PpoLearner:
    """Learns a network."""

    def __init__(self, source: EpisodeSource, seed: int, workers: int) -> None:
        try:
            import stable_baselines3 as sb3
            from stable_baselines3.common import vec_env
        except ImportError:
            raise missing_extra("the design knobs", "stable-baselines3", "train") from None
        from hmd.learn.environment.tiering_env import TieringEnv

        def made() -> Any:
            return TieringEnv(source)

        factories: list[Callable[[], Any]] = [made] * workers
        kind = vec_env.DummyVecEnv if workers == 1 else vec_env.SubprocVecEnv
        # Rewards are seconds, about 1e-4: they are divided by their deviation so far.
        self._envs = vec_env.VecNormalize(kind(factories), norm_obs=False, gamma=_DISCOUNT)
        self._sb3, self._vec_env = sb3, vec_env
        self._model = sb3.PPO(
            "MlpPolicy",
            self._envs,
            n_steps=_TICKS_EACH,
            batch_size=_BATCH,
            gamma=_DISCOUNT,
            learning_rate=_RATE,
            policy_kwargs={"net_arch": list(_HIDDEN), "log_std_init": _LOG_DEVIATION},
            seed=seed,
            device="cpu",
        )

    @property
    def ticks(self) -> int:
        """Ticks that it has learnt from."""
        return int(self._model.num_timesteps)

    def advance(self, ticks: int) -> KnobNetwork:
        """Learn until it has learnt from at least so many ticks; returns the network.

        It learns from ``_TICKS_EACH`` of each environment at a time.
        """
        if ticks > self.ticks:
            self._model.learn(ticks - self.ticks, reset_num_timesteps=False)
        return network_of(self._model.policy)

    def save(self, folder: Path) -> None:
        """Write what a later ``restore`` continues from."""
        self._model.save(folder / _CHECKPOINT)
        self._envs.save(str(folder / _SCALE))

    def restore(self, folder: Path) -> None:
        """Continue from what ``save`` wrote."""
        self._envs = self._vec_env.VecNormalize.load(str(folder / _SCALE), self._envs.venv)
        self._model = self._sb3.PPO.load(folder / _CHECKPOINT, env=self._envs, device="cpu")

    def close(self) -> None:
        """End the environments."""
        self._envs.close()


def network_of(policy: Any) -> KnobNetwork:
    """Return the mean action of a policy of stable-baselines3 as a network in numpy."""
    linear = [each for each in policy.mlp_extractor.policy_net if hasattr(each, "weight")]
    layers = [*linear, policy.action_net]

    def taken(parameter: Any) -> Floats:
        return np.array(parameter.detach().numpy(), np.float32)

    return KnobNetwork(tuple((taken(each.weight), taken(each.bias)) for each in layers))
