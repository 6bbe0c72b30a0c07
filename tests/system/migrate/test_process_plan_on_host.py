# SPDX-License-Identifier: MIT
"""The plan that moves a real process of this host."""

from __future__ import annotations

import subprocess

from hmd.linux.mappings import read_mappings
from hmd.linux.procfs import identify
from hmd.migrate.process_plans import ProcessPlans


def test_plan_of_a_process_on_node_0_moves_its_pages_away_only() -> None:
    with subprocess.Popen(
        ["sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process, mappings = identify(child.pid), read_mappings(child.pid)
        assert process is not None
        assert mappings is not None
        away = list(ProcessPlans(process, mappings, 1).slices())
        here = list(ProcessPlans(process, mappings, 0).slices())
        child.kill()
    assert sum(len(s.plan) for s in away) > 10
    assert sum(s.span_bytes for s in away) == ProcessPlans(process, mappings, 1).span_bytes
    assert sum(s.resident_pages for s in away) >= sum(len(s.plan) for s in away)
    assert sum(len(s.plan) for s in here) == 0
