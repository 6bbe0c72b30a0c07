"""Training of designs of knobs on recorded programs, in stages.

Takes a configuration; gives the design of the stage that was best on episodes held out, and the
learning curve. Episodes held out are of the recordings ``held_out`` or, where there are none, other
episodes of the same recordings. Each stage is a tenth of the training, after which it can be
resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Final, Protocol

import numpy as np

from hmd.emulate.recordings.miss_stream import MissStream
from hmd.errors import ConfigError
from hmd.learn.environment.episode_run import EpisodeRun
from hmd.learn.environment.episodes import Episode, EpisodeSource
from hmd.learn.environment.knob_policy import Chooser
from hmd.learn.environment.knobs import NEUTRAL
from hmd.learn.knob_designs.knob_design import KnobDesign, read_design, write_design
from hmd.learn.train_settings import TrainingPlan
from hmd.numpy_archive import DAMAGED, reason_of

STAGES: Final = 10
_EPISODES: Final = 6  # held out
_CURVE: Final = "curve.json"
_BEST: Final = "best.npz"


class KnobLearner(Protocol):
    """What trains a design; ``restore`` continues from what ``save`` wrote to a folder."""

    @property
    def ticks(self) -> int:
        """Ticks that it has learnt from."""
        ...

    def advance(self, ticks: int) -> KnobDesign:
        """Learn until it has learnt from at least so many ticks; returns the design so far."""
        ...

    def save(self, folder: Path) -> None:
        """Write the state."""
        ...

    def restore(self, folder: Path) -> None:
        """Read the state."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Ticks of training, and the speed on episodes held out: a mean, relative to first touch."""

    ticks: int
    speed: float


@dataclass(frozen=True, slots=True)
class TrainedKnobs:
    """The best design, the learning curve, and the speed of knobs that are left as they are."""

    design: KnobDesign
    curve: tuple[CurvePoint, ...]
    neutral_speed: float


class KnobTraining:
    """A training of one design; ``folder`` is for what ``resume`` continues from."""

    def __init__(
        self,
        plan: TrainingPlan,
        folder: Path,
        *,
        workers: int = 1,
        resume: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._plan, self._folder = plan, folder
        self._workers, self._resume = workers, resume
        self._say = say or (lambda _: None)
        settings = plan.settings
        streams = {name: MissStream.read(path) for name, path in plan.recordings.items()}
        self._source = self._of([streams[name] for name in plan.trained])
        tested = [streams[name] for name in settings.held_out]
        random = np.random.default_rng((settings.seed, _EPISODES))
        source = self._of(tested) if tested else self._source
        self._held_out = [source.draw(random) for _ in range(_EPISODES)]

    def run(self, kind: str) -> TrainedKnobs:
        """Train a design of this kind."""
        self._folder.mkdir(parents=True, exist_ok=True)
        settings, learner = self._plan.settings, self._learner(kind)
        curve: list[CurvePoint] = []
        kept = self._folder / _CURVE
        try:
            if self._resume and kept.exists():
                try:
                    learner.restore(self._folder)
                    curve = [CurvePoint(**each) for each in json.loads(kept.read_text())]
                except (*DAMAGED, UnpicklingError) as error:
                    raise ConfigError(
                        f"{self._folder} cannot be continued ({reason_of(error)}):"
                        " leave --resume out"
                    ) from error
            neutral = mean_speed_of(lambda _: NEUTRAL, self._held_out)
            for stage in range(len(curve), STAGES):
                design = learner.advance(max(settings.knob_ticks * (stage + 1) // STAGES, 1))
                curve.append(CurvePoint(learner.ticks, mean_speed_of(design, self._held_out)))
                if curve[-1].speed >= max(point.speed for point in curve):
                    write_design(design, self._folder / _BEST)
                learner.save(self._folder)
                partial = kept.with_suffix(".partial")
                partial.write_text(json.dumps([asdict(point) for point in curve]))
                partial.replace(kept)
                self._say(
                    f"stage {stage + 1} of {STAGES}: {curve[-1].speed:.3f} x first touch on"
                    f" episodes held out, neutral knobs {neutral:.3f}"
                )
        finally:
            learner.close()
        return TrainedKnobs(read_design(self._folder / _BEST), tuple(curve), neutral)

    def _of(self, streams: list[MissStream]) -> EpisodeSource:
        settings = self._plan.settings
        pace = settings.simulation(settings.periods[0], settings.seed)
        return EpisodeSource(streams, settings.episodes, pace)

    def _learner(self, kind: str) -> KnobLearner:
        settings = self._plan.settings
        if kind == "table":
            from hmd.learn.knob_designs.table_learner import TableLearner

            return TableLearner(self._source, settings.knob_ticks, settings.seed)
        from hmd.learn.knob_designs.ppo_learner import PpoLearner

        return PpoLearner(self._source, settings.seed, self._workers)


def mean_speed_of(choose: Chooser, episodes: list[Episode]) -> float:
    """Return the speed of a design relative to first touch, the geometric mean over episodes."""
    return float(np.exp(np.mean([np.log(speed_of(choose, each)) for each in episodes])))


def speed_of(choose: Chooser, episode: Episode) -> float:
    """Return the speed of a design on an episode, relative to first touch without samples."""
    with EpisodeRun(episode) as run:
        signals = run.signals
        while not run.done:
            signals = run.step(choose(signals)).signals
        return float(run.reference_s[-1]) / run.runtime_s
