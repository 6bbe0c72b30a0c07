# SPDX-License-Identifier: MIT
"""Admin requests without a daemon: each is executed, or refused in one line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hmd.base.errors import Exit, HmdError, NotPermittedError, TargetError, UsageError
from hmd.control.commands import MAX_WAITING, PROMPT, AdminCommands, CommandQueue
from hmd.control.requests import ControlRequest, Peer, check_known
from hmd.linux.procfs import ProcessId, identify
from hmd.policy.admin import AdminState, Pin
from tests.fakes.admin import OTHER_PEER, ROOT_PEER, USER_PEER, TwoNodes
from tests.fakes.toucher import Toucher


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Expect a refusal that ends a command with code 1: its arguments are right."""
    with pytest.raises(HmdError, match=match) as found:
        yield
    assert found.value.exit_code == Exit.FAILURE


@pytest.fixture
def control(commands: AdminCommands) -> CommandQueue:
    return CommandQueue(commands, lambda: None, logging.getLogger("test"))


def execute(
    commands: AdminCommands, command: str, peer: Peer = ROOT_PEER, **arguments: object
) -> str:
    """Return the answer, without the note that these commands have no folder to be kept in."""
    line = commands.execute(ControlRequest(command, arguments, peer)).line
    return line.removesuffix("; ends with the daemon, which has no state_dir")


def test_undrain_of_drained_node_returns_it_to_use(
    commands: AdminCommands, state: AdminState
) -> None:
    assert execute(commands, "drain", node=1) == "draining node 1"
    assert state.drained == {1}
    serial = state.drains
    with refused(match="no node would be left"):
        execute(commands, "drain", node=0)
    with refused(match="node 1 is drained: hmd undrain 1, or name another"):
        execute(commands, "pin", pid=os.getpid(), to=1)
    assert execute(commands, "undrain", tier=1) == "node 1 is in use again"
    assert state.drained == set()
    assert state.drains > serial


def test_undrain_of_removed_node_accepted(
    commands: AdminCommands, state: AdminState, daemon: TwoNodes
) -> None:
    execute(commands, "drain", node=[1])
    daemon.topology = daemon.topology.without({1})
    with pytest.raises(TargetError, match="no memory on node 1: nodes with memory are 0"):
        execute(commands, "drain", node=1)
    execute(commands, "undrain", node=1)
    assert not state.drained


def test_drain_of_node_with_pins_refused(
    commands: AdminCommands, state: AdminState, toucher: Toucher
) -> None:
    execute(commands, "pin", pid=toucher.process.pid, to=1)
    with refused(match=f"{toucher.process.pid} is pinned to node 1: hmd unpin"):
        execute(commands, "drain", node=1)
    execute(commands, "unpin", pid=toucher.process.pid)
    execute(commands, "pin", target="web", to=1)
    with refused(match="web is pinned to node 1: hmd unpin web first"):
        execute(commands, "drain", node=1)
    assert not state.drained


def test_admin_state_pins_apply_by_process_target_and_move(state: AdminState) -> None:
    a, b, c, d = (ProcessId(pid, 1) for pid in (1, 2, 3, 4))
    state.pins[a] = Pin(None, 0)
    state.target_pins["db"] = Pin(1, 0)
    state.moves[c] = Pin(0, 0)
    processes, targets = (a, b, c, d), ("web", "db", "web", "web")
    assert state.pinned_mask(processes, targets).tolist() == [True, True, True, False]
    assert state.pin_nodes(processes, targets).tolist() == [-1, 1, 0, -1]
    assert state.pinned_mask((), ()).shape == state.pin_nodes((), ()).shape == (0,)
    state.end_moves([c, d])
    assert not state.moves


def test_migrate_of_pinned_or_unknown_process_refused(
    commands: AdminCommands, state: AdminState, toucher: Toucher
) -> None:
    pid = toucher.process.pid
    assert execute(commands, "migrate", pid=pid, to=1) == f"process {pid} is being moved to node 1"
    assert state.moves[toucher.process].node == 1
    execute(commands, "pin", pid=pid)
    assert not state.moves
    with refused(match="is pinned: unpin it first"):
        execute(commands, "migrate", pid=pid, to=1)
    with pytest.raises(TargetError, match=r"belongs to no target: use hmd migrate --pid"):
        execute(commands, "migrate", pid=os.getpid(), to=1)


def test_pin_beyond_maximum_refused(
    commands: AdminCommands, state: AdminState, toucher: Toucher, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = identify(os.getpid())
    assert own is not None
    state.pins[own] = Pin(None, 0)
    monkeypatch.setattr("hmd.control.commands.MAX_PINS", 1)
    with refused(match="processes are pinned or moved: unpin some"):
        execute(commands, "pin", pid=toucher.process.pid)
    # The same process may be pinned elsewhere, and an exited one no longer counts.
    execute(commands, "pin", pid=own.pid, to=1)
    state.pins = {ProcessId(own.pid, own.start_ticks + 1): Pin(None, 0)}
    execute(commands, "pin", pid=toucher.process.pid)
    assert list(state.pins) == [toucher.process]


def test_pin_of_target_beyond_own_maximum_pins_none(
    commands: AdminCommands,
    state: AdminState,
    daemon: TwoNodes,
    toucher: Toucher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = identify(os.getpid())
    assert own is not None
    daemon.followed = {toucher.process: "db", own: "db"}
    owner = Peer(os.getpid(), os.getuid(), os.getgid())
    monkeypatch.setattr("hmd.control.commands.is_administrator", lambda _: False)
    monkeypatch.setattr("hmd.control.commands.MAX_OWN_PINS", 1)
    with refused(match="0 processes are pinned or moved for you, 2 more"):
        execute(commands, "pin", owner, target="db")
    assert not state.pins
    monkeypatch.setattr("hmd.control.commands.MAX_OWN_PINS", 2)
    execute(commands, "pin", owner, target="db")
    assert set(state.pins) == {toucher.process, own}


@pytest.mark.parametrize(
    ("uid_map", "refused"),
    [("0 0 4294967295", False), ("0 100000 65536", True), ("", False)],
)
def test_check_known_user_outside_namespace_refused(
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
    with pytest.raises(NotPermittedError, match="does not map your uid"):
        check_known(Peer(1, 65534, 65534), tmp_path)


def test_pin_of_kernel_thread_refused(commands: AdminCommands) -> None:
    with pytest.raises(TargetError, match="process 2 is a kernel thread"):
        execute(commands, "pin", pid=2)


def test_policy_that_fails_changes_nothing(
    commands: AdminCommands, state: AdminState, daemon: TwoNodes
) -> None:
    execute(commands, "policy", name="age")
    for name in ("broken", "bug"):
        with pytest.raises((HmdError, ZeroDivisionError)):
            execute(commands, "policy", name=name)
        assert state.policy == "age"
    execute(commands, "policy")
    assert (state.policy, daemon.policies) == (None, ["age", None])


def test_admin_requests_executed_in_order_and_counted(control: CommandQueue) -> None:
    answers = [
        control.enqueue(ControlRequest(command, {"pid": 2}, peer))
        for command, peer in (("pin", OTHER_PEER), ("unpin", ROOT_PEER), ("unpin", ROOT_PEER))
    ]
    answers += [
        control.enqueue(ControlRequest(name, {}, ROOT_PEER)) for name in ("pause", "resume")
    ]
    with pytest.raises(NotPermittedError, match="only root and the daemon's user may resume hmd"):
        control.enqueue(ControlRequest("resume", {}, USER_PEER))
    assert not any(answer.done() for answer in answers)
    control.execute_waiting()
    assert isinstance(answers[0].exception(), NotPermittedError)
    assert json.loads(answers[3].result())["done"].startswith("paused")
    assert json.loads(answers[4].result())["done"] == "resumed"
    assert control.outcomes["resume"] == {"done": 1, "refused": 1}


def test_admin_queue_served_within_a_tick_leaves_other_requests_in_order(
    control: CommandQueue, state: AdminState
) -> None:
    names = ("pause", "drain", "resume")
    answers = [control.enqueue(ControlRequest(name, {}, ROOT_PEER)) for name in names]
    control.execute_waiting(only=PROMPT)
    assert [answer.done() for answer in answers] == [True, False, False]
    assert state.paused
    control.execute_waiting()
    assert all(answer.done() for answer in answers)
    assert not state.paused


def test_admin_request_withdrawn_not_executed(control: CommandQueue, state: AdminState) -> None:
    control.enqueue(ControlRequest("pause", {}, ROOT_PEER)).cancel()
    control.execute_waiting()
    assert not state.paused


def test_admin_request_status_published_before_answer(
    control: CommandQueue, state: AdminState
) -> None:
    """A client may request the status directly after its answer."""
    answers = [
        control.enqueue(ControlRequest(name, {}, ROOT_PEER)) for name in ("pause", "dance", "drain")
    ]
    seen: list[tuple[bool, list[bool]]] = []
    control.execute_waiting(lambda: seen.append((state.paused, [p.done() for p in answers])))
    assert seen == [
        (True, [False, False, False]),
        (True, [True, False, False]),
        (True, [True, True, False]),
    ]
    assert all(answer.done() for answer in answers)


def test_admin_queue_full_refuses_requests(control: CommandQueue) -> None:
    for _ in range(MAX_WAITING):
        control.enqueue(ControlRequest("pause", {}, ROOT_PEER))
    with pytest.raises(HmdError, match="too many admin requests wait"):
        control.enqueue(ControlRequest("pause", {}, ROOT_PEER))


def test_admin_request_with_defect_logged_and_answered(
    control: CommandQueue, caplog: pytest.LogCaptureFixture
) -> None:
    answer = control.enqueue(ControlRequest("policy", {"name": "bug"}, ROOT_PEER))
    control.execute_waiting()
    assert str(answer.exception()) == "the request failed: the daemon's log has the reason"
    assert "ZeroDivisionError" in caplog.text


def test_admin_request_caller_logged(
    control: CommandQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control.enqueue(ControlRequest("pause", {}, ROOT_PEER))
    control.execute_waiting()
    with pytest.raises(NotPermittedError):
        control.enqueue(ControlRequest("pause", {}, USER_PEER))
    assert f"admin request: pause by uid 0, pid {os.getpid()}: paused" in caplog.text
    assert f"admin request: pause by uid 4711, pid {os.getpid()}: refused: only root" in caplog.text


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
    peer=st.just(ROOT_PEER) | st.just(USER_PEER) | peers,
)
def test_admin_request_with_any_arguments_executed_or_refused(
    control: CommandQueue,
    state: AdminState,
    command: str,
    arguments: dict[str, object],
    peer: Peer,
) -> None:
    before = (state.paused, state.policy, state.drained, dict(state.target_pins))
    try:
        answer = control.enqueue(ControlRequest(command, arguments, peer))
        control.execute_waiting()
        error = answer.exception()
    except HmdError as refusal:
        error = refusal
    if error is None:
        assert "\n" not in json.loads(answer.result())["done"]
    else:
        assert isinstance(error, HmdError)
        assert "the request failed" not in str(error)
        assert "\n" not in str(error)
    after = (state.paused, state.policy, state.drained, dict(state.target_pins))
    if peer.uid != 0 or error is not None:
        assert after == before
    assert len(state.drained) < 2


def test_explain_of_own_process_allowed_of_others_refused(
    commands: AdminCommands, toucher: Toucher
) -> None:
    pid = toucher.process.pid
    done = commands.execute(ControlRequest("explain", {"pid": pid, "address": 4096}, ROOT_PEER))
    assert done.document == {"explained": [{"pid": pid, "address": 4096}]}
    with pytest.raises(NotPermittedError):
        execute(commands, "explain", USER_PEER, pid=pid)
    with pytest.raises(TargetError, match="no processes"):
        execute(commands, "explain", target="web")
    for wrong in (-1, 1 << 60, "0x1000", True):
        with pytest.raises(UsageError, match="address"):
            execute(commands, "explain", pid=pid, address=wrong)


def test_explain_answer_carries_its_document(control: CommandQueue, toucher: Toucher) -> None:
    pending = control.enqueue(ControlRequest("explain", {"pid": toucher.process.pid}, ROOT_PEER))
    control.execute_waiting()
    answer = json.loads(pending.result(timeout=5))
    assert answer["explained"] == [{"pid": toucher.process.pid, "address": None}]
