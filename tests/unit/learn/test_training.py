# SPDX-License-Identifier: MIT
"""Training on recorded programs, and its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import ConfigError, HmdError
from hmd.emulate.recordings.misses import MissStream, ThreadOrder
from hmd.learn.rows import TrainingRows, collect_rows
from hmd.learn.settings import read_plan
from hmd.learn.training import (
    FIRST_TOUCH,
    Trained,
    Training,
    make_policy,
    mean_speed,
    policy_speeds,
)
from hmd.policy.learned.network import LearnedWeights
from tests.unit.learn.conftest import CONFIG


def written(trained: Trained, path: Path) -> Path:
    trained.weights.write(path)
    return path


def same_weights(one: Trained, other: Trained) -> bool:
    pairs = zip(one.weights.layers, other.weights.layers, strict=True)
    return all(np.array_equal(a, b) for each in pairs for a, b in zip(*each, strict=True))


def test_training_any_workers_equal_usable_weights(config: Path, tmp_path: Path) -> None:
    plan = read_plan(config)
    trained = [Training(plan, tmp_path / str(workers), workers=workers).run() for workers in (1, 2)]
    files = [written(each, tmp_path / f"{number}.npz") for number, each in enumerate(trained)]
    assert files[0].read_bytes() == files[1].read_bytes()
    weights = LearnedWeights.read(files[0])
    assert weights.header.horizon_ticks == 3
    assert weights.header.data == trained[1].weights.header.data
    assert len(trained[0].epochs) == 3


def test_training_resumed_rows_are_reused(config: Path, tmp_path: Path) -> None:
    plan, folder = read_plan(config), tmp_path / "rows"
    first = Training(plan, folder).run()
    rows = sorted(folder.glob("rows-*.npz"))
    assert len(rows) == 2
    begun = [file.stat().st_mtime_ns for file in rows]
    rows[0].unlink()
    again = Training(plan, folder, resume=True).run()
    assert rows[0].exists()
    assert rows[1].stat().st_mtime_ns == begun[1]
    assert same_weights(again, first)


def test_training_resumed_after_a_kill_repeats_what_is_not_whole(
    config: Path, tmp_path: Path
) -> None:
    plan, folder, said = read_plan(config), tmp_path / "rows", list[str]()
    first = Training(plan, folder).run()
    cut, empty = sorted(folder.glob("rows-*.npz"))
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    empty.write_bytes(b"")
    again = Training(plan, folder, resume=True, say=said.append).run()
    assert same_weights(again, first)
    assert cut.read_bytes() == whole
    reported = [line for line in said if " of 2" in line]
    assert len(reported) == 2
    assert all(" left" in line for line in reported)


def test_training_resumed_whole_states_no_pace(config: Path, tmp_path: Path) -> None:
    plan, folder, said = read_plan(config), tmp_path / "rows", list[str]()
    Training(plan, folder).run()
    Training(plan, folder, resume=True, say=said.append).run()
    assert sum(" of 2" in line for line in said) == 2
    assert not any(" left" in line for line in said)


def test_training_file_that_is_no_recording_is_found_before_simulations(
    config: Path, tmp_path: Path
) -> None:
    config.with_name("zero.misses").write_bytes(b"no misses")
    plan, said = read_plan(config), list[str]()
    with pytest.raises(HmdError, match=r"zero\.misses holds no recorded misses"):
        Training(plan, tmp_path / "rows", say=said.append).run()
    assert not said


def test_training_recording_of_several_cpus_is_named_before_simulations(
    config: Path, tmp_path: Path
) -> None:
    threads = config.with_name("threads.misses")
    stream = MissStream.read(config.with_name("late.misses"))
    rows = np.array([0, len(stream) // 2, len(stream)])
    replace(stream, threads=ThreadOrder(rows, np.zeros((0, 2), np.uint64))).write(threads)
    said = list[str]()
    with pytest.raises(HmdError) as error:
        Training(read_plan(config), tmp_path / "rows", say=said.append).run()
    assert str(error.value).startswith(f"{threads} is a recording of 2 CPUs, ")
    assert not said


def test_trained_policy_on_program_held_out_beats_first_touch(config: Path, tmp_path: Path) -> None:
    plan = read_plan(config)
    trained = Training(plan, tmp_path / "rows").run()
    weights = str(written(trained, tmp_path / "learned.npz"))
    policies = {
        FIRST_TOUCH: lambda: make_policy("none"),
        "learned": lambda: make_policy("learned", weights=weights, move_ns=3000.0),
    }
    rows = policy_speeds(plan, policies)
    assert [row.held_out for row in rows] == [True, False]
    assert mean_speed(rows[:1], "learned") > 1.02


def test_training_without_rows_says_what_to_record(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_of(*given: object) -> TrainingRows:
        return collect_rows(*given).take(np.zeros(0, np.int64))  # type: ignore[arg-type]

    monkeypatch.setattr("hmd.learn.training.collect_rows", none_of)
    with pytest.raises(HmdError, match="the recordings give no rows to train on: record a larger"):
        Training(read_plan(config), tmp_path / "rows").run()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("epochs: 3", "epochs: 0", "train.yaml:10: epochs: "),
        ("hidden: [8]", "hidden: [800]", "train.yaml:9: hidden[0]: "),
        ("epochs: 3", "epoch: 3", "train.yaml:10: epoch: "),
        ("held_out: [late]", "held_out: [never]", "there is no recording 'never'"),
        ("held_out: [late]", "held_out: [late, middle]", "no recording is left to train on"),
        ('["*.misses"]', '["*.npz"]', "no recording matches *.npz"),
        ('["*.misses"]', '[""]', "no recording matches ''"),
        ('["*.misses"]', '["/"]', "no recording matches /"),
        ('["*.misses"]', '["~nosuchuser/x"]', "no recording matches ~nosuchuser/x"),
        ("periods: [29]", "periods: [99999999999]", "train.yaml:4: periods[0]: "),
    ],
)
def test_plan_with_mistake_names_file_and_line(
    config: Path, old: str, new: str, problem: str
) -> None:
    assert old in CONFIG
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError) as error:
        read_plan(config)
    assert problem in str(error.value)
    assert len(str(error.value).splitlines()) == 1
