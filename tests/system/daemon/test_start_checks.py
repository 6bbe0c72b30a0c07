# SPDX-License-Identifier: MIT
"""What ``hmd config check`` reports of this machine, and that the daemon starts with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hmd.base.errors import Exit
from hmd.cli.main import main
from hmd.config import loads
from hmd.daemon.checks import machine_warnings, start_failures
from hmd.linux.topology import read_topology
from tests.system.daemon.conftest import Daemon, wait_for

MACHINES = Path(__file__).parents[2] / "fixtures/machines"


def warned(text: str) -> list[tuple[tuple[str | int, ...], str]]:
    config = loads(text)
    sysfs = MACHINES / "optane-2s/sys"
    topology = read_topology(sysfs, config.machine.tiers, fit_override=True)
    return [(w.path, w.text) for w in machine_warnings(config, topology)]


def test_configuration_that_fits_gives_no_warning() -> None:
    text = "machine: {tiers: [[0, 1], [2, 3]]}\ntargets: [{name: a, exe: 'redis-*', user: root}]"
    assert warned(text) == []


@pytest.mark.parametrize(
    ("tiers", "said"),
    [("[[0, 1], [2]]", "node 3 is in no tier"), ("[[0, 1], [2, 3, 9]]", "node 9 has no memory")],
)
def test_configured_tiers_that_contradict_nodes_give_warning(tiers: str, said: str) -> None:
    ((path, text),) = warned(f"machine: {{tiers: {tiers}}}")
    assert path == ("machine", "tiers")
    assert text.startswith(said)


def test_unknown_user_and_regular_expression_give_warnings() -> None:
    found = warned("targets: [{name: a, user: 'no-such'}, {name: b, exe: '/redis-server$'}]")
    assert [path for path, _ in found] == [("targets", 0, "user"), ("targets", 1, "exe")]
    assert "no user 'no-such'" in found[0][1]
    assert "shell pattern" in found[1][1]


def test_removed_guard_gives_warning_and_is_not_shown() -> None:
    assert warned("decide: {guard: auto}") == [
        (("decide", "guard"), "no effect; version 0.2 will refuse this key")
    ]
    assert "guard" not in loads("decide: {guard: true}").model_dump()["decide"]


def test_start_failures_lists_every_cause(tmp_path: Path) -> None:
    socket = tmp_path / "missing/run/hmd.sock"
    config = loads(
        f"sample: {{sampler: idle}}\nobserve: {{metrics: '192.0.2.1:9742', socket: {socket}}}"
    )
    found = {f.path: f.text for f in start_failures(config, tmp_path, tmp_path)}
    assert list(found) == [("sample", "sampler"), ("observe", "metrics"), ("observe", "socket")]
    assert "192.0.2.1" in found["observe", "metrics"]
    assert str(socket.parent.parent) in found["observe", "socket"]


def test_unusable_weights_are_a_start_failure(tmp_path: Path) -> None:
    weights = tmp_path / "weights.npz"
    weights.write_text("garbage")
    socket = f"observe: {{metrics: off, socket: {tmp_path}/run/hmd.sock}}\n"
    learned = f"decide: {{policy: learned, learned: {{weights: {weights}}}}}\n"
    (found,) = start_failures(loads(socket + learned))
    assert found.path == ("decide", "learned", "weights")
    assert found.text.startswith(f"weights {weights}: not usable")
    assert not start_failures(loads(socket + learned.replace("policy: learned", "policy: age")))


def test_name_that_cannot_be_encoded_is_a_start_failure(tmp_path: Path) -> None:
    config = loads(f"sample: {{sampler: faults}}\nobserve: {{socket: {tmp_path}/run/hmd.sock}}")
    observe = config.observe.model_copy(update={"metrics": "a..b:9742"})
    (found,) = start_failures(config.model_copy(update={"observe": observe}))
    assert found.path == ("observe", "metrics")
    assert found.text.startswith("'a..b' is not an address of this machine: ")


def test_config_check_reports_warnings_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hmd.yaml"
    file.write_text("targets:\n- name: a\n  user: no-such\nobserve:\n  socket: /no/such/hmd.sock\n")
    assert main(["config", "check", str(file)]) == Exit.OK
    said = capsys.readouterr()
    assert said.out == f"{file}: ok, 2 warnings\n"
    first, second = said.err.splitlines()
    assert first.startswith(f"hmd: {file}:3: warning: targets[0].user: no user 'no-such'")
    assert second.startswith(f"hmd: {file}:5: warning: hmd run exits here: observe.socket: ")


def test_daemon_with_unknown_user_and_node_starts_and_warns(new_daemon: Daemon) -> None:
    new_daemon.configure("[{name: t, user: no-such}]", "machine: {tiers: [[0], [99]]}\n")
    new_daemon.start()
    new_daemon.wait_ready()
    log = new_daemon.log.read_text()
    assert "targets[0].user: no user 'no-such'" in log
    assert "machine.tiers: node 99 has no memory here" in log


def test_daemon_with_missing_socket_folder_fails_and_creates_none(new_daemon: Daemon) -> None:
    new_daemon.socket = new_daemon.folder / "rnu/hmd/hmd.sock"
    new_daemon.configure("[]")
    process = new_daemon.start()
    assert process.wait(60) == Exit.FAILURE
    assert "cannot use" in new_daemon.log.read_text()
    assert not (new_daemon.folder / "rnu").exists()


def test_target_without_processes_said_by_check_status_log_and_metric(
    new_daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """A selector that is wrong by a letter selects nothing for ever, in silence otherwise."""
    reason = "no process has exe 'pythno3'; nearest: "
    new_daemon.configure(f"[{{name: t, exe: pythno3}}, {{name: u, pid: {os.getpid()}}}]")
    assert main(["config", "check", str(new_daemon.config)]) == Exit.OK
    assert f"targets[0]: matches nothing now: {reason}" in capsys.readouterr().err
    new_daemon.start()
    new_daemon.wait_ready()
    wait_for(lambda: new_daemon.status()["targets"][0]["empty_reason"], "an explanation")
    empty, full = new_daemon.status()["targets"]
    assert empty["empty_reason"].startswith(reason)
    assert not full["empty_reason"]
    assert f"target t: {reason}" in new_daemon.log.read_text()
    assert new_daemon.metric("hmd_target_processes", target="t") == 0
