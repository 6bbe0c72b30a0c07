# SPDX-License-Identifier: MIT
"""The commands that docs/tutorial/laptop.md runs in the emulated machine.

test_emulate_cli.py tests ``hmd emulate -- COMMAND``; this file tests COMMAND, and the example of
``hmd simulate``.
"""

from __future__ import annotations

import os
import subprocess
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


EXAMPLE = """\
hmd simulate --record dict.misses -- python3 -c '
d = {n * 2654435761: n for n in range(200000)}
k = [*d][-40000:]
[d[x] for _ in range(20) for x in k]'
hmd simulate dict.misses --policy histogram --policy benefit --fast 25%
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_example_of_the_tutorial_gains_by_both_policies(tmp_path: Path) -> None:
    assert EXAMPLE in (CHECKOUT / "docs/tutorial/laptop.md").read_text()
    (tmp_path / "hmd").write_text(f'#!/bin/sh\nexec {sys.executable} -m hmd "$@"\n')
    (tmp_path / "hmd").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
    }
    done = subprocess.run(
        ["bash", "-e"], input=EXAMPLE, cwd=tmp_path, env=environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    gains = {row[0]: float(row[3]) for row in rows if row and row[0] in ("histogram", "benefit")}
    assert min(gains.values()) > 1.1, done.stdout
    assert len(gains) == 2
