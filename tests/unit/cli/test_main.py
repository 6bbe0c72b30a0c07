"""The command as people and scripts meet it: help, exit codes, errors in one line."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from hmd import __version__
from hmd.cli.main import GROUPS, build_parser, main
from hmd.errors import Exit

FAMILIES = [name for _, names in GROUPS for name in names]


def hmd(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hmd", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_help_lists_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for name in FAMILIES:
        assert f"\n  {name} " in text
    for code in Exit:
        assert f"  {code.value}  " in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_tells_by_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert "examples:\n" in text
    assert f"hmd {name}" in text.split("examples:\n")[1]
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("words", "pairs"), [([], True), (["--no-pairs"], False)])
def test_recordings_have_pairs_unless_told_otherwise(words: list[str], pairs: bool) -> None:
    args = build_parser().parse_args(["record", "-o", "t", *words, "--", "true"])
    assert args.pairs is pairs


def test_every_module_with_a_parser_is_listed() -> None:
    folder = Path(main.__code__.co_filename).parent
    modules = {
        p.stem.removesuffix("_command")
        for p in folder.glob("*_command.py")
        if "\ndef add_parser(" in p.read_text()
    }
    assert modules == set(FAMILIES)


def test_summaries_are_one_short_line() -> None:
    for action in build_parser().families._get_subactions():
        assert action.help
        assert len(action.help) < 70


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"hmd {__version__}\n"


def test_nothing_given_is_helped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    assert "usage: hmd COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["dance"], ["status", "--loud"], ["top", "--interval", "0"], ["config"]]
)
def test_wrong_usage_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == Exit.USAGE
    told = capsys.readouterr().err
    assert told.startswith("hmd: ")
    assert told.count("\n") == 1
    assert "--help" in told


@pytest.mark.parametrize("command", ["status", "top", "heatmap"])
def test_no_daemon(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--socket", str(tmp_path / "s"), "--json"]) == Exit.UNREACHABLE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"hmd: no daemon answers on {tmp_path}/s: start one")
    assert told.err.count("\n") == 1


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("hmd.config.load"), "read", interrupted)
    assert main(["config", "check", "/dev/null"]) == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m hmd config schema | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout in ("141\n", "0\n")  # 0 where all of it fitted into the pipe in time
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["status", "--json"], ["config", "schema"], ["config", "check", "/dev/null"]],
)
def test_light_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from hmd.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(json.dumps([m for m in ('numba', 'numpy', 'psutil', 'matplotlib') "
        "if m in sys.modules]), file=sys.stderr)\n"
    )
    socket = ["--socket", str(tmp_path / "s")] if arguments[0] == "status" else []
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, *socket],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    # What policies can be told is written where they are, and they are of arrays.
    assert loaded <= ({"numpy"} if arguments[0] == "config" else set())


def test_config_check(tmp_path: Path) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text("tick: 2s\n")
    done = hmd("config", "check", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: ok\n", "")
    file.write_text("tick: 2\nrescan: 3\n")
    done = hmd("config", "check", str(file))
    assert done.returncode == Exit.CONFIG
    assert [line[: len(f"hmd: {file}:1")] for line in done.stderr.splitlines()] == [
        f"hmd: {file}:1",
        f"hmd: {file}:2",
    ]
    done = hmd("config", "check", "--json", str(file))
    assert done.returncode == Exit.CONFIG
    assert len(json.loads(done.stdout)["errors"]) == 2


def test_config_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text("migrate: {rate: 512MiB/s}\n")
    assert main(["config", "show", "--json", str(file)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["migrate"]["rate"] == "512MiB/s"
    assert shown["tick"] == "1s"
    assert main(["config", "show", str(file)]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == 0
