# SPDX-License-Identifier: MIT
"""hmd train, on recorded miss streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from tests.unit.learn.conftest import CONFIG
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of


@pytest.fixture
def training(tmp_path: Path) -> Path:
    stream_of(hot_set(60_000, PAGES - HOT_PAGES, 1)).write(tmp_path / "late.misses")
    file = tmp_path / "train.yaml"
    file.write_text(CONFIG.replace("held_out: [late]", "held_out: []"))
    return file


def test_train_writes_weights_that_evaluate_compares(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "learned.npz"
    words = ["train", "--config", str(training), "-o", str(output)]
    assert main(words) == Exit.OK
    printed = capsys.readouterr().out
    assert printed.startswith(f"{output}: ")
    assert "1 programs, seed 1" in printed
    assert main([*words, "--evaluate"]) == Exit.OK
    table = capsys.readouterr().out
    assert "x learned" in table
    assert "geometric mean, trained" in table
    assert "held out" not in table


def test_train_shipped_configuration_is_valid_but_for_its_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(__file__).parents[3] / "config" / "train.yaml"
    copy = tmp_path / "train.yaml"
    copy.write_text(shipped.read_text())
    words = ["train", "--config", str(copy), "-o", str(tmp_path / "learned.npz")]
    assert main(words) == Exit.CONFIG
    assert "no recording matches recordings/*.misses" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (["--workers", "0"], Exit.USAGE, "--workers must be at least 1"),
        (["--evaluate"], Exit.CONFIG, "cannot be read"),
        (["-o", "/"], Exit.USAGE, "-o / is a folder"),
        (["--evaluate", "--ray", "head:1"], Exit.USAGE, "--ray is for training"),
        (["--workers", "2", "--ray", "head:1"], Exit.USAGE, "--workers is for this machine alone"),
    ],
)
def test_train_wrong_option_one_line_error(
    options: list[str],
    code: Exit,
    problem: str,
    training: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = training.parent / "learned.npz"
    assert main(["train", "--config", str(training), "-o", str(output), *options]) == code
    printed = capsys.readouterr().err
    assert problem in printed
    assert len(printed.splitlines()) == 1
