# SPDX-License-Identifier: MIT
import hashlib
from pathlib import Path
from typing import Any

import pytest

from bench.suite.inputs import generator, missing_packages, prepare
from bench.suite.program import SuiteProgram, load_program, parse
from hmd.base.errors import ConfigError, MissingError
from hmd.emulate.vm.guest import BASE_ENVIRONMENT

SMALL: dict[str, dict[str, Any]] = {
    "linear_data": {"rows": 50, "features": 1000, "per_row": 10, "seed": 1},
    "dense_data": {"rows": 50, "features": 6, "seed": 1},
    "prose": {"size_bytes": 5000, "words": 100, "seed": 1},
    "genome": {"bases": 1000, "seed": 1},
    "reads": {"bases": 1000, "seed": 1, "count": 10, "length": 50, "errors": 2},
    "edges": {"vertices": 100, "degree": 3, "seed": 1},
    "random_bytes": {"size_bytes": 100, "seed": 1},
    "redis_requests": {"keys": 20, "requests": 50, "writes": 0.2, "skew": 0.9, "seed": 1},
    "sat_formula": {"variables": 30, "clauses": 100, "seed": 1},
}
TEXT = """\
name: words
class: no contrast
description: Prints what is in its inputs, which were made for it just before.
source: ours
inputs:
  letters: {text: "abc"}
  more: {text: "more of {letters}"}
  sorted: {command: [cp, "{more}", "{out}/copy"]}
command: [cat, "{letters}", "{sorted}/copy"]
env: {WHERE: "{letters}"}
expect: abc
"""


def made(text: str = TEXT) -> SuiteProgram:
    return parse(text.encode(), "words.yaml")


@pytest.mark.parametrize("name", SMALL)
def test_generator_output_depends_only_on_its_seed(name: str, tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((1, 1, 2)):
        generator(name)(tmp_path / str(number), **{**SMALL[name], "seed": seed})
        digests.append(hashlib.sha256((tmp_path / str(number)).read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_generator_with_seed_1_gives_the_measured_bytes(tmp_path: Path) -> None:
    generator("random_bytes")(tmp_path / "r", size_bytes=4, seed=1)
    generator("genome")(tmp_path / "g", bases=12, seed=1)
    assert (tmp_path / "r").read_bytes() == b"%\xf4\xc1j"
    assert (tmp_path / "g").read_bytes() == b">chromosome\nCTAATCTCTAAC\n"


def test_sat_formula_has_the_requested_size(tmp_path: Path) -> None:
    generator("sat_formula")(tmp_path / "f", **SMALL["sat_formula"])
    lines = (tmp_path / "f").read_text().splitlines()
    assert lines[0] == "p cnf 30 100"
    clauses = [[int(word) for word in line.split()] for line in lines[1:]]
    assert len(clauses) == 100
    assert all(len(clause) == 4 and clause[3] == 0 for clause in clauses)
    assert all(1 <= abs(literal) <= 30 for clause in clauses for literal in clause[:3])


def test_unknown_generator_is_refused_with_known_names() -> None:
    with pytest.raises(ConfigError, match="no generator 'x': take one of dense_data"):
        generator("x")


def test_command_placeholders_are_replaced_by_input_paths(tmp_path: Path) -> None:
    command = prepare(made(), tmp_path)
    letters, copy = (Path(word) for word in command.argv[1:])
    assert letters.read_text() == "abc"
    assert copy.read_text() == f"more of {letters}"
    assert command.env == {**BASE_ENVIRONMENT, "WHERE": str(letters)}
    assert (command.expect, command.ready, command.load) == ("abc", (), ())


def test_inputs_unchanged_are_not_made_again(tmp_path: Path) -> None:
    copy = Path(prepare(made(), tmp_path).argv[2])
    before = copy.stat().st_ino
    assert Path(prepare(made(), tmp_path).argv[2]).stat().st_ino == before


def test_inputs_changed_are_made_again_with_dependents(tmp_path: Path) -> None:
    prepare(made(), tmp_path)
    changed = TEXT.replace('"more of', '"less of')
    copy = Path(prepare(made(changed), tmp_path).argv[2])
    assert copy.read_text().startswith("less of ")


def test_inputs_left_partial_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "words/sorted.partial").mkdir(parents=True)
    (tmp_path / "words/sorted").mkdir()
    assert Path(prepare(made(), tmp_path).argv[2]).is_file()


def test_inputs_tool_failure_is_reported_in_one_line(tmp_path: Path) -> None:
    broken = TEXT.replace('"{more}", ', '"{more}/none", ')
    with pytest.raises(MissingError, match=r"cannot make sorted with cp: .*none") as raised:
        prepare(made(broken), tmp_path)
    assert "\n" not in str(raised.value)


def test_missing_package_is_reported_with_install_command(tmp_path: Path) -> None:
    text = TEXT.replace("source: ours", "source: ours\npackages: [libc6, hmd-no-such-package]")
    program = made(text)
    assert missing_packages(program) == ("hmd-no-such-package",)
    with pytest.raises(MissingError, match=r"run setup/suite.sh \(or: apt-get install hmd-no-"):
        prepare(program, tmp_path)


def test_redis_requests_read_only_stored_keys(tmp_path: Path) -> None:
    generator("redis_requests")(tmp_path / "r", **SMALL["redis_requests"])
    lines = (tmp_path / "r").read_text().splitlines()
    assert lines[:20] == [f"{key} {key}" for key in range(20)]
    asked = [line.split() for line in lines[20:]]
    assert len(asked) == 50
    assert {len(words) for words in asked} == {1, 2}
    assert all(0 <= int(words[0]) < 20 for words in asked)


def test_server_program_has_ready_and_load_commands(tmp_path: Path) -> None:
    command = prepare(load_program("redis"), tmp_path)
    assert command.ready[0] == "redis-cli"
    assert str(tmp_path / "redis/requests") in command.load
