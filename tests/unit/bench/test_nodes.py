# SPDX-License-Identifier: MIT
"""The programs on two sockets verify their work; hmd is compared with the best of the others."""

from __future__ import annotations

import subprocess

import pytest

from bench import nodes, nodes_model
from hmd.emulate.assets import compile_static

STEPS = 60_000
SMALL = {"parts": ("1", "2001", "3"), "stencil": ("64", "3")}


@pytest.mark.parametrize("name", nodes.PROGRAMS)
def test_programs_verify_their_work(name: str) -> None:
    source, *words = nodes.PROGRAMS[name]
    program = compile_static(nodes.FOLDER / f"{source}.c", nodes.OPTIONS)
    mode = words[:1] if source == "parts" else []
    done = subprocess.run(
        [str(program), *map(str, mode), *SMALL[str(source)]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{source} verified" in done.stdout


def test_hmd_is_compared_with_the_best_other_system() -> None:
    seconds = {"localalloc": 3.0, "interleave": 2.0, nodes.HMD: 1.6}
    rows = [{"program": "table", "system": name, "seconds": s} for name, s in seconds.items()]
    rows += [{"program": "mixed", "system": nodes.HMD, "seconds": 1.0}]
    assert nodes.summary(rows) == {"over_best": {"table": 1.25}, "mean": 1.25, "least": 1.25}


@pytest.mark.parametrize("name", nodes_model.CHAINS)
def test_steps_end_as_fast_as_with_the_best_placement_of_numactl(name: str) -> None:
    last = {}
    for moving in (False, True):
        run = nodes_model.ModelledRun(nodes_model.Program(name, STEPS), interleaved=not moving)
        last[moving] = run.finish(STEPS, moving=moving).last_ns
    assert last[True] < last[False] * (1.02 if name == "table" else 0.96)
