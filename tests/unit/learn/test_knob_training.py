"""Training of the tabular design, which needs no extra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.errors import ConfigError
from hmd.learn.environment.episode_run import EpisodeRun
from hmd.learn.environment.knobs import NEUTRAL
from hmd.learn.knob_designs.knob_design import read_design
from hmd.learn.knob_designs.knob_table import KnobTable
from hmd.learn.knob_designs.knob_training import STAGES, KnobTraining, speed_of
from hmd.learn.train_settings import TrainingPlan, read_plan
from tests.unit.learn.conftest import CONFIG

EPISODES = """\
knob_ticks: 60
episodes:
  presets: [dram-pm]
  period_least: 29
  period_most: 58
  misses_most: 20000
"""


@pytest.fixture
def plan(config: Path) -> TrainingPlan:
    config.write_text(CONFIG + EPISODES)
    return read_plan(config)


def test_table_training_learns_and_keeps_the_best_stage(plan: TrainingPlan, tmp_path: Path) -> None:
    said: list[str] = []
    trained = KnobTraining(plan, tmp_path / "knobs", say=said.append).run("table")
    assert [point.ticks for point in trained.curve] == list(range(6, 66, 6))
    assert len(said) == STAGES
    assert isinstance(trained.design, KnobTable)
    assert np.count_nonzero(trained.design.volume) > 0
    best = max(point.speed for point in trained.curve)
    last = [point for point in trained.curve if point.speed == best][-1]
    assert f"{last.speed:.3f} x first touch" in said[trained.curve.index(last)]


def test_training_interrupted_and_resumed_does_the_rest(plan: TrainingPlan, tmp_path: Path) -> None:
    folder, said = tmp_path / "knobs", list[str]()

    def interrupt(line: str) -> None:
        said.append(line)
        if len(said) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        KnobTraining(plan, folder, say=interrupt).run("table")
    begun = read_design(folder / "best.npz")
    trained = KnobTraining(plan, folder, resume=True, say=said.append).run("table")
    assert len(said) == STAGES
    assert len(trained.curve) == STAGES
    assert begun.kind == trained.design.kind == "table"


def test_training_resumed_from_damaged_files_is_refused(plan: TrainingPlan, tmp_path: Path) -> None:
    folder = tmp_path / "knobs"
    KnobTraining(plan, folder).run("table")
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"cannot be continued \(.*\): leave --resume out"):
        KnobTraining(plan, folder, resume=True).run("table")


def test_learner_prefers_the_volume_that_pays(plan: TrainingPlan, tmp_path: Path) -> None:
    """With the hot set on the slow node, moving it is worth more than moving nothing."""
    settings = plan.settings.model_copy(update={"knob_ticks": 400})
    longer = replace(plan, settings=settings)
    table = KnobTraining(longer, tmp_path / "knobs").run("table").design
    assert isinstance(table, KnobTable)
    seen = np.flatnonzero(np.abs(table.volume).sum(axis=1))
    assert len(seen) > 2
    assert table.volume[seen].argmax(axis=1).max() > 0


def test_speed_of_knobs_that_move_nothing_is_that_of_samples(plan: TrainingPlan) -> None:
    [episode] = KnobTraining(plan, Path("unused"))._held_out[:1]
    still = speed_of(lambda _: (-1.0, 0.0, 0.0), episode)
    assert 0.9 < still < 1
    assert speed_of(lambda _: NEUTRAL, episode) != still
    with EpisodeRun(episode) as run:
        assert run.runtime_s < run.reference_s[-1]
