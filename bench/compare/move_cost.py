# SPDX-License-Identifier: MIT
"""CPU cost of moving a page in the emulated machine, for the simulator's MigrationCost.

    python -m bench.compare.move_cost       takes about a minute

Writes build/moving.json: instructions per moved page and per first-touched page, without the
stalls of copying and zeroing, which the timing model accounts to memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.compare.testbed import FIRST_TOUCH, Testbed, stage
from hmd.base.errors import HmdError
from hmd.emulate.assets import compile_static
from hmd.emulate.demo.measure import PROGRAM_CPU
from hmd.emulate.vm.guest import Command

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "moving.json"
PROGRAM = Path(__file__).with_name("move_cost.c")
PAGES = 4096
ROUNDS = 8


def main() -> int:
    """Measure, write and print the costs."""
    try:
        commands = [_command(rounds) for rounds in (0, ROUNDS)]
        with stage(commands[:1], ROOT / "build/compare/share") as ready:
            still, moving = (_instructions(ready, command) for command in commands)
    except HmdError as error:
        print(f"moving: {error}", file=sys.stderr)
        return int(error.exit_code)
    found = {
        "move_instructions": round((moving - still) / (ROUNDS * PAGES)),
        "first_touch_instructions": round(still / PAGES),
        "command": "python -m bench.compare.move_cost",
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0


def _command(rounds: int) -> Command:
    return Command((str(compile_static(PROGRAM)), str(rounds)), env={}, expect="moved")


def _instructions(ready: Testbed, command: Command) -> int:
    """Return the instructions that the program's CPU executes for a command."""
    with ready.modelled():
        before = ready.machine.shared.counters(PROGRAM_CPU).instructions
        ready.execute(command, FIRST_TOUCH)
        return ready.machine.shared.counters(PROGRAM_CPU).instructions - before


if __name__ == "__main__":
    sys.exit(main())
