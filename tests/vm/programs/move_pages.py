# SPDX-License-Identifier: MIT
"""Provoke every answer of move_pages(2) on a machine with two nodes, for system call and mover.

    python -m tests.vm.programs.move_pages CHURN ROUNDS [SCENARIO...]

Runs in the guest, as root. Prints a line of JSON per scenario: its name, and the result or the
failure. tests/vm/dram_pm/test_move_pages.py checks them.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.vm.programs.move_scenarios.base_pages import absent, code, dry_run, there_and_back
from tests.vm.programs.move_scenarios.changing import churn, exited, exits_in_the_middle
from tests.vm.programs.move_scenarios.command_line import command_line
from tests.vm.programs.move_scenarios.held_pages import busy, pinned_everywhere, shared, tail
from tests.vm.programs.move_scenarios.large_pages import huge_pages, large_folios, split_huge_page
from tests.vm.programs.move_scenarios.refusals import (
    cpuset,
    full,
    kernel_thread,
    offline,
    permission,
)

SCENARIOS: tuple[Callable[[], dict[str, Any]], ...] = (
    there_and_back,
    dry_run,
    absent,
    busy,
    tail,
    pinned_everywhere,
    shared,
    huge_pages,
    split_huge_page,
    large_folios,
    full,
    cpuset,
    offline,
    exited,
    exits_in_the_middle,
    kernel_thread,
    permission,
    code,
    churn,
    command_line,
)


def run_all() -> None:
    for function in SCENARIOS:
        name = function.__name__
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        begun = time.monotonic()
        try:
            answer: dict[str, Any] = {"found": function()}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        answer["seconds"] = round(time.monotonic() - begun, 1)
        print(json.dumps({"name": name, **answer}), flush=True)


if __name__ == "__main__":
    run_all()
