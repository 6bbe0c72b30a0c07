# SPDX-License-Identifier: MIT
"""The command line: help, exit codes, errors in one line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from hmd import __version__
from hmd.base.errors import Exit, MissingError
from hmd.cli.admin_request import ADMIN_COMMANDS
from hmd.cli.main import COMMANDS, build_parser, main
from hmd.trace.session import RecordRequest

HEAVY = ("numba", "numpy", "psutil", "matplotlib", "yaml", "pydantic", "rich")


def hmd(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hmd", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in text
    for code in Exit:
        assert f"  {code.value}  " in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert "examples:\n" in text
    assert f"hmd {name}" in text.split("examples:\n")[1]
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("words", "pairs"), [([], True), (["--no-pairs"], False)])
def test_record_pairs_on_by_default(
    words: list[str], pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: RecordRequest, command: Sequence[str]) -> None:
        raise MissingError(f"pairs: {request.sample.pairs}")

    monkeypatch.setattr("hmd.trace.session.record_command", refuse)
    args = build_parser().parse_args(["record", "-o", "t", *words, "--", "true"])
    with pytest.raises(MissingError, match=f"pairs: {pairs}"):
        args.func(args)


@pytest.mark.parametrize("loads", ["auto", "miss", "latency"])
def test_record_samples_the_loads_that_are_asked_for(
    loads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: RecordRequest, command: Sequence[str]) -> None:
        raise MissingError(f"{' '.join(command)} with {request.sample.loads}")

    monkeypatch.setattr("hmd.trace.session.record_command", refuse)
    args = build_parser().parse_args(["record", "-o", "t", "--loads", loads, "--", "true"])
    with pytest.raises(MissingError, match=f"true with {loads}"):
        args.func(args)


ADMIN = "hmd.cli.admin_request"


def module_of(name: str) -> str:
    return ADMIN if name in ADMIN_COMMANDS else f"hmd.cli.{name}_command"


def test_groups_list_every_module_of_a_command() -> None:
    folder = Path(main.__code__.co_filename).parent
    modules = {f"hmd.cli.{path.stem}" for path in folder.glob("*_command.py")}
    assert modules == {module_of(name) for name in COMMANDS} - {ADMIN}


def test_command_summaries_one_short_line() -> None:
    for summary in COMMANDS.values():
        assert 0 < len(summary) < 70
        assert "\n" not in summary


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["statsu"], "no command 'statsu'; did you mean 'status'? (see 'hmd --help')"),
        (["trace", "inof"], "no command 'inof'; did you mean 'info'? (see 'hmd trace --help')"),
        (["zzz"], "no command 'zzz' (see 'hmd --help')"),
        ([""], "no command '' (see 'hmd --help')"),
        (
            ["run", "--ticks", "x"],
            "argument --ticks: 'x': take a whole number from 1 (see 'hmd run --help')",
        ),
        (
            ["top", "--interval", "x"],
            "argument --interval: 'x': write a time from 10ms, as in 500ms or 2min, or a number of"
            " seconds (see 'hmd top --help')",
        ),
        (
            ["pin", "--", "-5", "--socket", "S"],
            "--socket stands behind '--', where no options are: put it before"
            " (see 'hmd pin --help')",
        ),
        (
            ["status", "--jsno"],
            "unknown argument '--jsno'; did you mean '--json'? (see 'hmd status --help')",
        ),
        (
            ["--json", "status"],
            "unknown option '--json': options of a command stand after its name (see 'hmd --help')",
        ),
    ],
)
def test_main_mistyped_word_suggestion_printed(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == Exit.USAGE
    assert capsys.readouterr().err == f"hmd: {line}\n"


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "pin"], ["pin", "--help"]),
        (["help", "trace", "info"], ["trace", "info", "--help"]),
        (["-V"], ["--version"]),
    ],
)
def test_main_alternative_help_and_version_forms_equal(
    words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for form in (words, same):
        with pytest.raises(SystemExit) as left:
            main(form)
        assert left.value.code == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def test_main_version_option_prints_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"hmd {__version__}\n"


def test_main_without_arguments_usage_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    assert "usage: hmd COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["dance"], ["status", "--loud"], ["top", "--interval", "0"], ["config"]]
)
def test_main_wrong_usage_one_line_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == Exit.USAGE
    error = capsys.readouterr().err
    assert error.startswith("hmd: ")
    assert error.count("\n") == 1
    assert "--help" in error


@pytest.mark.parametrize("command", ["status", "top", "heatmap"])
def test_main_daemon_absent_unreachable_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--socket", str(tmp_path / "s"), "--json"]) == Exit.UNREACHABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"hmd: no daemon answers on {tmp_path}/s: start one")
    assert captured.err.count("\n") == 1


def test_main_interrupted_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("hmd.config.load"), "read", interrupted)
    assert main(["config", "check", "/dev/null"]) == 130


INTERRUPT_AT_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "hmd.base.errors":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from hmd.__main__ import main
sys.argv = ["hmd", "topology"]
sys.exit(main())
"""


def test_interrupt_while_modules_load_leaves_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT_AT_IMPORT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("record -o x --pid abc", "abc"),
        ("record -o x --pid 99999999999999999999", "99999999999999999999"),
        ("migrate --pid 1 --to x", "x"),
        ("drain 4294967296", "4294967296"),
    ],
)
def test_main_number_that_is_none_refused_with_what_to_take(
    words: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "t", "--seed", "two"])
    assert "'two': take a whole number" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == Exit.USAGE
    assert f"'{value}': take a whole number from 0 to 2147483647" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["policy show histogram", "policy list", "policy list --json"])
def test_main_reader_gone_exit_code_141(words: str) -> None:
    done = subprocess.run(
        f"(sleep 0.1; exec {sys.executable} -m hmd {words}) | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_main_file_error_names_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr(import_module("hmd.config.load"), "read", refused)
    assert main(["config", "check", "/dev/null"]) == Exit.NOT_PERMITTED
    assert capsys.readouterr().err == "hmd: /some/file: Permission denied\n"


@pytest.mark.parametrize(
    ("words", "encoding", "escaped"),
    [
        (["config", "check", b"\xff.yaml"], "utf-8:strict", r"\udcff.yaml"),
        (["config", "check", "\u00b5.yaml"], "ascii", r"\xb5.yaml"),
    ],
)
def test_main_characters_without_encoding_are_escaped(
    words: list[str | bytes], encoding: str, escaped: str, tmp_path: Path
) -> None:
    for name in (b"\xff.yaml", "\u00b5.yaml".encode()):
        (tmp_path / os.fsdecode(name)).write_text(
            "targets: [{name: all, user: root}]\nobserve: {socket: /tmp/\u00b5}\n"
        )
    done = hmd(
        *words,  # type: ignore[arg-type]
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert escaped in done.stdout


def test_main_closed_pipe_no_error_message() -> None:
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


def loaded(arguments: list[str]) -> list[str]:
    """Return the modules that a new interpreter has loaded once this command has ended."""
    program = (
        "import json, sys\n"
        "from hmd.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    modules: list[str] = json.loads(done.stderr.splitlines()[-1])
    return modules


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["statsu"]])
def test_main_help_and_version_load_no_command(arguments: list[str]) -> None:
    modules = loaded(arguments)
    own = {name for name in modules if name.split(".")[0] == "hmd"}
    assert own == {"hmd", "hmd.cli", "hmd.cli.main", "hmd.base", "hmd.base.errors"}
    assert not {*HEAVY} & set(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_loads_only_its_module(name: str) -> None:
    modules = set(loaded([name, "--help"]))
    others = {module_of(other) for other in COMMANDS} - {module_of(name)}
    # The modules that share their options with other commands.
    shared = {
        f"hmd.cli.{m}"
        for m in ("status_command", "enable_command", "admin_request", "numa_command")
    }
    assert module_of(name) in modules
    assert not (others - shared) & modules
    assert not {*HEAVY} & modules


@pytest.mark.parametrize(
    "arguments",
    [
        *(["status"], ["status", "--json"], ["top", "--json"], ["heatmap", "--json"]),
        *(["pause"], ["resume"], ["drain", "1"], ["undrain", "1"], ["pin", "1"], ["unpin", "1"]),
    ],
)
def test_daemon_requests_load_no_numpy(arguments: list[str], tmp_path: Path) -> None:
    modules = loaded([*arguments, "--socket", str(tmp_path / "s")])
    assert "hmd.control.client" in modules
    assert not {"numba", "numpy", "psutil", "matplotlib"} & set(modules)


@pytest.mark.parametrize("arguments", [["config", "schema"], ["config", "check", "/dev/null"]])
def test_config_commands_load_no_numba(arguments: list[str]) -> None:
    assert not {"numba", "matplotlib"} & set(loaded(arguments))


def test_config_check_valid_and_invalid_file_exit_codes(tmp_path: Path) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text("tick: 2s\n")
    done = hmd("config", "check", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}: ok, 1 warning\n")
    assert (
        done.stderr == f"hmd: {file}:1: warning: targets: there are none: hmd has nothing to do\n"
    )
    file.write_text(f"targets: [{{name: t, pid: {os.getpid()}}}]\n")
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


def test_config_show_output_is_valid_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text("migrate: {rate: 512MiB/s}\n")
    assert main(["config", "show", "--json", str(file)]) == 0
    shown = json.loads(capsys.readouterr().out)["settings"]
    assert shown["migrate"]["rate"] == "512MiB/s"
    assert shown["tick"] == "1s"
    assert main(["config", "show", str(file)]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == 0
