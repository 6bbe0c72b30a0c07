# SPDX-License-Identifier: MIT
"""Admin requests to a daemon process: effects, permissions, and state that survives a reload."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import Exit, HmdError, TargetError, UsageError
from hmd.control.client import send_admin_request
from tests.system.daemon.conftest import FAULTER, Daemon, wait_for

NOBODY = 65534
ASK = """
import json, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    s.sendall(sys.argv[2].encode() + b"\\n")
    print(s.makefile().read())
"""


@pytest.fixture
def daemon(module_daemon: Daemon, faulter: subprocess.Popen[bytes]) -> Iterator[Daemon]:
    """One daemon for all tests here, without admin requests, serving this test's own target."""
    module_daemon.configure(f"[{{name: faulter, pid: {faulter.pid}}}]")
    if module_daemon.process is None:
        module_daemon.start()
        module_daemon.wait_ready()
        # Any user may connect: the tests are about who may request what.
        module_daemon.socket.chmod(0o666)
        for folder in (module_daemon.socket.parent, *module_daemon.socket.parents):
            if folder.is_relative_to(Path("/tmp")):
                folder.chmod(folder.stat().st_mode | 0o011)
    else:
        readies = sum(line.startswith("READY=1") for line in module_daemon.notified())
        module_daemon.signal(signal.SIGHUP)
        module_daemon.wait_ready(readies + 1)
    wait_for(lambda: module_daemon.status()["processes"], "the target")
    yield module_daemon
    for command, arguments in (("resume", {}), ("unpin", {"all": True}), ("policy", {})):
        send_admin_request(module_daemon.socket, command, arguments)


def as_nobody(daemon: Daemon, command: str, **arguments: Any) -> dict[str, Any]:
    """Return the answer to a request of the user nobody."""
    request = json.dumps({"command": command, **arguments})
    done = subprocess.run(
        [sys.executable, "-S", "-c", ASK, str(daemon.socket), request],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run_hmd(*words: str) -> subprocess.CompletedProcess[str]:
    """Return what a command line of hmd prints, and how it ends."""
    return subprocess.run(
        [sys.executable, "-m", "hmd", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def control(daemon: Daemon) -> dict[str, Any]:
    """Return the admin state of the status, without the number of requests."""
    found: dict[str, Any] = daemon.status()["control"]
    del found["requests"]
    return found


def test_pause_and_resume_change_state_once(daemon: Daemon) -> None:
    assert send_admin_request(daemon.socket, "pause")["done"].startswith("paused")
    assert control(daemon)["paused"]
    again = send_admin_request(daemon.socket, "pause")["done"]
    assert again == "was paused already; ends with the daemon, which has no state_dir"
    ticks, samples = (daemon.status()[key] for key in ("ticks", "sampler"))
    wait_for(lambda: daemon.status()["ticks"] > ticks + 3, "ticks while paused")
    wait_for(lambda: daemon.status()["sampler"]["samples"] > samples["samples"], "samples")
    assert daemon.metric("hmd_paused") == 1
    assert send_admin_request(daemon.socket, "resume")["done"] == "resumed"
    assert send_admin_request(daemon.socket, "resume")["done"] == "was not paused"
    wait_for(lambda: daemon.metric("hmd_paused") == 0, "the metric")


def test_policy_request_changes_and_resets_policy(daemon: Daemon) -> None:
    assert daemon.status()["policy"] != "age"
    before = daemon.status()["policy"]
    send_admin_request(daemon.socket, "policy", {"name": "age"})
    assert daemon.status()["policy"] == "age"
    assert control(daemon)["policy_ordered"] == "age"
    assert daemon.metric("hmd_policy_overridden") == 1
    with pytest.raises(UsageError, match=r"no policy 'oracle': there are .*histogram"):
        send_admin_request(daemon.socket, "policy", {"name": "oracle"})
    assert daemon.status()["policy"] == "age"
    send_admin_request(daemon.socket, "policy")
    assert (daemon.status()["policy"], control(daemon)["policy_ordered"]) == (before, None)


def test_admin_state_survives_reload(daemon: Daemon, faulter: subprocess.Popen[bytes]) -> None:
    send_admin_request(daemon.socket, "pause")
    send_admin_request(daemon.socket, "pin", {"pid": faulter.pid})
    send_admin_request(daemon.socket, "pin", {"target": "faulter", "to": 0})
    send_admin_request(daemon.socket, "policy", {"name": "age"})
    before = control(daemon)
    good = daemon.config.read_text()
    reloaded = daemon.status()["reload"]["success_s"]
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.status()["reload"]["success_s"] > reloaded, "a reload")
    assert control(daemon) == before
    assert daemon.status()["policy"] == "age"
    daemon.config.write_text("tick: soon\n")
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: not daemon.status()["reload"]["successful"], "a failed reload")
    assert control(daemon) == before
    daemon.config.write_text(good)
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: daemon.status()["reload"]["successful"], "a good reload")
    assert [pin["target"] for pin in before["pins"]] == ["faulter", "faulter"]


def test_admin_state_outlives_restart_and_kill(
    new_daemon: Daemon, tmp_path: Path, faulter: subprocess.Popen[bytes]
) -> None:
    """What is in force comes back for the same process, and only that; what is damaged is named."""
    daemon = new_daemon
    state = tmp_path / "state"
    state.mkdir()
    daemon.configure(f"[{{name: faulter, pid: {faulter.pid}}}]", f"state_dir: {state}\n")
    file = state / "admin.json"
    with running(FAULTER) as other:
        daemon.start()
        daemon.wait_ready()
        assert not file.exists()
        for command, arguments in (
            ("pause", {}),
            ("policy", {"name": "age"}),
            ("pin", {"pid": faulter.pid, "to": 0}),
            ("pin", {"pid": other}),
            ("pin", {"target": "faulter", "until_restart": True}),
        ):
            answer = send_admin_request(daemon.socket, command, arguments)["done"]
            assert "ends with the daemon" not in answer
        assert control(daemon)["until_restart"] == ["target faulter"]
        daemon.kill()
    daemon.start()
    daemon.wait_ready(2)
    now = control(daemon)
    assert now["restored"] == "paused, policy age, 1 process pinned"
    assert now["not_restored"] == ""
    assert (now["paused"], daemon.status()["policy"]) == (True, "age")
    assert [(pin["pid"], pin["node"]) for pin in now["pins"]] == [(faulter.pid, 0)]
    assert "restored from before the restart: paused, policy age" in daemon.log.read_text()
    daemon.kill()

    file.write_bytes(file.read_bytes().replace(b'"paused":true', b'"paused":null'))
    daemon.start()
    daemon.wait_ready(3)
    now = control(daemon)
    damaged = f"{file}: damaged (its checksum is wrong): no pause, pin or drain"
    assert now["not_restored"].startswith(damaged)
    assert not now["paused"]
    assert not now["pins"]
    assert damaged in daemon.log.read_text()
    assert daemon.metric("hmd_admin_state_lost") == 1
    assert (state / "admin.json.damaged").exists()
    assert daemon.process is not None

    # The history has all of it, and the minute that SIGTERM cut off.
    report = run_hmd("report", "--socket", str(daemon.socket))
    assert (report.returncode, report.stdout) == (Exit.FAILURE, "")
    assert "nothing is recorded of this time yet" in report.stderr
    slow = run_hmd("explain", "--slow", "faulter", "--socket", str(daemon.socket))
    assert "the history has too little of 'faulter'" in slow.stderr
    wait_for(lambda: daemon.status()["ticks"] > 3, "ticks")
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=60) == 0
    found = json.loads(run_hmd("report", "--file", str(state / "history.hmd"), "--json").stdout)
    done = [event["text"] for event in found["events"]]
    assert "hmd pause: paused: no page moves until hmd resume" in done
    assert any(text.startswith("hmd 0.1.0 started; paused, policy age") for text in done)
    assert done[-1] == "stopped"
    assert found["targets"]["faulter"]["processes"] == pytest.approx(1, abs=0.7)
    assert 0 < found["whole"]["cpu_s"] < 60
    lines = run_hmd("report", "--file", str(state / "history.hmd"), "faulter").stdout
    assert "hmd moved nothing" in lines
    assert "uid 0: hmd pin: " in lines
    assert (
        run_hmd("report", "--file", str(state / "history.hmd"), "nobody").returncode == Exit.TARGET
    )


def test_pin_of_ended_process_is_removed(daemon: Daemon, faulter: subprocess.Popen[bytes]) -> None:
    send_admin_request(daemon.socket, "pin", {"pid": faulter.pid, "to": 0})
    assert control(daemon)["pins"][0]["pid"] == faulter.pid
    assert control(daemon)["pins"][0]["node"] == 0
    faulter.kill()
    faulter.wait()
    wait_for(lambda: not control(daemon)["pins"], "the end of the pin")
    with pytest.raises(TargetError, match=f"no process {faulter.pid}"):
        send_admin_request(daemon.socket, "unpin", {"pid": faulter.pid})


@pytest.mark.parametrize(
    ("command", "arguments", "kind", "message"),
    [
        ("drain", {"node": 0}, HmdError, "no node would be left to hold the pages"),
        ("drain", {"tier": 0}, HmdError, "no node would be left"),
        ("drain", {"tier": 7}, TargetError, "no tier 7: there are 0 to 0"),
        ("drain", {"node": [0, 99]}, TargetError, "no memory on node 99"),
        ("drain", {"node": "0"}, UsageError, "node: give the number"),
        ("drain", {"node": True}, UsageError, "node: give the number"),
        ("drain", {}, UsageError, "node: give the number"),
        ("drain", {"nodes": 0}, UsageError, "drain: no argument 'nodes'"),
        ("undrain", {"node": 0}, TargetError, "node 0 is not drained"),
        ("pin", {}, UsageError, "pin: pid: give a whole number from 1"),
        ("pin", {"pid": -1}, UsageError, "pin: pid: give a whole number from 1"),
        ("pin", {"pid": 2**40}, UsageError, "pin: pid"),
        ("pin", {"pid": 4194304}, TargetError, "no process 4194304"),
        ("pin", {"pid": 1, "to": 9}, TargetError, "no memory on node 9"),
        ("pin", {"pid": 1, "to": []}, UsageError, "pin: to: give a whole number"),
        ("pin", {"target": "nobody"}, TargetError, "no target 'nobody': there are faulter"),
        ("pin", {"target": {}}, TargetError, "no target"),
        ("unpin", {"pid": 1}, TargetError, "process 1 is not pinned itself: see hmd status"),
        ("unpin", {"target": "faulter"}, TargetError, "target faulter is not pinned"),
        (
            "migrate",
            {"pid": 1, "to": 0},
            TargetError,
            "process 1 belongs to no target: use",
        ),
        ("migrate", {"pid": 1}, UsageError, "migrate: to: give a whole number"),
        ("policy", {"name": 5}, UsageError, "policy: name a policy"),
        ("pause", {"now": 1}, UsageError, "pause: no argument 'now'"),
    ],
)
def test_request_with_invalid_arguments_is_refused(
    daemon: Daemon, command: str, arguments: dict[str, Any], kind: type[HmdError], message: str
) -> None:
    with pytest.raises(kind) as error:
        send_admin_request(daemon.socket, command, arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(daemon.status()["stage_failures"].values()), daemon.log.read_text()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("pause", {}),
        ("resume", {}),
        ("drain", {"node": 0}),
        ("undrain", {"node": 0}),
        ("policy", {"name": "age"}),
        ("unpin", {"all": True}),
        ("pin", {"target": "faulter"}),
        ("pin", {"pid": 1}),
    ],
)
def test_request_of_unprivileged_user_is_refused(
    daemon: Daemon, command: str, arguments: dict[str, Any]
) -> None:
    before = control(daemon)
    labels = {"command": command, "outcome": "refused"}
    refused = daemon.metric("hmd_admin_requests_total", **labels)
    answer = as_nobody(daemon, command, **arguments)
    assert answer["code"] == Exit.NOT_PERMITTED
    assert "root and the daemon's user may" in answer["error"]
    assert "uid 65534" in answer["error"]
    assert control(daemon) == before
    # Each is counted, and the first few of a minute are logged.
    wait_for(
        lambda: daemon.metric("hmd_admin_requests_total", **labels) == refused + 1, "the count"
    )
    assert 1 <= daemon.log.read_text().count(" by uid 65534, pid ") <= 8


@contextlib.contextmanager
def running(program: str, user: int | None = None) -> Iterator[int]:
    """A program of a user, from its first line of output on; yields its pid."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, user=user, group=user
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_pin_by_process_owner_is_accepted(daemon: Daemon, faulter: subprocess.Popen[bytes]) -> None:
    with running(FAULTER, NOBODY) as own:
        theirs = as_nobody(daemon, "pin", pid=faulter.pid)
        assert f"process {faulter.pid} belongs to uid 0, you are uid {NOBODY}" in theirs["error"]
        answer = as_nobody(daemon, "pin", pid=own, to=0)
        assert answer["done"].startswith(f"process {own} is pinned to node 0")
        assert control(daemon)["pins"][0]["uid"] == NOBODY
        assert "no longer" in as_nobody(daemon, "unpin", pid=own)["done"]
        # What root has pinned its owner does not unpin.
        send_admin_request(daemon.socket, "pin", {"pid": own})
        for command in ("pin", "unpin"):
            refused = as_nobody(daemon, command, pid=own)
            assert "was pinned by uid 0" in refused["error"]


@pytest.mark.parametrize("uids", ["65534, 65534, 0", "0, 65534, 65534", "65534, 0, 65534"])
def test_pin_of_process_with_mixed_uids_is_refused(daemon: Daemon, uids: str) -> None:
    program = f"import os, time; os.setresuid({uids}); print(flush=True); time.sleep(99)"
    with running(program) as mixed:
        assert "belongs to uid 0, 65534" in as_nobody(daemon, "pin", pid=mixed).get("error", "")


def test_request_of_exited_process_is_refused(daemon: Daemon) -> None:
    """The connection outlives the process that made it, in the hands of its parent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(daemon.socket))
            socket.send_fds(theirs, [b"x"], [s.fileno()])
        os._exit(0)
    with ours, theirs:
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        os.waitpid(child, 0)
    with socket.socket(fileno=fd) as s, s.makefile() as answer:
        s.sendall(b'{"command": "pause"}\n')
        error = json.loads(answer.read())["error"]
    assert error == f"process {child}, which sent the request, has exited: nothing is done"
    assert not control(daemon)["paused"]


def test_command_line_sends_requests(daemon: Daemon, faulter: subprocess.Popen[bytes]) -> None:
    def hmd(*words: str) -> subprocess.CompletedProcess[str]:
        return run_hmd(*words, "--socket", str(daemon.socket))

    paused = "paused: no page moves until hmd resume"
    unkept = "ends with the daemon, which has no state_dir"
    assert hmd("pause").stdout == f"{paused}; {unkept}\n"
    assert hmd("pause", "--until-restart").stdout == "was paused already\n"
    assert "ends with the daemon: pause" in hmd("status").stdout
    assert "paused: no page moves (hmd resume)" in hmd("status").stdout
    assert hmd("resume").stdout == "resumed\n"
    assert hmd("policy", "use", "age", "--until-restart").stdout == "policy age\n"
    assert "the policy is set by an admin request" in hmd("status").stdout
    assert hmd("policy", "use", "--default").returncode == Exit.OK
    assert hmd("pin", str(faulter.pid)).returncode == Exit.OK
    assert f"pinned: pid {faulter.pid} (hmd unpin)" in hmd("top", "-n", "1").stdout
    assert json.loads(hmd("unpin", "--all", "--json").stdout)["done"] == "1 pins lifted"
    done = hmd("drain", "0")
    assert (done.returncode, done.stdout) == (Exit.FAILURE, "")
    assert done.stderr == "hmd: no node would be left to hold the pages: drain fewer\n"
    assert hmd("undrain", "0").returncode == Exit.TARGET
    assert hmd("drain").returncode == hmd("unpin").returncode == Exit.USAGE
    assert hmd("pin", "faulter", "--once", "--to", "0").returncode == Exit.USAGE
