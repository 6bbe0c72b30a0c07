# SPDX-License-Identifier: MIT
"""Commands in documents: run here or by the test that the document names, or at least parsed.

What a fixture machine's block shows is what hmd prints for that machine, line by line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import INTERRUPTED, build_parser
from hmd.config import loads
from tests.system.docs.blocks import OTHERS, ROOT, SHELL, Block, Command, blocks, documents, inline
from tests.system.docs.session import is_endless

MACHINES = ROOT / "tests/fixtures/machines"
NEEDS = {
    "the emulated machine": "boots it; tests/vm does, by other commands",
    "a daemon of systemd": "no systemd runs here; tests/vm/dram_pm/test_daemon.py has one",
    "two traces": "recorded in the emulated machine",
    "perf": "and a PMU that samples memory accesses",
    "a tensor trace": "recorded from a training step",
    "PyTorch": "the extra torch, and a training script of the reader's",
    "recorded programs": "recorded in the emulated machine",
    "the extra train": "brings PyTorch",
    "a Ray cluster": "the extra fleet, and other machines",
    "a second machine": "a network",
    "a container engine": "none is at hand",
    "Optane": "modules and their driver",
    "CXL memory": "a device and its driver",
    "Xeon Max": "its firmware",
    "Grace-Hopper": "its driver",
    "root": "changes the machine for good",
    "what the examples name": "files and processes of the reader's",
    "a debugger": "waits for its user",
    "minutes": "takes longer than a test may",
}
"""What may be missing where tests run, and why."""

LACKING = ("hmd doctor",)
"""Commands whose exit code says what the machine lacks."""

PAGES = documents()


def shell_blocks(file: str) -> list[Block]:
    return [block for block in blocks(file) if block.is_shell]


def hmd_calls(command: Command) -> list[list[str]]:
    return [call[1:] for call in command.calls() if Path(call[0]).name == "hmd"]


def is_make(command: Command) -> bool:
    return all(call[0] == "make" for call in command.calls())


@pytest.mark.parametrize("file", PAGES)
def test_document_blocks_have_known_language_and_marker(file: str) -> None:
    for block in blocks(file):
        assert block.language in (*SHELL, *OTHERS), f"{block}: a language, such as console or text"
        if block.marker.startswith("needs: "):
            unknown = set(block.marker.removeprefix("needs: ").split("; ")) - set(NEEDS)
            assert not unknown, f"{block}: {unknown}"
        if block.marker.startswith("on "):
            assert (MACHINES / block.marker.removeprefix("on ")).is_dir(), str(block)


@pytest.mark.parametrize("file", PAGES)
def test_document_commands_are_accepted_by_the_parser(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in shell_blocks(file):
        for command in block.commands():
            done = subprocess.run(["bash", "-n", "-c", command.text], check=False)
            assert done.returncode == 0, f"{block}: {command.text}"
            for words in hmd_calls(command):
                try:
                    build_parser().parse_args(words)
                except SystemExit as left:
                    error = capsys.readouterr().err
                    assert left.code == 0, f"{block}: {command.text}: {error}"


@pytest.mark.parametrize("file", PAGES)
def test_document_configurations_are_valid(file: str) -> None:
    for block in blocks(file):
        if block.language == "yaml":
            loads(block.text, str(block))


@pytest.mark.parametrize("file", PAGES)
def test_document_text_names_existing_commands_and_options(file: str) -> None:
    for call in inline(file):
        parser: argparse.ArgumentParser = build_parser()
        for word in re.split(r"[\s,]+", call)[1:]:
            if word == "--":
                break
            below = _commands(parser)
            if word in below:
                parser = below[word]
            elif below and re.fullmatch(r"[a-z-]+", word) and not word.startswith("-"):
                raise AssertionError(f"{file}: `{call}`: no command {word}")
            elif word.startswith("--"):
                assert word.split("=")[0] in parser._option_string_actions, f"{file}: `{call}`"


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@pytest.mark.parametrize("file", PAGES)
def test_document_make_targets_exist(file: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / file).read_text()
    named = {word for call in re.findall(r"`make ([^`]+)`", text) for word in call.split()[:1]}
    for block in shell_blocks(file):
        for command in block.commands():
            for call in command.calls():
                named |= {word for word in call[1:] if call[0] == "make" and "=" not in word}
    assert named <= targets


@pytest.mark.parametrize("file", PAGES)
def test_document_commands_run_by_named_test_occur_in_it(file: str) -> None:
    for block in shell_blocks(file):
        if not block.marker.startswith("run by "):
            continue
        text = "".join((ROOT / name).read_text() for name in block.marker.split()[2:])
        for command in block.commands():
            for call in command.calls():
                words = [Path(call[0]).name, *(w for w in call[1:] if w.startswith("-"))]
                # The subcommand of hmd.
                words += call[1:2] if words[0] == "hmd" else []
                missing = [w for w in words if not re.search(rf"(?<![\w-]){re.escape(w)}\b", text)]
                assert not missing, f"{block}: {command.text}: {block.marker}: {missing}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the checkout has, and an empty build/; commands write there."""
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split():
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "build").mkdir()
    return tmp_path


def runs_here(block: Block) -> bool:
    return block.marker in ("", "with a daemon") or block.marker.startswith("on ")


RUN = [
    file
    for file in PAGES
    if any(not is_make(c) for b in shell_blocks(file) if runs_here(b) for c in b.commands())
]


@pytest.mark.parametrize("file", RUN)
def test_document_commands_print_the_shown_output(
    file: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = tmp_path_factory.mktemp("bin")
    (programs / "hmd").write_text(f'#!/bin/sh\nexec {sys.executable} -m hmd "$@"\n')
    (programs / "hmd").chmod(0o755)
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shown = [
        (block, command)
        for block in shell_blocks(file)
        if runs_here(block)
        for command in block.commands()
        if not is_make(command)
    ]
    steps = [(on_fixture_machine(b, c), b.marker == "with a daemon") for b, c in shown]
    here = Path(__file__).parent
    session = [sys.executable, str(here / "session.py"), str(folder), str(here / "daemon.yaml")]
    done = subprocess.run(
        ["unshare", "--mount", "--net", *session],
        input=json.dumps(steps),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    results = json.loads(done.stdout)
    for (block, command), (code, output) in zip(shown, results, strict=True):
        lacking = command.text.startswith(LACKING) and code == Exit.MISSING
        interrupted = is_endless(command.text) and code == INTERRUPTED
        assert code == 0 or lacking or interrupted, f"{block}: {command.text}: {code}\n{output}"
        missing = lines_missing(command.output, output)
        assert not missing, f"{block}: {command.text} prints\n{output}\nand not {missing}"


def on_fixture_machine(block: Block, command: Command) -> str:
    """Return a command, on a fixture machine where its block says so."""
    if not block.marker.startswith("on "):
        return command.text
    machine = MACHINES / block.marker.removeprefix("on ")
    there = f"--sysfs {shlex.quote(str(machine / 'sys'))}"
    proc = f" --proc {shlex.quote(str(machine / 'proc'))}" if "doctor" in command.text else ""
    return f"{command.text.split('  #')[0]} {there}{proc}"


def lines_missing(shown: tuple[str, ...], printed: str) -> list[str]:
    """Return the lines that are shown and not printed in this order; "..." stands for any."""
    lines = iter(line.strip() for line in printed.splitlines())
    wanted = [line.strip() for line in shown if line.strip() not in ("", "...")]
    return [line for line in wanted if line not in lines]
