# SPDX-License-Identifier: MIT
"""Slurm's prolog and epilog, called as slurmd calls them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from hmd.config import load
from hmd.config.load import RUNTIME_DROP_INS
from hmd.emulate import assets

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
        "job-4711": ("/system.slice/slurmstepd.scope/job_4711",),
        "job-4712": ("/system.slice/slurmstepd.scope/job_4712",),
    }
    call("epilog.sh", drop_ins)
    assert [target.name for target in load(tmp_path / "hmd.yaml").targets] == ["job-4712"]
    call("epilog.sh", drop_ins, job=4712)
    assert not list(drop_ins.iterdir())


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_slurm_scripts_without_hmd_exit_zero(tmp_path: Path, script: str) -> None:
    call(script, tmp_path / "missing")
    assert not list(tmp_path.iterdir())


def test_slurm_prolog_writes_nowhere_that_another_user_may_rename(tmp_path: Path) -> None:
    """The user of the daemon could put a link to any file of root there."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "hmd.d").symlink_to(tmp_path / "elsewhere")
    call("prolog.sh", tmp_path / "hmd.d")
    assert not list((tmp_path / "elsewhere").iterdir())
    if os.geteuid() == 0:
        owned = tmp_path / "owned"
        owned.mkdir()
        os.chown(owned, 4711, 4711)
        call("prolog.sh", owned)
        assert not list(owned.iterdir())


def test_drop_ins_of_batch_systems_lie_outside_the_daemons_folders() -> None:
    unit = (SLURM.parents[1] / "systemd/hmd.service").read_text()
    tmpfiles = (SLURM.parents[1] / "systemd/tmpfiles.d/hmd.conf").read_text()
    owned = [
        Path({"Runtime": "/run", "State": "/var/lib", "Cache": "/var/cache"}[kind]) / name
        for kind, name in re.findall(r"^(Runtime|State|Cache)Directory=(.*)$", unit, re.MULTILINE)
    ]
    assert len(owned) == 3
    assert not any(RUNTIME_DROP_INS.is_relative_to(folder) for folder in owned)
    assert re.search(rf"^d {RUNTIME_DROP_INS} +0755 root root$", tmpfiles, re.MULTILINE)
    for script in SLURM.glob("*.sh"):
        assert f"{{HMD_DROP_INS:-{RUNTIME_DROP_INS}}}" in script.read_text()


def test_root_caches_compiled_programs_outside_the_daemons_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root runs what it finds in its cache, and the daemon's user owns /var/cache/hmd."""
    made: list[Path] = []
    monkeypatch.delenv("HMD_CACHE_DIR", raising=False)
    monkeypatch.setattr(assets, "in_checkout", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "mkdir", lambda path, **_: made.append(path))
    assert assets.cache_folder() == Path("/var/cache/hmd-emulate") == made[0]


def test_scripts_of_root_make_nothing_that_others_may_write() -> None:
    root = SLURM.parents[1]
    scripts = [path for name in ("setup", "packaging") for path in (root / name).rglob("*.sh")]
    assert len(scripts) > 5
    opens = re.compile(r"chmod\s+(?:-R\s+)?(?:[0-7]*[2367]\b|[augo]*[ao]\+\w*w)")
    assert opens.search("chmod 777 folder") and opens.search("chmod -R a+rw folder")
    assert [script for script in scripts if opens.search(script.read_text())] == []
