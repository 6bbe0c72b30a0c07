# SPDX-License-Identifier: MIT
"""A real program that runs twice under a real daemon that learns: known the second time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmd.control.client import send_admin_request
from tests.system.daemon.conftest import FAULTER, Daemon, wait_for

MARK = "learned-program"
TARGET = f"[{{name: nightly, cmdline: {MARK}}}]"


@contextmanager
def program() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", FAULTER, MARK]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.send_signal(signal.SIGKILL)


def configure(daemon: Daemon, extra: str = "") -> Path:
    state = daemon.folder / "state"
    state.mkdir(exist_ok=True)
    daemon.configure(TARGET, f"state_dir: {state}\nlearn: true\n{extra}")
    return state / "profiles"


def wait_for_samples(daemon: Daemon, process: subprocess.Popen[bytes]) -> None:
    def sampled() -> bool:
        return any(
            one["pid"] == process.pid and one["samples"] > 2000
            for one in daemon.status()["processes"]
        )

    wait_for(sampled, "samples of the program")


def test_second_run_is_known_to_status_metrics_explain_and_commands(new_daemon: Daemon) -> None:
    folder = configure(new_daemon)
    new_daemon.start()
    new_daemon.wait_ready()
    with program() as process:
        wait_for_samples(new_daemon, process)
        assert new_daemon.status()["profiles"]["processes"] == 0
    wait_for(lambda: list(folder.glob("*.profile")), "a profile after the first run")
    assert folder.stat().st_mode & 0o777 == 0o700

    listed = subprocess.run(
        [sys.executable, "-m", "hmd", "profile", "list", "--json", "--directory", folder],
        capture_output=True,
        check=True,
    )
    (found,) = json.loads(listed.stdout)["profiles"]
    assert found["runs"] == 1.0

    with program() as process:
        wait_for_samples(new_daemon, process)
        wait_for(lambda: new_daemon.status()["profiles"]["processes"] == 1, "a known process")
        assert new_daemon.status()["profiles"]["count"] == 1
        assert new_daemon.metric("hmd_profiled_processes") == 1
        assert new_daemon.metric("hmd_profiles_bytes") == found["size_bytes"]
        answer = send_admin_request(new_daemon.socket, "explain", {"pid": process.pid})
        (explained,) = answer["explained"]
        assert explained["former_runs"]["program"] == found["key"]
        assert explained["former_runs"]["runs"] == 1.0
        status = new_daemon.status()
        assert status["profiles"]["refused"] == 0
        assert not any(status["stage_failures"].values()), new_daemon.log.read_text()


def test_kill_loses_no_more_than_the_time_between_saves(new_daemon: Daemon) -> None:
    folder = configure(new_daemon, "profiles: {save: 1s}\n")
    new_daemon.start()
    new_daemon.wait_ready()
    with program() as process:
        wait_for_samples(new_daemon, process)
        wait_for(lambda: list(folder.glob("*.profile")), "a profile of the running program")
        new_daemon.kill()
    new_daemon.start()
    new_daemon.wait_ready(2)
    with program():
        wait_for(lambda: new_daemon.status()["profiles"]["processes"] == 1, "a known process")


def test_without_learn_nothing_is_written(new_daemon: Daemon) -> None:
    folder = configure(new_daemon)
    new_daemon.config.write_text(new_daemon.config.read_text().replace("learn: true\n", ""))
    new_daemon.start()
    new_daemon.wait_ready()
    with program() as process:
        wait_for_samples(new_daemon, process)
    new_daemon.signal(signal.SIGTERM)
    assert new_daemon.process is not None
    assert new_daemon.process.wait(60) == 0
    assert not folder.exists()
