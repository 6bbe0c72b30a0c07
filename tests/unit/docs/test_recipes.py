# SPDX-License-Identifier: MIT
"""Two recipes of ARCHITECTURE.md, followed on a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "hmd"

POLICY = '''\
"""A policy for a test: it moves nothing."""

from hmd.policy.builtin.none import NonePolicy, NoneSettings
from hmd.policy.settings import PolicyInfo


class PatientSettings(NoneSettings):
    """The settings of the policy."""


class PatientPolicy(NonePolicy):
    """Never moves a page."""

    name = "patient"


POLICY = PolicyInfo(
    name="patient",
    summary="Waits.",
    suits="Tests.",
    settings_type=PatientSettings,
    create=PatientPolicy,
)
'''
PLANNER = '''\
"""A planner for a test: no moves."""

from hmd.tensors.move_plan import plan_of


def plan_step(problem):
    """Return an empty plan."""
    return plan_of([])
'''
NAMES = """\
from hmd.tensors.planners import PLANNERS, planner_named
entry = planner_named("still")
print(entry.name, entry.plan_step, sorted(PLANNERS) != [])
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "hmd", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def python(copy: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", *words]
    done = subprocess.run(
        command, env=environment, cwd=copy, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recipe_of_a_policy_is_one_file(copy: Path) -> None:
    (copy / "hmd/policy/builtin/patient.py").write_text(POLICY)
    listed = json.loads(python(copy, "-m", "hmd", "policy", "list", "--json"))
    assert "patient" in {policy["name"] for policy in listed["policies"]}
    config = copy / "hmd.yaml"
    config.write_text("targets: [{name: all, user: root}]\ndecide: {policy: patient}\n")
    assert "patient" in python(copy, "-m", "hmd", "config", "show", str(config))


def test_recipe_of_a_planner_is_a_file_and_a_line(copy: Path) -> None:
    (copy / "hmd/tensors/planners/still.py").write_text(PLANNER)
    table = copy / "hmd/tensors/planners/__init__.py"
    line = '        PlannerEntry("still", "still:plan_step", "no moves"),\n'
    last = '        PlannerEntry("portfolio"'
    assert table.read_text().count(last) == 1
    table.write_text(table.read_text().replace(last, line + last))
    assert python(copy, "-c", NAMES).split() == [
        "still",
        "still:plan_step",
        "True",
    ]
