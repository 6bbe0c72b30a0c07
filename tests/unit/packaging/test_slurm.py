"""Slurm's prolog and epilog, called as slurmd calls them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hmd.config import load

SLURM = Path(__file__).parents[3] / "packaging/slurm"


def call(script: str, drop_ins: Path, job: int = 4711) -> None:
    """Run a script for a job and check that it exits with 0, although systemctl fails here."""
    environ = {**os.environ, "SLURM_JOB_ID": str(job), "HMD_DROP_INS": str(drop_ins)}
    done = subprocess.run(
        [SLURM / script], env=environ, capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 0


def test_slurm_job_between_prolog_and_epilog_is_target(tmp_path: Path) -> None:
    (tmp_path / "hmd.yaml").write_text("tick: 1s\n")
    drop_ins = tmp_path / "hmd.d"
    drop_ins.mkdir()
    call("prolog.sh", drop_ins)
    call("prolog.sh", drop_ins, job=4712)
    found = {target.name: target.cgroup for target in load(tmp_path / "hmd.yaml").targets}
    assert found == {
        "job-4711": "/system.slice/slurmstepd.scope/job_4711",
        "job-4712": "/system.slice/slurmstepd.scope/job_4712",
    }
    call("epilog.sh", drop_ins)
    assert [target.name for target in load(tmp_path / "hmd.yaml").targets] == ["job-4712"]
    call("epilog.sh", drop_ins, job=4712)
    assert not list(drop_ins.iterdir())


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_slurm_scripts_without_hmd_exit_zero(tmp_path: Path, script: str) -> None:
    call(script, tmp_path / "missing")
    assert not list(tmp_path.iterdir())
