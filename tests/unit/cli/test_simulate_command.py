# SPDX-License-Identifier: MIT
"""hmd simulate, on a recorded program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.emulate.preset import load
from hmd.emulate.recordings.misses import MissStream
from hmd.policy import registry
from hmd.policy.builtin import age
from hmd.simulate.cases import CaseRuntimes
from hmd.simulate.pmu import MAX_PERIOD, MAX_SEED
from hmd.simulate.simulation import SimulationSettings


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random misses on 64 pages."""
    count, pages = 20_000, 64
    rng = np.random.default_rng(1)
    stream = MissStream(
        instructions=np.arange(count, dtype=np.uint64) * np.uint64(100),
        paid_hits=np.zeros(count, np.uint32),
        near_hits=np.zeros(count, np.uint32),
        page=rng.integers(0, pages, count).astype(np.uint32),
        line=rng.integers(0, 64, count).astype(np.uint8),
        flags=np.zeros(count, np.uint8),
        depends=np.ones(count, np.uint16),
        page_address=np.arange(pages, dtype=np.uint64) * np.uint64(4096),
        user_pages=pages,
    )
    path = tmp_path_factory.mktemp("traces") / "random.misses"
    stream.write(path)
    return path


def test_simulate_table_shows_baselines_and_policies(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", str(trace), "--policy", "benefit", "--policy", "none", "--ticks"]
    assert main([*words, "--tick", "1", "--fast", "50%"]) == Exit.OK
    printed = capsys.readouterr().out
    for name in ("all fast", "all slow", "first touch", "interleaved once", "oracle", "benefit"):
        assert name in printed
    assert "none, tick by tick" in printed
    assert "256.0 KiB, of which 128.0 KiB fit" in printed


def test_simulate_json_sizes_baselines_and_ticks(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", str(trace), "--json", "--fast", "64KiB", "--policy", "histogram"]
    assert main([*words, "--set", "headroom_min=4KiB", "--set", "confidence=2"]) == Exit.OK
    answer = json.loads(capsys.readouterr().out)
    assert (answer["bytes"], answer["fast_bytes"]) == (64 * 4096, 16 * 4096)
    assert answer["baselines_s"]["all fast"] < answer["baselines_s"]["all slow"]
    policy = answer["policies"]["histogram"]
    assert sum(t["fast_misses"] + t["slow_misses"] for t in policy["ticks"]) == 20_000


def test_simulate_fast_max_given_fast_share_limited(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", str(trace), "--json", "--fast", "64KiB", "--policy", "histogram"]
    # Both nodes keep headroom_min free; the slow one needs room for what leaves the fast one.
    words += ["--tick", "0.5", "--delay", "0", "--set", "headroom_min=4KiB"]
    shares = []
    for limit in ("100%", "25%"):
        assert main([*words, "--fast-max", limit]) == Exit.OK
        policy = json.loads(capsys.readouterr().out)["policies"]["histogram"]
        shares.append(policy["fast_share"])
    assert shares[1] < 0.5 * shares[0]


def test_simulate_pageout_given_shown_in_table_and_json(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", str(trace), "--tick", "0.5", "--pageout", "0.5", "--period", "997"]
    assert main(words) == Exit.OK
    assert "swapped in" in capsys.readouterr().out
    assert main([*words, "--json"]) == Exit.OK
    (policy,) = json.loads(capsys.readouterr().out)["policies"].values()
    assert 0 < policy["swapped_in_bytes"] <= policy["paged_out_bytes"]


def test_simulate_longest_period_runs(trace: Path) -> None:
    words = ["simulate", str(trace), "--policy", "none", "--json"]
    assert main([*words, "--period", str(MAX_PERIOD), "--seed", str(MAX_SEED)]) == Exit.OK


@pytest.mark.parametrize("option", ["--overhead", "--loss"])
def test_simulate_share_without_per_cent_sign_refused(
    option: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", str(trace), option, "0.01"])
    assert "'0.01': write a share of 0% to 100%" in capsys.readouterr().err


def test_simulate_picture_option_writes_png(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    assert main(["simulate", str(trace), "--json", "--picture", str(picture)]) == Exit.OK
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], Exit.USAGE, "name a TRACE"),
        (["--record", "out"], Exit.USAGE, "takes a command"),
        (["TRACE", "--fast", "8"], Exit.USAGE, "with its unit"),
        (["TRACE", "--fast", "0%"], Exit.USAGE, "less than a page"),
        (["TRACE", "--policy", "best"], Exit.USAGE, "no policy 'best'"),
        (["TRACE", "--set", "confidence"], Exit.USAGE, "KEY=VALUE"),
        (["TRACE", "--set", "speed=1"], Exit.USAGE, "can have confidence"),
        (["TRACE", "--set", "confidence=much"], Exit.USAGE, "'much' is not a valid value"),
        (["TRACE", "--set", "confidence=99"], Exit.USAGE, "at most 10"),
        (["TRACE", "TRACE"], Exit.USAGE, "one TRACE at a time"),
        (["TRACE", "--fast", "0.25"], Exit.USAGE, "with its unit"),
        (["TRACE", "--fast-min", "9%", "--fast-max", "8%"], Exit.USAGE, "--fast-min 9% is above"),
        (["TRACE", "--tick", "0"], Exit.USAGE, "--tick: '0': take a number from 0.1"),
        *(
            (["TRACE", option, value], Exit.USAGE, f"{option}: '{value}': take a number from ")
            for option in ("--tick", "--delay", "--found", "--pageout", "--swap-in")
            for value in ("nan", "inf", "1e300")
        ),
        (["TRACE", "--period", "4294967296"], Exit.USAGE, "--period must be from 1 to "),
        (["TRACE", "--seed", "-1"], Exit.USAGE, "--seed must be from 0 to "),
        (["TRACE", "--fast-max", "half"], Exit.USAGE, "--fast-max half: write a size or a share"),
        (["TRACE", "--fast-min", "8"], Exit.USAGE, "--fast-min 8: write a size or a share"),
        (["TRACE", "--pageout", "1"], Exit.USAGE, "at least a tick (10 ms)"),
        (["TRACE", "--swap-in", "-1"], Exit.USAGE, "--swap-in: '-1': take a number from 0"),
        (["TRACE", "--loss", "100%"], Exit.USAGE, "less than 100%"),
        ([__file__], Exit.FAILURE, "holds no recorded misses"),
        (["/nowhere/at.all"], Exit.FAILURE, "cannot be read"),
        (["--record", "out", "--", "/nowhere/at.all"], Exit.TARGET, "no command"),
        (["--record", "out", "--", "./at.all"], Exit.TARGET, "no command ./at.all"),
        (
            ["--record", "/nowhere/x", "--", "true"],
            Exit.MISSING,
            "cannot write /nowhere/x: No such",
        ),
        (["--record", "/", "--", "true"], Exit.MISSING, "cannot write /: Is a directory"),
        (["TRACE", "--picture", "/nowhere/x.png"], Exit.MISSING, "cannot write /nowhere/x.png: No"),
        (["TRACE", "--picture", "x.gif"], Exit.USAGE, "must end in .png, .svg or .pdf"),
    ],
)
def test_simulate_invalid_argument_one_line_error(
    words: list[str], code: Exit, message: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(trace) if word == "TRACE" else word for word in words]
    try:
        assert main(["simulate", *given]) == code
    except SystemExit as exit_of_parser:  # argparse's own
        assert exit_of_parser.code == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.fixture
def own_policy(tmp_path: Path) -> Iterator[Path]:
    """The policy age in a file of its own, under another name."""
    file = tmp_path / "own.py"
    file.write_text(Path(age.__file__).read_text().replace('"age"', '"own"'))
    yield file
    for name in [name for name in registry.FILES if name.startswith("own")]:
        registry.FILES.pop(name)
        registry._POLICIES.pop(name)


def test_policy_of_a_file_simulated_as_one_of_hmd(
    own_policy: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", str(trace), "--json", "--fast", "64KiB", "--set", "headroom_min=4KiB"]
    assert main([*words, "--policy", str(own_policy), "--policy", "age"]) == Exit.OK
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert policies["own"] == policies["age"]
    assert main(["policy", "show", str(own_policy)]) == Exit.OK
    assert capsys.readouterr().out.startswith("own: ")


def test_results_of_a_policy_that_was_edited_are_not_taken_from_the_journal(
    own_policy: Path, trace: Path
) -> None:
    keys = []
    for edit in ("", "", "\n# edited\n"):
        own_policy.write_text(own_policy.read_text() + edit)
        registry.add_file(own_policy)
        with CaseRuntimes("own", load("dram-pm"), SimulationSettings()) as runs:
            keys.append(runs._common)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("x = 1", "POLICY is no PolicyInfo"),
        ("POLICY = __import__('hmd.policy.builtin.age').policy.builtin.age.POLICY", "already"),
        ("def (", "SyntaxError"),
    ],
)
def test_policy_file_that_cannot_be_used_is_one_line(
    text: str | None,
    reason: str,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "broken.py"
    if text is not None:
        file.write_text(text)
    assert main(["simulate", str(trace), "--policy", str(file)]) == Exit.USAGE
    error = capsys.readouterr().err
    assert reason in error
    assert error.startswith(f"hmd: policy {file}: ")
    assert error.count("\n") == 1
