# SPDX-License-Identifier: MIT
"""The plugin's arguments: valid ones are parsed, invalid ones reported in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

GOOD = ("shared=/proc/self/fd/5", "params=/p", "dilation=20")


def parse(parts: Any, *words: str) -> tuple[int, Any]:
    parsed = parts.ffi.new("struct arguments *")
    kept = [parts.ffi.new("char[]", word.encode()) for word in words]
    return parts.lib.arguments_parse(parsed, len(kept), kept), (parsed, kept)


def test_arguments_in_any_order_are_parsed(parts: Any) -> None:
    for words in (GOOD, GOOD[::-1]):
        status, (parsed, _kept) = parse(parts, *words)
        assert status == 0
        assert parts.ffi.string(parsed.shared) == b"/proc/self/fd/5"
        assert parts.ffi.string(parsed.params) == b"/p"
        assert parsed.dilation == 20
        assert not parsed.recording
        assert parsed.step_ns == 0
    status, (parsed, _kept) = parse(parts, *GOOD, "step=2000")
    assert (status, parsed.step_ns) == (0, 2000)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (GOOD[1:], "shared: missing"),
        ((GOOD[0], GOOD[2]), "params: missing"),
        (GOOD[:2], "dilation: missing"),
        ((*GOOD[:2], "dilation=fast"), "dilation=fast: must be a number"),
        ((*GOOD[:2], "dilation=-1"), "must be a number from 0"),
        ((*GOOD[:2], "dilation=nan"), "must be a number from 0"),
        ((*GOOD[:2], "dilation="), "must be a number from 0"),
        ((*GOOD[:2], "dilation=20x"), "must be a number from 0"),
        ((*GOOD, "step=-1"), "step=-1: must be a number from 0"),
        ((*GOOD, "verbose=on"), "verbose=on: not an argument"),
        ((*GOOD, "shared"), "shared: not an argument"),
        ((*GOOD, "dilations=2"), "dilations=2: not an argument"),
    ],
)
def test_arguments_invalid_are_refused_in_one_line(
    parts: Any, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    status, _ = parse(parts, *words)
    lines = capfd.readouterr().err.splitlines()
    assert status == -1
    assert len(lines) == 1
    assert lines[0].startswith("hmd plugin: ")
    assert says in lines[0]


def test_parameters_read_equal_those_written(params: Any) -> None:
    assert (params.nodes, params.vcpus) == (2, 2)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b""])
def test_parameters_of_another_size_are_refused(parts: Any, params_file: Path, change: Any) -> None:
    params_file.write_bytes(change(params_file.read_bytes()))
    found, why = parts.ffi.new("struct timing_params *"), parts.ffi.new("const char **")
    assert parts.lib.arguments_read_params(bytes(params_file), found, why) == -1
    assert b"not one struct timing_params" in parts.ffi.string(why[0])


def test_parameters_of_missing_file_report_the_error(parts: Any, tmp_path: Path) -> None:
    found, why = parts.ffi.new("struct timing_params *"), parts.ffi.new("const char **")
    assert parts.lib.arguments_read_params(bytes(tmp_path / "none"), found, why) == -1
    assert parts.ffi.string(why[0]) == b"No such file or directory"
