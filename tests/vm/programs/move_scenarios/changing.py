# SPDX-License-Identifier: MIT
"""Scenarios of processes that exit, fork or execute while their pages move."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

from hmd.linux import page_calls
from hmd.linux.mappings import read_mappings
from hmd.linux.procfs import identify
from hmd.migrate import Mover, MoverSettings, MoveStatus
from hmd.migrate.process_plans import ProcessPlans
from tests.vm.programs.move_scenarios.moves import mover, names, plan_of, raw
from tests.vm.programs.move_scenarios.target import PAGE, Target


def exited() -> dict[str, Any]:
    with Target(64 * PAGE) as target:
        plan = plan_of(target, 1)
        target.kill()
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        not_reaped = {
            "raw": raw(target.pid, plan.address[:2].tolist(), 1)["result"],
            "status": names(mover().apply(plan).status),
        }
        os.waitpid(target.pid, 0)
        gone = {
            "raw": raw(target.pid, plan.address[:2].tolist(), 1)["result"],
            "status": names(mover().apply(plan).status),
        }
    return {"not_reaped": not_reaped, "reaped": gone}


def exits_in_the_middle() -> dict[str, Any]:
    """The process dies after the mover has looked, before its first and its second call."""
    found = {}
    for dies_at in (0, 1):
        with Target(600 * PAGE) as target:
            made = 0

            class Calls:
                query_nodes = staticmethod(page_calls.query_nodes)

                @staticmethod
                def move_pages(*args: Any, target: Target = target, dies_at: int = dies_at) -> Any:
                    nonlocal made
                    if made == dies_at:
                        target.kill()
                    made += 1
                    return page_calls.move_pages(*args)

            settings = MoverSettings(rate_bytes_per_s=None, max_batch_pages=256)
            outcome = Mover(settings, calls=Calls()).apply(plan_of(target, 1))
            found[str(dies_at)] = names(outcome.status)
    return found


def churn() -> dict[str, Any]:
    """A program forks, executes itself, unmaps and exits while all its pages go to and fro."""
    with subprocess.Popen([sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process, moves, rounds = identify(child.pid), mover(), 0
        assert process is not None
        moved, pages = {"1": 0, "0": 0}, Counter[MoveStatus]()
        while child.poll() is None:
            node = 1 - rounds % 2
            mappings = read_mappings(child.pid)
            if mappings is not None:
                for found in ProcessPlans(process, mappings, node).slices():
                    outcome = moves.apply(found.plan)
                    pages.update(outcome.pages)
                    moved[str(node)] += sum(outcome.moved.values())
            rounds += 1
        return {
            "exit": child.wait(),
            "said": child.stdout.read(),
            "rounds": rounds,
            "moved": moved,
            "pages": {status.name: n for status, n in pages.items() if n},
        }
