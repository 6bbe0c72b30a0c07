# SPDX-License-Identifier: MIT
"""Settings of targets in a running daemon: never slow, hours, rate, limits per cgroup.

This host has one memory node: where pages go is shown in tests/vm/dram_pm/test_target_limits.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd.base.errors import Exit, TargetError
from hmd.cli.main import main
from hmd.control.client import send_admin_request
from hmd.linux.procfs import mounts
from tests.system.daemon.conftest import Daemon, wait_for


@pytest.fixture
def cgroups() -> Iterator[Path]:
    """Two groups below one of their own, in the hierarchy of version 2."""
    mounted = next((Path(path) for kind, path in mounts(("cgroup2",))), None)
    if mounted is None:
        pytest.skip("no cgroups of version 2 are mounted")
    folder = mounted / f"hmd-{os.getpid()}"
    groups = [folder / name for name in "ab"]
    for group in groups:
        group.mkdir(parents=True)
    yield folder
    for pid in [pid for group in groups for pid in (group / "cgroup.procs").read_text().split()]:
        (mounted / "cgroup.procs").write_text(pid)
    for group in (*groups, folder):
        group.rmdir()


def sleeper(group: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sleep", "1000"])
    (group / "cgroup.procs").write_text(str(process.pid))
    return process


def hours(begin: int) -> str:
    """Return the hour that begins so many hours from now."""
    times = (time.localtime(time.time() + 3600 * (begin + more)) for more in (0, 1))
    return "-".join(time.strftime("%H:00", each) for each in times)


def test_daemon_proves_never_slow_and_rests_outside_of_hours(
    new_daemon: Daemon, faulter: subprocess.Popen[bytes], cgroups: Path
) -> None:
    members = [sleeper(cgroups / name) for name in "ab"]
    try:
        group = f"/{cgroups.name}/*"
        new_daemon.configure(
            f"\n- {{name: kept, pid: {faulter.pid}, never_slow: true}}\n"
            f"- {{name: pods, cgroup: '{group}', per_cgroup: true, fast_max: 10%, rate: 1MiB/s,"
            f" active: ['{hours(2)}']}}"
        )
        new_daemon.start()
        new_daemon.wait_ready()
        found = wait_for(
            lambda: {t["name"]: t for t in new_daemon.status()["targets"] if t["process_count"]},
            "the targets",
        )
        kept, pods = found["kept"], found["pods"]
        assert (pods["process_count"], pods["resting"], pods["off_fastest_bytes"]) == (
            2,
            True,
            None,
        )
        assert (kept["off_fastest_bytes"], kept["resting"]) == (0, False)
        assert new_daemon.metric("hmd_target_off_fastest_bytes", target="kept") == 0
        assert new_daemon.metric("hmd_target_resting", target="pods") == 1
        known = wait_for(lambda: explained(new_daemon, members[0].pid), "a page of the target")
        assert "outside of its hours" in known
        # Within its hours it moves again, without a restart.
        text = new_daemon.config.read_text()
        new_daemon.config.write_text(text.replace(f"'{hours(2)}'", f"'{hours(0)}', 00:00-24:00"))
        new_daemon.signal(signal.SIGHUP)
        wait_for(lambda: not new_daemon.status()["targets"][1]["resting"], "the target's hours")
        assert not any(new_daemon.status()["stage_failures"].values()), new_daemon.log.read_text()
    finally:
        for process in members:
            process.kill()
            process.wait()


def explained(daemon: Daemon, pid: int) -> str:
    """Return why a page of a process is where it is, nothing before one is known."""
    try:
        answer = send_admin_request(daemon.socket, "explain", {"pid": pid})
    except TargetError:
        return ""
    return str(answer["explained"][0]["pages"][0]["why"])


def test_match_names_the_cgroup_whose_limits_hold(
    tmp_path: Path, cgroups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text(
        f"targets: [{{name: pods, cgroup: '/{cgroups.name}/*', per_cgroup: true, fast_max: 10%}}]\n"
    )
    members = [sleeper(cgroups / name) for name in "ab"]
    try:
        assert main(["config", "match", "--json", str(file)]) == Exit.OK
        (target,) = json.loads(capsys.readouterr().out)["targets"]
        assert {each["pid"]: each["cgroup"] for each in target["processes"]} == {
            process.pid: f"/{cgroups.name}/{name}"
            for process, name in zip(members, "ab", strict=True)
        }
        main(["config", "match", str(file)])
        assert f"/{cgroups.name}/a\n" in capsys.readouterr().out
    finally:
        for process in members:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "targets: there are none: hmd has nothing to do"),
        (
            "targets: [{name: a, exe: [a, b], fast_min: 500TiB}]",
            "500TiB of the fastest tier, which",
        ),
        (
            "targets: [{name: a, exe: [a, b]}]",
            "targets[0]: matches nothing now: no process has exe",
        ),
    ],
)
def test_check_warns_of_what_has_no_effect_here(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == Exit.OK
    assert said in capsys.readouterr().err


def test_check_of_the_machine_refuses_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, observe = tmp_path / "hmd.yaml", f"observe: {{socket: {tmp_path}/run/hmd.sock}}\n"
    file.write_text(f"targets: [{{name: a, exe: no-such-program}}]\n{observe}")
    assert main(["config", "check", str(file)]) == Exit.OK
    assert capsys.readouterr().out == f"{file}: ok, 1 warning\n"
    assert main(["config", "check", "--machine", str(file)]) == Exit.CONFIG
    assert capsys.readouterr().out == f"{file}: does not fit this machine, 1 warning\n"
    assert main(["config", "check", "--machine", "--json", str(file)]) == Exit.CONFIG
    assert json.loads(capsys.readouterr().out)["ok"] is False
    # What runs the check is no target.
    file.write_text(f"targets: [{{name: a, pid: {os.getppid()}}}]\n{observe}")
    assert main(["config", "check", "--machine", str(file)]) == Exit.OK
