# SPDX-License-Identifier: MIT
"""``hmd migrate`` in this process, and the scenario of its options."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from hmd.cli.main import main as hmd
from tests.vm.programs.move_scenarios.large_pages import huge_in
from tests.vm.programs.move_scenarios.moves import names_of_nodes
from tests.vm.programs.move_scenarios.target import BLOCK, MIB, Target


def command(*words: object) -> tuple[int, str, str]:
    """Run ``hmd migrate`` in this process, to spare a start of the interpreter."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = hmd(["migrate", *map(str, words)])
    return int(code), out.getvalue(), err.getvalue()


def command_line() -> dict[str, Any]:
    with (
        Target(4 * MIB, stays_bound=False) as target,
        Target(2 * BLOCK, stays_bound=False, huge=True) as big,
    ):
        before = target.digest
        where = ("--pid", target.pid, "--range", target.range)
        found: dict[str, Any] = {}
        for name, words in {
            "dry": ("--to", 1, "--dry-run", "--json"),
            "limited": ("--to", 1, "--limit", "1MiB", "--json"),
            "rated": ("--to", 1, "--rate", "200MiB/s", "--json"),
            "done": ("--to", 1),
            "wrong_side": ("--to", 0, "--from", 0, "--json"),
            "back": ("--to", 0, "--from", 1),
        }.items():
            found[name] = [*command(*where, *words), names_of_nodes(target)]
        found["whole"] = [*command("--pid", big.pid, "--to", 1, "--json"), names_of_nodes(big)]
        found["huge"] = huge_in(big)
        found["intact"] = target.digest == before
        return found
