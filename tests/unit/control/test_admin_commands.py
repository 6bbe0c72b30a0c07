"""Orders without a daemon around them: whatever is asked, it is done or refused in a line."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.control.admin_commands import Commands
from hmd.control.admin_state import Pin, Standing
from hmd.control.command_queue import MAX_WAITING, CommandQueue
from hmd.control.permission import check_known
from hmd.control.request import ControlRequest, Peer
from hmd.errors import HmdError, NotPermittedError, TargetError, UsageError
from hmd.machine.process_id import ProcessId, identify
from hmd.machine.topology import Node, Topology
from tests.conftest import Toucher

OURS = Peer(os.getpid(), 0, 0)
THEIRS = Peer(os.getpid(), 4711, 4711)


class TwoNodes:
    """A daemon of two nodes that follows one process."""

    def __init__(self, process: ProcessId) -> None:
        self.topology = Topology(
            (Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 30, (20, 10), 1))
        )
        self.followed: Mapping[ProcessId, str] = {process: "db"}
        self.target_names = ("db", "web")
        self.policies: list[str | None] = []

    def use_policy(self, name: str | None) -> None:
        if name == "broken":
            raise UsageError("no such policy")
        if name == "bug":
            raise ZeroDivisionError
        self.policies.append(name)


@pytest.fixture
def standing() -> Standing:
    return Standing()


@pytest.fixture
def daemon(toucher: Toucher) -> TwoNodes:
    return TwoNodes(toucher.process)


@pytest.fixture
def commands(standing: Standing, daemon: TwoNodes) -> Commands:
    return Commands(standing, daemon)


@pytest.fixture
def control(commands: Commands) -> CommandQueue:
    return CommandQueue(commands, lambda: None, logging.getLogger("test"))


def do(commands: Commands, command: str, peer: Peer = OURS, **arguments: object) -> str:
    return commands.does[command](ControlRequest(command, arguments, peer)).line


def test_a_drained_node_and_its_way_back(commands: Commands, standing: Standing) -> None:
    assert do(commands, "drain", node=1) == "draining node 1"
    assert standing.drained == {1}
    serial = standing.drains
    with pytest.raises(UsageError, match="no node would be left"):
        do(commands, "drain", node=0)
    with pytest.raises(UsageError, match="node 1 is drained: hmd undrain 1, or name another"):
        do(commands, "pin", pid=os.getpid(), to=1)
    assert do(commands, "undrain", tier=1) == "node 1 is in use again"
    assert standing.drained == set()
    assert standing.drains > serial


def test_a_node_that_was_taken_out_is_undrained(
    commands: Commands, standing: Standing, daemon: TwoNodes
) -> None:
    do(commands, "drain", node=[1])
    daemon.topology = daemon.topology.without({1})
    with pytest.raises(TargetError, match="no memory on node 1: this machine has it on 0"):
        do(commands, "drain", node=1)
    do(commands, "undrain", node=1)
    assert not standing.drained


def test_where_something_is_pinned_nothing_is_drained(
    commands: Commands, standing: Standing, toucher: Toucher
) -> None:
    do(commands, "pin", pid=toucher.process.pid, to=1)
    with pytest.raises(UsageError, match=f"{toucher.process.pid} is pinned to node 1: hmd unpin"):
        do(commands, "drain", node=1)
    do(commands, "unpin", pid=toucher.process.pid)
    do(commands, "pin", target="web", to=1)
    with pytest.raises(UsageError, match="web is pinned to node 1: hmd unpin web first"):
        do(commands, "drain", node=1)
    assert not standing.drained


def test_held_and_wanted_by_process_target_and_move(standing: Standing) -> None:
    a, b, c, d = (ProcessId(pid, 1) for pid in (1, 2, 3, 4))
    standing.pins[a] = Pin(None, 0)
    standing.target_pins["db"] = Pin(1, 0)
    standing.moves[c] = Pin(0, 0)
    processes, targets = (a, b, c, d), ("web", "db", "web", "web")
    assert standing.held(processes, targets).tolist() == [True, True, True, False]
    assert standing.goals(processes, targets).tolist() == [-1, 1, 0, -1]
    assert standing.held((), ()).shape == standing.goals((), ()).shape == (0,)
    standing.end_moves([c, d])
    assert not standing.moves


def test_a_move_of_what_is_pinned_or_not_followed(
    commands: Commands, standing: Standing, toucher: Toucher
) -> None:
    pid = toucher.process.pid
    assert do(commands, "migrate", pid=pid, to=1) == f"process {pid} goes to node 1"
    assert standing.moves[toucher.process].node == 1
    do(commands, "pin", pid=pid)
    assert not standing.moves
    with pytest.raises(UsageError, match="is pinned: unpin it first"):
        do(commands, "migrate", pid=pid, to=1)
    with pytest.raises(TargetError, match=r"does not follow process \d+: hmd migrate --pid"):
        do(commands, "migrate", pid=os.getpid(), to=1)


def test_pins_have_a_number(
    commands: Commands, standing: Standing, toucher: Toucher, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identify(os.getpid())
    assert own is not None
    standing.pins[own] = Pin(None, 0)
    monkeypatch.setattr("hmd.control.admin_commands.MAX_PINS", 1)
    with pytest.raises(UsageError, match="processes are pinned or moved: unpin some"):
        do(commands, "pin", pid=toucher.process.pid)
    # The same one may be pinned elsewhere, and one that has gone leaves its place.
    do(commands, "pin", pid=own.pid, to=1)
    standing.pins = {ProcessId(own.pid, own.start_ticks + 1): Pin(None, 0)}
    do(commands, "pin", pid=toucher.process.pid)
    assert list(standing.pins) == [toucher.process]


@pytest.mark.root
def test_one_user_has_no_more_than_his_share(
    commands: Commands, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identify(os.getpid())
    assert own is not None
    sleepers = [
        subprocess.Popen(["sleep", "99"], user=THEIRS.uid, group=THEIRS.gid) for _ in range(2)
    ]
    monkeypatch.setattr("hmd.control.admin_commands.MAX_OWN_PINS", 1)
    do(commands, "pin", pid=own.pid)
    do(commands, "pin", THEIRS, pid=sleepers[0].pid)
    with pytest.raises(UsageError, match="1 processes are pinned or moved by your order"):
        do(commands, "pin", THEIRS, pid=sleepers[1].pid)
    do(commands, "pin", pid=sleepers[1].pid)
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize(
    ("uid_map", "refused"),
    [("0 0 4294967295", False), ("0 100000 65536", True), ("", False)],
)
def test_users_that_a_namespace_does_not_map_are_nobody(
    tmp_path: Path, uid_map: str, refused: bool
) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/overflowuid").write_text("65534\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/uid_map").write_text(f"{uid_map}\n")
    check_known(Peer(1, 1000, 1000), tmp_path)
    if not refused:
        check_known(Peer(1, 65534, 65534), tmp_path)
        return
    with pytest.raises(NotPermittedError, match="does not know you"):
        check_known(Peer(1, 65534, 65534), tmp_path)


def test_kernel_threads_are_told(commands: Commands) -> None:
    with pytest.raises(TargetError, match="process 2 is a thread of the kernel"):
        do(commands, "pin", pid=2)


def test_a_policy_that_is_refused_changes_nothing(
    commands: Commands, standing: Standing, daemon: TwoNodes
) -> None:
    do(commands, "policy", name="age")
    for name in ("broken", "bug"):
        with pytest.raises((HmdError, ZeroDivisionError)):
            do(commands, "policy", name=name)
        assert standing.policy == "age"
    do(commands, "policy")
    assert (standing.policy, daemon.policies) == (None, ["age", None])


def test_orders_are_served_in_their_turn_and_counted(control: CommandQueue) -> None:
    promises = [
        control.take(ControlRequest(command, {}, peer))
        for command, peer in (("pause", OURS), ("resume", THEIRS), ("resume", OURS))
    ]
    assert not any(promise.done() for promise in promises)
    control.serve()
    assert json.loads(promises[0].result())["done"].startswith("paused")
    assert isinstance(promises[1].exception(), HmdError)
    assert json.loads(promises[2].result())["done"] == "resumed"
    assert control.told["resume", "done"] == control.told["resume", "refused"] == 1


def test_what_was_withdrawn_is_not_done(control: CommandQueue, standing: Standing) -> None:
    control.take(ControlRequest("pause", {}, OURS)).cancel()
    control.serve()
    assert not standing.paused


def test_the_status_says_so_before_the_answer_does(
    control: CommandQueue, standing: Standing
) -> None:
    """Who has the answer may ask for the status at once."""
    promises = [
        control.take(ControlRequest(name, {}, OURS)) for name in ("pause", "dance", "drain")
    ]
    seen: list[tuple[bool, list[bool]]] = []
    control.serve(lambda: seen.append((standing.paused, [p.done() for p in promises])))
    assert seen == [
        (True, [False, False, False]),
        (True, [True, False, False]),
        (True, [True, True, False]),
    ]
    assert all(promise.done() for promise in promises)


def test_no_more_wait_than_may(control: CommandQueue) -> None:
    for _ in range(MAX_WAITING):
        control.take(ControlRequest("pause", {}, OURS))
    with pytest.raises(HmdError, match="too many orders wait"):
        control.take(ControlRequest("pause", {}, OURS))


def test_a_defect_is_logged_and_told(
    control: CommandQueue, caplog: pytest.LogCaptureFixture
) -> None:
    promise = control.take(ControlRequest("policy", {"name": "bug"}, OURS))
    control.serve()
    assert str(promise.exception()) == "the order failed: the daemon's log says why"
    assert "ZeroDivisionError" in caplog.text


def test_who_ordered_is_logged(control: CommandQueue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    control.take(ControlRequest("pause", {}, OURS))
    control.take(ControlRequest("pause", {}, THEIRS))
    control.serve()
    assert f"order: pause by uid 0, pid {os.getpid()}: paused" in caplog.text
    assert f"order: pause by uid 4711, pid {os.getpid()}: refused: only root" in caplog.text


numbers = st.integers() | st.sampled_from([0, 1, 2, os.getpid(), 2**31, 2**63, 2**200])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.text() | st.sampled_from(["db", "age"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(["pid", "target", "to", "node", "tier", "name", "all"])
peers = st.builds(Peer, st.just(os.getpid()) | st.integers(0, 2**22), numbers, numbers)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=400
)
@given(
    command=st.sampled_from(
        ["pause", "resume", "drain", "undrain", "pin", "unpin", "migrate", "policy"]
    ),
    arguments=st.dictionaries(keys | st.text(), values, max_size=3),
    peer=st.just(OURS) | st.just(THEIRS) | peers,
)
def test_any_order_is_done_or_refused(
    control: CommandQueue,
    standing: Standing,
    command: str,
    arguments: dict[str, object],
    peer: Peer,
) -> None:
    before = (standing.paused, standing.policy, standing.drained, dict(standing.target_pins))
    promise = control.take(ControlRequest(command, arguments, peer))
    control.serve()
    error = promise.exception()
    if error is None:
        assert "\n" not in json.loads(promise.result())["done"]
    else:
        assert isinstance(error, HmdError)
        assert "the order failed" not in str(error)
        assert "\n" not in str(error)
    after = (standing.paused, standing.policy, standing.drained, dict(standing.target_pins))
    if peer.uid != 0 or error is not None:
        assert after == before
    assert len(standing.drained) < 2
