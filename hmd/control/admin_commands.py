"""What each order does to the orders in force, and what it needs to be obeyed.

Takes a request, gives a line for people; ``HmdError`` in one line where it is refused. Who may is
:mod:`hmd.control.permission`; what comes of it is seen at the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from hmd.control.admin_state import Pin, Standing
from hmd.control.permission import check_administrator, check_owner, commands_all
from hmd.control.request import ControlRequest
from hmd.errors import NotPermittedError, TargetError, UsageError
from hmd.machine.process_id import PROC, ProcessId, read_stat
from hmd.machine.procfs import format_ids
from hmd.machine.topology import Topology

MAX_PINS: Final = 4096
"""Processes that are pinned or being moved by order."""

MAX_OWN_PINS: Final = 256
"""The same by order of one user who is no administrator."""


class ControlledDaemon(Protocol):
    """What orders are about."""

    @property
    def topology(self) -> Topology:
        """The nodes with memory."""
        ...

    @property
    def followed(self) -> Mapping[ProcessId, str]:
        """The processes that hmd follows, with the target of each."""
        ...

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets of the configuration."""
        ...

    def use_policy(self, name: str | None) -> None:
        """Plan with another policy, the configuration's if None; raises ``HmdError``."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, in a line for people; ``nodes`` are those that it was about."""

    line: str
    nodes: tuple[int, ...] = ()


class Commands:
    """The orders by name; ``does`` has what each does."""

    def __init__(self, standing: Standing, daemon: ControlledDaemon, proc: Path = PROC) -> None:
        """Change ``standing``, for ``daemon``."""
        self._standing, self._daemon, self._proc = standing, daemon, proc
        self.does: Mapping[str, Callable[[ControlRequest], Done]] = {
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "undrain": self._undrain,
            "pin": self._pin,
            "unpin": self._unpin,
            "migrate": self._migrate,
            "policy": self._policy,
        }

    def _pause(self, request: ControlRequest) -> Done:
        check_administrator(request.peer, "pause hmd")
        _only(request)
        was, self._standing.paused = self._standing.paused, True
        return Done("was paused already" if was else "paused: no page moves until hmd resume")

    def _resume(self, request: ControlRequest) -> Done:
        check_administrator(request.peer, "resume hmd")
        _only(request)
        was, self._standing.paused = self._standing.paused, False
        return Done("resumed" if was else "was not paused")

    def _drain(self, request: ControlRequest) -> Done:
        check_administrator(request.peer, "drain a node")
        nodes, standing = self._nodes(request), self._standing
        drained = standing.drained | nodes
        if not {node.id for node in self._daemon.topology.nodes} - drained:
            raise UsageError("no node would be left to hold the pages: drain fewer")
        pins = {**{str(p.pid): pin for p, pin in standing.pins.items()}, **standing.target_pins}
        for name, pin in pins.items():
            if pin.node in nodes:
                raise UsageError(f"{name} is pinned to node {pin.node}: hmd unpin {name} first")
        standing.drain(drained)
        return Done(f"draining node {format_ids(sorted(nodes))}", tuple(sorted(nodes)))

    def _undrain(self, request: ControlRequest) -> Done:
        check_administrator(request.peer, "undrain a node")
        # A node that was removed while it was drained is not there any more.
        nodes = self._nodes(request, there=False)
        if not nodes & self._standing.drained:
            raise TargetError(f"node {format_ids(sorted(nodes))} is not drained: see hmd status")
        self._standing.drain(self._standing.drained - nodes)
        return Done(f"node {format_ids(sorted(nodes))} is in use again")

    def _pin(self, request: ControlRequest) -> Done:
        _only(request, "pid", "target", "to")
        node = self._node(request, "to") if request.arguments.get("to") is not None else None
        pin = Pin(node, request.peer.uid)
        where = "where its pages are" if node is None else f"to node {node}"
        if "target" in request.arguments:
            return self._pin_target(request, pin, where)
        process = self._process(request, "pin it")
        self._keep(request, self._standing.pins, process, pin)
        self._standing.moves.pop(process, None)
        followed = process in self._daemon.followed
        note = "" if followed else "; hmd follows no such process: it moves nothing of it anyway"
        return Done(f"process {process.pid} is pinned {where}{note}")

    def _pin_target(self, request: ControlRequest, pin: Pin, where: str) -> Done:
        """Pin a target for good, or for others than administrators the processes that it has."""
        name, processes = self._target(request, "pin it")
        if commands_all(request.peer):
            if len(self._standing.target_pins) >= MAX_PINS:
                raise UsageError("too many targets are pinned: unpin some")
            self._standing.target_pins[name] = pin
            return Done(f"target {name} is pinned {where}, with the processes that it will have")
        for process in processes:
            self._keep(request, self._standing.pins, process, pin)
        return Done(f"{len(processes)} processes of target {name} are pinned {where}")

    def _unpin(self, request: ControlRequest) -> Done:
        _only(request, "pid", "target", "all")
        standing, peer = self._standing, request.peer
        if request.arguments.get("all") is True:
            check_administrator(peer, "unpin all")
            count = len(standing.pins) + len(standing.target_pins)
            standing.pins.clear()
            standing.target_pins.clear()
            return Done(f"{count} pins lifted")
        if "target" in request.arguments:
            name, processes = self._target(request, "unpin it")
            ours = [process for process in processes if process in standing.pins]
            pin = standing.target_pins.get(name)
            if pin is None and not ours:
                raise TargetError(f"target {name} is not pinned: see hmd status")
            if pin is not None:
                self._check_setter(request, pin, f"target {name}")
            for process in ours:
                self._check_setter(request, standing.pins[process], f"process {process.pid}")
            standing.target_pins.pop(name, None)
            for process in ours:
                del standing.pins[process]
            return Done(f"target {name} is pinned no longer")
        process = self._process(request, "unpin it")
        pin = standing.pins.get(process)
        if pin is None:
            by = standing.target_pins.get(self._daemon.followed.get(process, ""))
            told = "its target is: unpin that" if by else "see hmd status"
            raise TargetError(f"process {process.pid} is not pinned itself: {told}")
        self._check_setter(request, pin, f"process {process.pid}")
        del standing.pins[process]
        return Done(f"process {process.pid} is pinned no longer")

    def _migrate(self, request: ControlRequest) -> Done:
        _only(request, "pid", "to")
        node, process = self._node(request, "to"), self._process(request, "move it")
        target = self._daemon.followed.get(process)
        if target is None:
            raise TargetError(
                f"hmd does not follow process {process.pid}: hmd migrate --pid {process.pid} "
                f"--to {node} moves it by itself"
            )
        if process in self._standing.pins or target in self._standing.target_pins:
            raise UsageError(f"process {process.pid} is pinned: unpin it first")
        self._keep(request, self._standing.moves, process, Pin(node, request.peer.uid))
        return Done(f"process {process.pid} goes to node {node}")

    def _policy(self, request: ControlRequest) -> Done:
        check_administrator(request.peer, "set the policy")
        _only(request, "name")
        name = request.arguments.get("name")
        if name is not None and not isinstance(name, str):
            raise UsageError("policy: give the name of one, or none for the configuration's")
        before, self._standing.policy = self._standing.policy, name
        try:
            self._daemon.use_policy(name)
        except BaseException:
            self._standing.policy = before
            raise
        return Done(f"policy {name}" if name else "the policy of the configuration")

    def _check_setter(self, request: ControlRequest, pin: Pin, what: str) -> None:
        if not commands_all(request.peer) and pin.uid != request.peer.uid:
            raise NotPermittedError(
                f"{what} is where uid {pin.uid} ordered it to be: only that user, root and the "
                "daemon's user may change that"
            )

    def _keep(
        self, request: ControlRequest, orders: dict[ProcessId, Pin], process: ProcessId, pin: Pin
    ) -> None:
        self._standing.forget_exited(self._proc)
        if process in orders:
            self._check_setter(request, orders[process], f"process {process.pid}")
        elif len(orders) >= MAX_PINS:
            raise UsageError(f"{MAX_PINS} processes are pinned or moved: unpin some")
        elif not commands_all(request.peer):
            own = sum(known.uid == request.peer.uid for known in orders.values())
            if own >= MAX_OWN_PINS:
                raise UsageError(f"{own} processes are pinned or moved by your order: unpin some")
        orders[process] = pin

    def _process(self, request: ControlRequest, what: str) -> ProcessId:
        """Return the process that an order is about, which its caller may give orders of."""
        pid = _number(request, "pid", least=1)
        stat = read_stat(pid, self._proc)
        if stat is None or stat.exited:
            raise TargetError(f"no process {pid}: 'hmd status' lists those that hmd follows")
        check_owner(request.peer, stat.process, what, self._proc)
        if stat.kernel_thread:
            raise TargetError(f"process {pid} is a thread of the kernel and has no memory")
        return stat.process

    def _target(self, request: ControlRequest, what: str) -> tuple[str, list[ProcessId]]:
        """Return a target and its processes now, all of which the caller may give orders of."""
        name = request.arguments["target"]
        known = self._daemon.target_names
        if not isinstance(name, str) or (
            name not in known and name not in self._standing.target_pins
        ):
            raise TargetError(
                f"no target {str(name)[:80]!r}: there are {', '.join(known) or 'none'}"
            )
        processes = [p for p, target in self._daemon.followed.items() if target == name]
        for process in processes:
            check_owner(request.peer, process, what, self._proc)
        if not processes:
            check_administrator(request.peer, "give orders of a target without processes")
        return name, processes

    def _node(self, request: ControlRequest, key: str) -> int:
        """Return a node that can take pages."""
        node = _number(request, key)
        self._check_nodes({node})
        if node in self._standing.drained:
            raise UsageError(f"node {node} is drained: hmd undrain {node}, or name another")
        return node

    def _nodes(self, request: ControlRequest, *, there: bool = True) -> frozenset[int]:
        """Return the nodes of ``node`` (a number or several), or of ``tier``."""
        _only(request, "node", "tier")
        if "tier" in request.arguments:
            tier, tiers = _number(request, "tier"), self._daemon.topology.tiers
            if tier >= len(tiers):
                raise TargetError(f"no tier {tier}: there are 0 to {len(tiers) - 1}")
            return frozenset(tiers[tier])
        value = request.arguments.get("node")
        nodes: list[Any] = value if isinstance(value, list) else [value]
        if not nodes or len(nodes) > 1024 or not all(type(node) is int for node in nodes):
            raise UsageError("node: give the number of a node, or several")
        if there:
            self._check_nodes(set(nodes))
        return frozenset(nodes)

    def _check_nodes(self, nodes: set[int]) -> None:
        known = [node.id for node in self._daemon.topology.nodes]
        if absent := sorted(nodes - set(known)):
            raise TargetError(
                f"no memory on node {', '.join(map(str, absent[:8]))}: this machine has it on "
                f"{format_ids(known)} ('hmd topology' tells more)"
            )


def _only(request: ControlRequest, *names: str) -> None:
    """Raise ``UsageError`` for an argument that means nothing: it might be a mistyped one."""
    if wrong := sorted(request.arguments.keys() - set(names)):
        raise UsageError(f"{request.command}: no argument {wrong[0][:80]!r}")


def _number(request: ControlRequest, key: str, least: int = 0) -> int:
    value: Any = request.arguments.get(key)
    if type(value) is not int or not least <= value < 1 << 31:
        raise UsageError(f"{request.command}: {key}: give a whole number from {least}")
    return value
