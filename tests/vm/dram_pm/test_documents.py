"""What docs/tutorial/laptop.md runs in the emulated machine, in the one that all tests share.

``hmd emulate -- COMMAND`` itself is test_emulate_cli.py's; here is COMMAND.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hmd.emulate.boot import Machine

CHECKOUT = Path(__file__).parents[3]
SHOWN = {
    "hmd topology": "Tiers, fastest first: 0  then  1",
    "hmd doctor": "hmd can work here.",
    "hmd run --config config/hmd.yaml --dry-run --ticks 2": "names no targets",
}
"""The commands behind ``hmd emulate --``, and what each of them says."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", SHOWN)
def test_a_command_of_the_guide(
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


def test_the_guide_has_these_commands() -> None:
    guide = (CHECKOUT / "docs/tutorial/laptop.md").read_text()
    assert all(f"hmd emulate -- {command}" in guide or f"'{command}'" in guide for command in SHOWN)
