# SPDX-License-Identifier: MIT
"""hmd tune, on recorded miss streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import INTERRUPTED, main
from hmd.config import load, loads
from hmd.emulate.recordings.misses import MissStream
from hmd.policy.builtin.age import AgeSettings
from hmd.policy.builtin.benefit import BenefitSettings

SMALL = ["--fast", "25%", "--tick", "1", "--delay", "0.1", "--period", "11"]


def recorded(path: Path, hot: int, count: int = 20_000) -> Path:
    """Misses on 64 pages, nine in ten on the eight from ``hot`` on."""
    pages = 64
    rng = np.random.default_rng(hot)
    page = np.where(
        rng.random(count) < 0.9, hot + rng.integers(0, 8, count), rng.integers(0, pages, count)
    )
    stream = MissStream(
        instructions=np.arange(count, dtype=np.uint64) * np.uint64(100),
        paid_hits=np.zeros(count, np.uint32),
        near_hits=np.zeros(count, np.uint32),
        page=page.astype(np.uint32),
        line=rng.integers(0, 64, count).astype(np.uint8),
        flags=np.zeros(count, np.uint8),
        depends=np.ones(count, np.uint16),
        page_address=np.arange(pages, dtype=np.uint64) * np.uint64(4096),
        user_pages=pages,
    )
    stream.write(path)
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("traces")
    return [str(recorded(folder / f"{name}.misses", hot)) for name, hot in (("a", 40), ("b", 20))]


def test_tune_prints_tables_and_writes_configuration(
    traces: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tuned.yaml"
    words = ["tune", *traces, *SMALL, "--fast", "32KiB", "--set", "headroom_min=4KiB"]
    assert main([*words, "--trials", "4", "--policy", "benefit", "-o", str(file)]) == Exit.OK
    printed = capsys.readouterr().out
    for word in ("move_ns", "default, fresh", "oracle", "geometric mean", "worst", "4 trials"):
        assert word in printed
    # Two programs at two sizes.
    for name, fast in (("a", "25%"), ("a", "32KiB"), ("b", "25%"), ("b", "32KiB")):
        assert any(line.split()[:2] == [name, fast] for line in printed.splitlines())
    assert main(["config", "check", str(file)]) == Exit.OK
    decide = load(file).decide
    assert decide.policy == "benefit"
    settings = decide.policy_settings()
    assert isinstance(settings, BenefitSettings)
    assert settings.headroom_min == 4096
    # That of the simulated machine is not meant for others.
    assert settings.headroom is None
    assert list(tmp_path.iterdir()) == [file]


def test_tune_json_same_seed_same_answer(
    traces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", traces[0], *SMALL, "--holdout", traces[1], "--trials", "3", "--json"]
    words += ["--policy", "histogram"]
    answers = []
    for _ in range(2):
        assert main([*words, "--knob", "hysteresis=1:3", "--knob", "worth"]) == Exit.OK
        answers.append(json.loads(capsys.readouterr().out))
    answer = answers[0]
    assert answers[1] == answer
    assert [knob["key"] for knob in answer["knobs"]] == ["hysteresis", "worth"]
    assert all(1 <= trial["values"]["hysteresis"] <= 3 for trial in answer["trials"])
    assert [row["trace"] for row in answer["cases"]] == ["a"]
    assert [row["trace"] for row in answer["held_out"]] == ["b"]
    best = next(t for t in answer["trials"] if t["number"] == answer["best"])
    row = answer["cases"][0]
    gain = row["baselines_s"]["first touch"] / row["tuned_s"]
    assert gain == pytest.approx(best["x_first_touch"])
    assert answer["geomean_x_first_touch"]["tuned"] == pytest.approx(gain)
    assert answer["config"].splitlines()[2:4] == ["decide:", "  policy: histogram"]


def test_tune_without_file_configuration_printed(
    traces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", traces[0], *SMALL, "--policy", "age", "--trials", "1", "--set", "idle=auto"]
    assert main([*words, "--knob", "active=2ms:3ms"]) == Exit.OK
    printed = capsys.readouterr().out
    assert "# Durations are for ticks of 1 ms" in printed
    text = printed[printed.index("# hmd tune: ") :]
    settings = loads(text).decide.policy_settings()
    assert isinstance(settings, AgeSettings)
    assert settings.idle is None
    active = settings.active
    assert isinstance(active, float)
    assert 0.002 <= active <= 0.003


def test_tune_interrupted_best_so_far_written(traces: list[str], tmp_path: Path) -> None:
    file, journal = tmp_path / "tuned.yaml", tmp_path / "journal"
    words = ["tune", traces[0], *SMALL, "--knob", "samples_min=30:600", "--trials", "100000"]
    hmd = [sys.executable, "-m", "hmd"]
    command = [*hmd, *words, "-o", str(file), "--journal", str(journal)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        # Written when a first trial has ended.
        while process.poll() is None and not (file.exists() and file.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate()
    assert process.returncode == INTERRUPTED, errors
    assert "interrupted" in printed
    settings = load(file).decide.policy_settings()
    assert isinstance(settings, BenefitSettings)
    samples_min = settings.samples_min
    assert isinstance(samples_min, int | float)
    assert samples_min >= 30
    assert "trial 1: " in errors
    # What was simulated is kept: the same search again simulates no trial of it.
    assert len(journal.read_text().split("\n")) > 3


def test_tune_without_optuna_names_extra(
    traces: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # what Python does where it is not installed
    assert main(["tune", traces[0]]) == Exit.MISSING
    printed = capsys.readouterr().err
    assert printed.endswith("-m pip install 'hmd-tiering[tune]'\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], Exit.USAGE, "TRACE"),
        (["TRACE", "--trials", "0"], Exit.USAGE, "must be at least 1"),
        (["TRACE", "--policy", "best"], Exit.USAGE, "no policy 'best'"),
        (["TRACE", "--policy", "none"], Exit.USAGE, "nothing to search"),
        (["TRACE", "--knob", "speed=1:2"], Exit.USAGE, "no knob 'speed'"),
        (["TRACE", "--knob", "confidence=2:1"], Exit.USAGE, "must be less than"),
        (
            ["TRACE", "--knob", "move_ns", "--set", "move_ns=900"],
            Exit.USAGE,
            "both set and searched",
        ),
        (["TRACE", "--fast", "0%"], Exit.USAGE, "less than a page"),
        (["TRACE", "--knob", "confidence=much:2"], Exit.USAGE, "'much' is not a valid value"),
        (["TRACE", "--period", "0"], Exit.USAGE, "--period must be"),
        (["TRACE", "--period", "99999999999"], Exit.USAGE, "--period must be"),
        (["TRACE", "--seed", "-1"], Exit.USAGE, "--seed must be"),
        (["TRACE", "--holdout", "TRACE"], Exit.USAGE, "is named twice"),
        (["TRACE", "-o", "/nowhere/tuned.yaml"], Exit.MISSING, "cannot write /nowhere"),
        (["TRACE", "--journal", "/nowhere/journal"], Exit.MISSING, "cannot store results"),
        ([__file__], Exit.FAILURE, "holds no recorded misses"),
    ],
)
def test_tune_invalid_argument_one_line_error(
    words: list[str],
    code: Exit,
    message: str,
    traces: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [traces[0] if word == "TRACE" else word for word in words]
    try:
        assert main(["tune", *given]) == code
    except SystemExit as exit_of_parser:  # argparse's own
        assert exit_of_parser.code == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_tune_interrupted_before_first_trial_no_file_left(
    traces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "tuned.yaml"
    monkeypatch.setattr("hmd.simulate.tuning._study", interrupted)
    assert main(["tune", traces[0], "-o", str(file)]) == 130
    assert list(tmp_path.glob("tuned*")) == []
