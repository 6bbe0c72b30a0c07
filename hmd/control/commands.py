# SPDX-License-Identifier: MIT
"""What the status socket answers: queries, hints, and admin commands with who may give them.

The socket's thread queues a request (:meth:`CommandQueue.enqueue`) and gets a future; the loop
executes what waits (:meth:`CommandQueue.execute_waiting`) between two ticks, or within one if it
only sets a flag. Administrators' requests come first and have places of their own. What only they
may do is refused to others in the socket's thread. A command returns one line for the caller, and
raises ``HmdError`` where it refuses. Each request is logged with the caller's uid and pid, those of
users within limits.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from hmd.base.errors import HmdError, NotPermittedError, TargetError, UsageError
from hmd.control.admin_store import AdminStore
from hmd.control.requests import (
    ControlRequest,
    Peer,
    RequestLog,
    RequestRate,
    check_administrator,
    check_caller,
    check_owner,
    is_administrator,
    owns,
    visible_to,
)
from hmd.control.status_json import status_answer
from hmd.control.status_socket import AdminHandlers, PendingAnswer, Queries
from hmd.linux.procfs import PROC, ProcessId, alive, format_ids, read_stat
from hmd.linux.topology import Topology
from hmd.metrics.heat_history import HeatHistory
from hmd.metrics.history import HistoryRecorder
from hmd.metrics.status import Status, TickHealth
from hmd.policy.admin import AdminState, Pin
from hmd.policy.use_hints import HintTable

MAX_PINS: Final = 4096
"""Pinned processes, and as many that are being moved by request."""

MAX_OWN_PINS: Final = 256
"""The same for one user who is not an administrator."""

MAX_EXPLAINED: Final = 8
"""Processes of a target that one request explains."""

MAX_WAITING: Final = 64
"""Requests that wait for the loop: of administrators, and as many of all users."""

MAX_OWN_WAITING: Final = 16
"""Waiting requests of one user."""


@dataclass(frozen=True, slots=True)
class Command:
    """An admin command: its arguments, since another one may be a mistyped one.

    ``reserved`` says what it does where only administrators may. A ``prompt`` one sets a flag
    alone, so that it can be executed within a tick.
    """

    arguments: frozenset[str] = frozenset()
    reserved: str = ""
    prompt: bool = False


_NODES: Final = frozenset({"node", "tier"})
_LIFETIME: Final = frozenset({"until_restart"})
"""Of commands whose effect lasts until another command, also over a restart of the daemon."""

COMMANDS: Final[Mapping[str, Command]] = {
    "pause": Command(_LIFETIME, reserved="pause hmd", prompt=True),
    "resume": Command(reserved="resume hmd", prompt=True),
    "drain": Command(_NODES | _LIFETIME, reserved="drain a node"),
    "undrain": Command(_NODES, reserved="undrain a node"),
    "pin": Command(frozenset({"pid", "target", "to"}) | _LIFETIME),
    "unpin": Command(frozenset({"pid", "target", "all"})),
    "migrate": Command(frozenset({"pid", "to"})),
    "policy": Command(frozenset({"name"}) | _LIFETIME, reserved="set the policy"),
    "explain": Command(frozenset({"pid", "target", "address"})),
}
"""What clients may request besides :func:`queries`; ``AdminCommands`` has a method for each."""

PROMPT: Final = frozenset(name for name, command in COMMANDS.items() if command.prompt)

_Waiting: TypeAlias = tuple[ControlRequest, PendingAnswer]


class ControlledDaemon(Protocol):
    """The daemon, as far as admin commands read or change it."""

    @property
    def topology(self) -> Topology:
        """The nodes with memory."""

    @property
    def followed(self) -> Mapping[ProcessId, str]:
        """The processes of all targets, with the target of each."""

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets of the configuration."""

    def set_policy(self, name: str | None) -> None:
        """Use another policy, the configuration's for None; raises ``HmdError``."""

    def explain(self, process: ProcessId, address: int | None) -> dict[str, Any]:
        """Return why pages of a process are where they are; raises ``HmdError``."""


class HintReceiver:
    """Takes hints of processes that are ``followed``; ``outcomes`` counts them.

    They are answered at once, in the socket's thread, so that they reach a tick without delaying
    one. A hint is of the process that connected (SO_PEERCRED); nothing in it names another.
    """

    def __init__(
        self, table: HintTable, followed: Callable[[], Container[ProcessId]], proc: Path = PROC
    ) -> None:
        self._table, self._followed, self._proc = table, followed, proc
        self._rate = RequestRate()
        self.outcomes = {"done": 0, "refused": 0}

    def receive(self, request: ControlRequest) -> bytes:
        """Take a hint; raises HmdError where it is refused."""
        outcome = "refused"
        try:
            self._take(request)
            outcome = "done"
        finally:
            self.outcomes[outcome] += 1
        return b"{}"

    def _take(self, request: ControlRequest) -> None:
        peer = request.peer
        if not is_administrator(peer):
            self._rate.admit(peer)
        stat = read_stat(peer.pid, self._proc) if peer.pid else None
        if stat is None or stat.process not in self._followed():
            raise TargetError(f"process {peer.pid}, which sent the hint, belongs to no target")
        check_caller(peer, self._proc)
        self._table.accept(stat.process, request.arguments)


def queries(
    status: Callable[[], Status],
    health: Callable[[], TickHealth],
    heat_map: HeatHistory,
    history: HistoryRecorder,
    hints: HintReceiver,
    proc: Path = PROC,
) -> Queries:
    """Return what the socket's thread answers at once, from what the daemon last published.

    And what it takes at once: hints. Users see their own processes, and not what administrators
    did.
    """
    return {
        "health": lambda _: json.dumps(health()._asdict()).encode(),
        "status": lambda asked: status_answer(status(), visible_to(asked.peer, proc)),
        "report": lambda asked: history.answer(
            asked.arguments, status(), with_events=is_administrator(asked.peer)
        ),
        "heatmap": lambda asked: heat_map.answer(asked.arguments, visible_to(asked.peer, proc)),
        "hint": hints.receive,
    }


def check_command(request: ControlRequest) -> None:
    """Raise ``NotPermittedError`` for a command that the caller may not give at all."""
    if reserved := COMMANDS[request.command].reserved:
        check_administrator(request.peer, reserved)


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did, in one line, the nodes that it applies to, and what else it answers."""

    line: str
    nodes: tuple[int, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)


class AdminCommands:
    """Executes admin commands on behalf of clients of ``daemon``."""

    def __init__(
        self,
        state: AdminState,
        daemon: ControlledDaemon,
        proc: Path = PROC,
        store: AdminStore | None = None,
    ) -> None:
        self._state, self._daemon, self._proc = state, daemon, proc
        self._store = store or AdminStore(None, proc)
        self._functions: Mapping[str, Callable[[ControlRequest], Done]] = {
            name: getattr(self, f"_{name}") for name in COMMANDS
        }

    def execute(self, request: ControlRequest) -> Done:
        """Execute a request; raises ``HmdError`` where it is refused."""
        check_command(request)
        if wrong := sorted(request.arguments.keys() - COMMANDS[request.command].arguments):
            raise UsageError(f"{request.command}: no argument {wrong[0][:80]!r}")
        if type(request.arguments.get("until_restart", False)) is not bool:
            raise UsageError(f"{request.command}: until_restart: give true or false")
        done = self._functions[request.command](request)
        note = self._keep(request)
        return replace(done, line=f"{done.line}; {note}") if note else done

    def _keep(self, request: ControlRequest) -> str:
        """Keep the state for the next start; return why what was requested ends before it."""
        lasts = COMMANDS[request.command].arguments >= _LIFETIME and not _until_restart(request)
        if lasts and self._store.path is None:
            return "ends with the daemon, which has no state_dir"
        try:
            self._store.save(self._state)
        except HmdError as error:
            return f"not kept over a restart: {error}"
        return ""

    def _pause(self, request: ControlRequest) -> Done:
        was, self._state.paused = self._state.paused, True
        self._state.set_lifetime(["pause"], until_restart=_until_restart(request))
        return Done("was paused already" if was else "paused: no page moves until hmd resume")

    def _resume(self, _: ControlRequest) -> Done:
        was, self._state.paused = self._state.paused, False
        return Done("resumed" if was else "was not paused")

    def _drain(self, request: ControlRequest) -> Done:
        nodes, state = self._nodes(request), self._state
        drained = state.drained | nodes
        if not {node.id for node in self._daemon.topology.nodes} - drained:
            raise HmdError("no node would be left to hold the pages: drain fewer")
        pins = {**{str(p.pid): pin for p, pin in state.pins.items()}, **state.target_pins}
        for name, pin in pins.items():
            if pin.node in nodes:
                raise HmdError(f"{name} is pinned to node {pin.node}: hmd unpin {name} first")
        state.drain(drained)
        names = (f"node {node}" for node in nodes)
        state.set_lifetime(names, until_restart=_until_restart(request))
        return Done(f"draining node {format_ids(sorted(nodes))}", tuple(sorted(nodes)))

    def _undrain(self, request: ControlRequest) -> Done:
        # A node that was removed while it was drained no longer exists.
        nodes = self._nodes(request, existing=False)
        if not nodes & self._state.drained:
            raise TargetError(f"node {format_ids(sorted(nodes))} is not drained: see hmd status")
        self._state.drain(self._state.drained - nodes)
        return Done(f"node {format_ids(sorted(nodes))} is in use again")

    def _pin(self, request: ControlRequest) -> Done:
        node = self._node(request, "to") if request.arguments.get("to") is not None else None
        pin = Pin(node, request.peer.uid, request.peer.gid, _until_restart(request))
        where = "where its pages are" if node is None else f"to node {node}"
        if "target" in request.arguments:
            return self._pin_target(request, pin, where)
        process = self._process(request, "pin it")
        self._set_pins(request, self._state.pins, [process], pin)
        self._state.moves.pop(process, None)
        followed = process in self._daemon.followed
        note = "" if followed else "; it belongs to no target: hmd does not move its pages anyway"
        return Done(f"process {process.pid} is pinned {where}{note}")

    def _pin_target(self, request: ControlRequest, pin: Pin, where: str) -> Done:
        """Pin a target, or for a user who is not an administrator its present processes."""
        name, processes = self._target(request, "pin it")
        if is_administrator(request.peer):
            if len(self._state.target_pins) >= MAX_PINS:
                raise HmdError("too many targets are pinned: unpin some")
            self._state.target_pins[name] = pin
            return Done(f"target {name} is pinned {where}, with the processes that it will have")
        self._set_pins(request, self._state.pins, processes, pin)
        return Done(f"{len(processes)} processes of target {name} are pinned {where}")

    def _unpin(self, request: ControlRequest) -> Done:
        state, peer = self._state, request.peer
        if request.arguments.get("all") is True:
            check_administrator(peer, "unpin all")
            count = len(state.pins) + len(state.target_pins)
            state.pins.clear()
            state.target_pins.clear()
            return Done(f"{count} pins lifted")
        if "target" in request.arguments:
            name, processes = self._target(request, "unpin it")
            ours = [process for process in processes if process in state.pins]
            pin = state.target_pins.get(name)
            if pin is None and not ours:
                raise TargetError(f"target {name} is not pinned: see hmd status")
            if pin is not None:
                self._check_setter(request, pin, f"target {name}")
            for process in ours:
                self._check_setter(request, state.pins[process], f"process {process.pid}")
            state.target_pins.pop(name, None)
            for process in ours:
                del state.pins[process]
            return Done(f"target {name} is no longer pinned")
        process = self._process(request, "unpin it")
        pin = state.pins.get(process)
        if pin is None:
            by = state.target_pins.get(self._daemon.followed.get(process, ""))
            hint = "its target is: unpin that" if by else "see hmd status"
            raise TargetError(f"process {process.pid} is not pinned itself: {hint}")
        self._check_setter(request, pin, f"process {process.pid}")
        del state.pins[process]
        return Done(f"process {process.pid} is no longer pinned")

    def _migrate(self, request: ControlRequest) -> Done:
        node, process = self._node(request, "to"), self._process(request, "move it")
        target = self._daemon.followed.get(process)
        if target is None:
            raise TargetError(
                f"process {process.pid} belongs to no target: use hmd migrate --pid {process.pid} "
                f"--to {node}"
            )
        if process in self._state.pins or target in self._state.target_pins:
            raise HmdError(f"process {process.pid} is pinned: unpin it first")
        pin = Pin(node, request.peer.uid, request.peer.gid)
        self._set_pins(request, self._state.moves, [process], pin)
        return Done(f"process {process.pid} is being moved to node {node}")

    def _policy(self, request: ControlRequest) -> Done:
        name = request.arguments.get("name")
        if name is not None and not isinstance(name, str):
            raise UsageError("policy: name a policy, or none for the configuration's")
        before, self._state.policy = self._state.policy, name
        try:
            self._daemon.set_policy(name)
        except BaseException:
            self._state.policy = before
            raise
        self._state.set_lifetime(["policy"], until_restart=_until_restart(request))
        return Done(f"policy {name}" if name else "the policy of the configuration")

    def _explain(self, request: ControlRequest) -> Done:
        address: Any = request.arguments.get("address")
        if address is not None and (type(address) is not int or not 0 <= address < 1 << 56):
            raise UsageError("explain: address: give a whole number below 2 ** 56")
        if "target" in request.arguments:
            name, processes = self._target(request, "explain it")
            if not processes:
                raise TargetError(f"target {name} has no processes: see hmd status")
        else:
            processes = [self._process(request, "explain it")]
        found = [self._daemon.explain(process, address) for process in processes[:MAX_EXPLAINED]]
        return Done(f"explained {len(found)} processes", document={"explained": found})

    def _check_setter(self, request: ControlRequest, pin: Pin, what: str) -> None:
        if not is_administrator(request.peer) and pin.uid != request.peer.uid:
            raise NotPermittedError(
                f"{what} was pinned by uid {pin.uid}: only that user, root and the daemon's user "
                "may change that"
            )

    def _set_pins(
        self,
        request: ControlRequest,
        pins: dict[ProcessId, Pin],
        processes: Sequence[ProcessId],
        pin: Pin,
    ) -> None:
        """Pin or move all of some processes; raises ``HmdError`` before any of them is."""
        for process in processes:
            if process in pins:
                self._check_setter(request, pins[process], f"process {process.pid}")
        try:
            self._check_count(request, pins, processes)
        except HmdError:
            # Reads /proc for each pin of all users: only where that may help.
            drop_stale_pins(self._state, self._proc)
            self._check_count(request, pins, processes)
        pins.update(dict.fromkeys(processes, pin))

    def _check_count(
        self,
        request: ControlRequest,
        pins: Mapping[ProcessId, Pin],
        processes: Sequence[ProcessId],
    ) -> None:
        """Raise ``HmdError`` where these would be too many for all users, or for this one."""
        new = sum(process not in pins for process in processes)
        if len(pins) + new > MAX_PINS:
            raise HmdError(f"at most {MAX_PINS} processes are pinned or moved: unpin some")
        own = sum(known.uid == request.peer.uid for known in pins.values())
        if not is_administrator(request.peer) and own + new > MAX_OWN_PINS:
            raise HmdError(
                f"{own} processes are pinned or moved for you, {new} more would be over"
                f" {MAX_OWN_PINS}: unpin some"
            )

    def _process(self, request: ControlRequest, what: str) -> ProcessId:
        """Return the process of a request; raises ``HmdError`` unless it is the caller's."""
        pid = _number(request, "pid", minimum=1)
        stat = read_stat(pid, self._proc)
        if stat is None or stat.exited:
            raise TargetError(f"no process {pid}: 'hmd status' lists the processes of targets")
        check_owner(request.peer, stat.process, what, self._proc)
        if stat.kernel_thread:
            raise TargetError(f"process {pid} is a kernel thread and has no memory")
        return stat.process

    def _target(self, request: ControlRequest, what: str) -> tuple[str, list[ProcessId]]:
        """Return a target and its processes; raises ``HmdError`` unless they are the caller's."""
        name = request.arguments["target"]
        known = self._daemon.target_names
        if not isinstance(name, str) or (name not in known and name not in self._state.target_pins):
            raise TargetError(
                f"no target {str(name)[:80]!r}: there are {', '.join(known) or 'none'}"
            )
        processes = [p for p, target in self._daemon.followed.items() if target == name]
        for process in processes:
            check_owner(request.peer, process, what, self._proc)
        if not processes:
            check_administrator(request.peer, "control a target without processes")
        return name, processes

    def _node(self, request: ControlRequest, key: str) -> int:
        """Return a node that pages may move to."""
        node = _number(request, key)
        self._check_nodes({node})
        if node in self._state.drained:
            raise HmdError(f"node {node} is drained: hmd undrain {node}, or name another")
        return node

    def _nodes(self, request: ControlRequest, *, existing: bool = True) -> frozenset[int]:
        """Return the nodes of ``node`` (a number or a list), or of ``tier``."""
        if "tier" in request.arguments:
            tier, tiers = _number(request, "tier"), self._daemon.topology.tiers
            if tier >= len(tiers):
                raise TargetError(f"no tier {tier}: there are 0 to {len(tiers) - 1}")
            return frozenset(tiers[tier])
        value = request.arguments.get("node")
        nodes: list[Any] = value if isinstance(value, list) else [value]
        if not nodes or len(nodes) > 1024 or not all(type(node) is int for node in nodes):
            raise UsageError("node: give the number of a node, or several")
        if existing:
            self._check_nodes(set(nodes))
        return frozenset(nodes)

    def _check_nodes(self, nodes: set[int]) -> None:
        known = [node.id for node in self._daemon.topology.nodes]
        if absent := sorted(nodes - set(known)):
            raise TargetError(
                f"no memory on node {', '.join(map(str, absent[:8]))}: nodes with memory are "
                f"{format_ids(known)} (see 'hmd topology')"
            )


def drop_stale_pins(state: AdminState, proc: Path = PROC) -> None:
    """Drop pins and moves of processes that have exited or are not their setter's any more.

    A process keeps its pid and start time when it executes a set-user-ID program.
    """

    def is_valid(process: ProcessId, pin: Pin) -> bool:
        return alive(process, proc) and owns(Peer(0, pin.uid, pin.gid), process, proc)

    state.retain_pins(is_valid)


def _until_restart(request: ControlRequest) -> bool:
    return request.arguments.get("until_restart") is True


def _number(request: ControlRequest, key: str, minimum: int = 0) -> int:
    value: Any = request.arguments.get(key)
    if type(value) is not int or not minimum <= value < 1 << 31:
        raise UsageError(f"{request.command}: {key}: give a whole number from {minimum}")
    return value


class CommandQueue:
    """The requests that wait; ``outcomes`` counts all by command and outcome."""

    def __init__(
        self,
        commands: AdminCommands,
        wake: Callable[[], None],
        log: logging.Logger,
        proc: Path = PROC,
        note_done: Callable[[str, int], None] = lambda text, uid: None,
    ) -> None:
        """Execute ``commands``; ``wake`` has the loop call :meth:`execute_waiting`.

        ``note_done`` is called with what an administrator had done, and the uid.
        """
        self._note_done = note_done
        self._commands, self._wake = commands, wake
        self._log, self._proc = log, proc
        self._request_log, self._rate = RequestLog(log), RequestRate()
        self._administrators: deque[_Waiting] = deque()
        self._users: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self.users_cpu_s = 0.0
        """CPU time that requests of users who are no administrators took of the loop."""
        self.outcomes = {name: {"done": 0, "refused": 0} for name in COMMANDS}

    @property
    def handlers(self) -> AdminHandlers:
        """The handler of each command, for the status socket."""
        return dict.fromkeys(COMMANDS, self.enqueue)

    def enqueue(self, request: ControlRequest) -> PendingAnswer:
        """Queue a request; the next :meth:`execute_waiting` answers it. For the socket's thread.

        Raises ``HmdError`` where it is refused at once.
        """
        pending: PendingAnswer = PendingAnswer()
        try:
            self._queue(request, pending)
        except HmdError as error:
            with self._lock:
                self.outcomes[request.command]["refused"] += 1
            self._note(request.peer, logging.WARNING, f"{_line(request)}: refused: {error}")
            raise
        self._wake()
        return pending

    def _queue(self, request: ControlRequest, pending: PendingAnswer) -> None:
        peer = request.peer
        administrator = is_administrator(peer)
        if not administrator:
            check_command(request)
            self._rate.admit(peer)
        with self._lock:
            waiting = self._administrators if administrator else self._users
            own = sum(other.peer.uid == peer.uid for other, _ in self._users)
            if len(waiting) >= MAX_WAITING or own >= MAX_OWN_WAITING:
                raise HmdError("too many admin requests wait: try again")
            waiting.append((request, pending))

    def _next(self, only: Container[str] | None) -> _Waiting | None:
        """Return the next request; None if it is not one of ``only`` these commands."""
        with self._lock:
            for waiting in (self._administrators, self._users):
                if waiting and (only is None or waiting[0][0].command in only):
                    return waiting.popleft()
                if waiting:
                    return None
        return None

    def execute_waiting(
        self, publish: Callable[[], None] = lambda: None, only: Container[str] | None = None
    ) -> None:
        """Execute the requests that wait: administrators' first, each in the order of arrival.

        Returns after as many as can wait at once, however many arrive meanwhile; before the first
        one of another command than ``only`` these.

        ``publish`` updates the status. It is called before each answer is sent, since a client
        that has its answer may ask for the status next.
        """
        self._request_log.flush()
        for _ in range(2 * MAX_WAITING):
            waiting = self._next(only)
            if waiting is None:
                return
            request, pending = waiting
            if not pending.set_running_or_notify_cancel():
                continue
            error: Exception | None = None
            answer, begun_s = b"", time.thread_time()
            try:
                done = self._execute(request)
                answer = json.dumps(
                    {**done.document, "done": done.line, "nodes": done.nodes}
                ).encode()
            except HmdError as refusal:
                error = refusal
            except Exception as defect:
                self._log.error("admin request %s failed", request.command, exc_info=defect)
                error = HmdError("the request failed: the daemon's log has the reason")
            publish()
            if not is_administrator(request.peer):
                cpu_s = time.thread_time() - begun_s
                self._rate.charge(request.peer, cpu_s)
                self.users_cpu_s += cpu_s
            if error is None:
                pending.set_result(answer)
            else:
                pending.set_exception(error)

    def _execute(self, request: ControlRequest) -> Done:
        peer, outcome = request.peer, "refused"
        try:
            check_caller(peer, self._proc)
            done = self._commands.execute(request)
            outcome = "done"
        except HmdError as error:
            self._note(peer, logging.WARNING, f"{_line(request)}: refused: {error}")
            raise
        finally:
            with self._lock:
                self.outcomes[request.command][outcome] += 1
        self._note(peer, logging.INFO, f"{_line(request)}: {done.line}")
        if is_administrator(peer) and request.command != "explain":
            self._note_done(f"hmd {request.command}: {done.line}", peer.uid)
        return done

    def _note(self, peer: Peer, level: int, text: str) -> None:
        if is_administrator(peer):
            self._log.log(level, "%s", text)
        else:
            self._request_log.write(peer, level, text)


def _line(request: ControlRequest) -> str:
    peer = request.peer
    return f"admin request: {request.command} by uid {peer.uid}, pid {peer.pid}"
