# SPDX-License-Identifier: MIT
"""The commands that docs/tutorial/laptop.md runs in the emulated machine.

test_emulate_cli.py tests ``hmd emulate -- COMMAND``; this file tests COMMAND.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hmd.emulate.vm.boot import Machine

CHECKOUT = Path(__file__).parents[3]
SHOWN = {
    "hmd topology": "Tiers, fastest first: 0  then  1",
    "hmd doctor": "hmd can work here.",
    "hmd run --config config/hmd.yaml --dry-run --ticks 2": "names no targets",
}
"""The commands behind ``hmd emulate --``, and a part of the output of each."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", SHOWN)
def test_tutorial_command_in_guest_prints_expected_text(
    command: str, machine: Machine, guest_environ: dict[str, str]
) -> None:
    hmd = f"{sys.executable} -m hmd"
    done = machine.run(
        ["sh", "-c", command.replace("hmd ", f"{hmd} ", 1)],
        cwd=CHECKOUT,
        env=guest_environ,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert SHOWN[command] in done.stdout + done.stderr


def test_tutorial_contains_tested_commands() -> None:
    guide = (CHECKOUT / "docs/tutorial/laptop.md").read_text()
    assert all(f"hmd emulate -- {command}" in guide or f"'{command}'" in guide for command in SHOWN)
