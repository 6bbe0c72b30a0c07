# SPDX-License-Identifier: MIT
import re
from pathlib import Path
from typing import get_args

import pytest

from bench.suite.inputs import generator
from bench.suite.program import (
    MemoryClass,
    SuiteProgram,
    load_program,
    parse,
    program_names,
    programs_folder,
)
from hmd.base.errors import ConfigError

CHECKOUT = Path(__file__).parents[4]
GOOD = """\
name: chase
description: Follows pointers through all of its memory, one after the other.
class: no contrast
source: ours
compile: chase.c
inputs:
  list: {generate: random_bytes, arguments: {size_bytes: 64, seed: 1}}
  config: {text: "list = {list}"}
command: ["{program}", "{config}"]
expect: done
"""


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(text.encode(), "chase.yaml")
    return str(raised.value)


def listed(script: str) -> set[str]:
    words = re.search(r"PACKAGES=\(([^)]*)\)", (CHECKOUT / "setup" / script).read_text())
    assert words
    return set(words[1].split())


@pytest.fixture(params=program_names())
def program(request: pytest.FixtureRequest) -> SuiteProgram:
    return load_program(request.param)


def test_suite_at_least_ten_programs_from_distributions() -> None:
    sources = [load_program(name).source for name in program_names()]
    assert sum(source.startswith(("Debian", "PyPI")) for source in sources) >= 10


def test_suite_has_programs_of_every_class() -> None:
    classes = {load_program(name).memory_class for name in program_names()}
    assert classes == set(get_args(MemoryClass))


def test_program_name_equals_file_name(program: SuiteProgram) -> None:
    assert (programs_folder() / f"{program.name}.yaml").exists()


def test_program_descriptions_unique() -> None:
    assert len({load_program(name).description for name in program_names()}) == len(program_names())


def test_program_inputs_and_sources_exist(program: SuiteProgram) -> None:
    files = [made.file for made in program.inputs.values() if made.file]
    for name in [*files, *([program.compile] if program.compile else [])]:
        assert (programs_folder() / name).is_file()
    for made in program.inputs.values():
        if made.generate:
            generator(made.generate)


def test_program_packages_installed_by_setup(program: SuiteProgram) -> None:
    assert set(program.packages) <= listed("setup.sh") | listed("suite.sh")


def test_suite_setup_installs_needed_packages_only() -> None:
    needed = {package for name in program_names() for package in load_program(name).packages}
    assert listed("suite.sh") <= needed


def test_program_unknown_name_error_lists_programs() -> None:
    with pytest.raises(ConfigError, match=r"no program 'quake' in the suite: take .*stream"):
        load_program("quake")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("expect: done", "expect: done\nexpects: x", "chase.yaml:11: expects: "),
        ("name: chase", "name: Chase", "chase.yaml:1: name: "),
        ("expect: done\n", "", "expect: "),
        ("class: no contrast", "class: hot", "chase.yaml:3: class: "),
        ('"{config}"]', "7]", "chase.yaml:9: command.1: "),
        ('"{config}"]', '"{conf}"]', "{conf} names no input above it"),
        ("compile: chase.c\n", "", "{program} names no input above it"),
        ("list = {list}", "{config}", "{config} names no input above it"),
        ("{generate: random_bytes, ", "{file: a, generate: b, ", "chase.yaml:7: inputs.list: "),
        ("generate: random_bytes", "text: a", "arguments go with generate"),
    ],
)
def test_program_invalid_file_error_in_one_line_with_position(
    old: str, new: str, part: str
) -> None:
    assert GOOD.count(old) == 1
    message = error_of(GOOD.replace(old, new))
    assert part in message
    assert message.startswith("chase.yaml:")
    assert "\n" not in message
