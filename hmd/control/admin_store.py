# SPDX-License-Identifier: MIT
"""The admin state on disk: pause, policy, drains and pins outlive a restart of the daemon.

``admin.json`` in the state folder has two lines: the state as JSON, and the SHA-256 of that line.
It is replaced as a whole after each request that changed it. A file that is damaged, of a newer
version or not readable is refused and named; a damaged one is kept beside it as ``.damaged``.

Pins of processes hold within one boot: the kernel counts start times from the boot, so that after
another one the same pid and start time may be of another program.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from hmd.base.atomic_file import finished_file
from hmd.base.errors import HmdError
from hmd.linux.procfs import PROC, ProcessId, format_ids, read_text
from hmd.policy.admin import AdminState, Pin

FILE_NAME: Final = "admin.json"
MAX_BYTES: Final = 4 << 20
"""More than all pins that may exist take."""

Id = Annotated[int, Field(ge=0, lt=2**63)]
Node = Annotated[int, Field(ge=0, lt=2**15)]
Name = Annotated[str, Field(max_length=256)]


@dataclass(frozen=True, slots=True)
class StoredPin:
    """A pin of a process or, with a ``target``, of a target."""

    node: Node | None
    uid: Id
    gid: Id
    pid: Id = 0
    start_ticks: Id = 0
    target: Name = ""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What outlives a restart; ``boot_id`` is the boot that the pins of processes belong to."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid")

    version: Literal[1]
    boot_id: Name
    paused: bool
    policy: Name | None
    drained: Annotated[tuple[Node, ...], Field(max_length=1 << 15)]
    pins: Annotated[tuple[StoredPin, ...], Field(max_length=1 << 14)]


_CODEC: Final = TypeAdapter(StoredState)


class AdminStore:
    """Reads and writes the admin state in a folder; without one, nothing outlives the daemon."""

    def __init__(self, folder: Path | None, proc: Path = PROC) -> None:
        """Use ``folder``, which must exist; ``proc`` has the boot id."""
        self.path = None if folder is None else folder / FILE_NAME
        self._boot_id = read_text(proc / "sys/kernel/random/boot_id") or ""
        self._saved: StoredState | None = None

    def load(self) -> AdminState:
        """Return the stored state, an empty one without a file.

        Raises ``HmdError``, one line that names the file, where it cannot be used.
        """
        state = AdminState()
        if self.path is None:
            return state
        nothing = "no pause, pin or drain of before is in force"
        try:
            with self.path.open("rb") as file:
                stored = _parse(file.read(MAX_BYTES + 1))
        except FileNotFoundError:
            return state
        except OSError as error:
            raise HmdError(f"{self.path}: {error.strerror}: {nothing}") from None
        except ValueError as error:
            kept = self.path.with_name(f"{FILE_NAME}.damaged")
            with contextlib.suppress(OSError):
                self.path.replace(kept)
            raise HmdError(f"{self.path}: {error}: {nothing}; see {kept.name}") from None
        self._saved = stored
        state.paused, state.policy = stored.paused, stored.policy
        state.drained = frozenset(stored.drained)
        same_boot = stored.boot_id == self._boot_id != ""
        for pin in stored.pins:
            kept_pin = Pin(pin.node, pin.uid, pin.gid)
            if pin.target:
                state.target_pins[pin.target] = kept_pin
            elif same_boot:
                state.pins[ProcessId(pin.pid, pin.start_ticks)] = kept_pin
        return state

    def save(self, state: AdminState) -> None:
        """Write what outlives a restart, if it has changed; raises ``HmdError``."""
        if self.path is None:
            return
        stored = self._stored(state)
        if stored == self._saved or (self._saved is None and stored == self._stored(AdminState())):
            return
        line = _CODEC.dump_json(stored)
        digest = hashlib.sha256(line).hexdigest()
        with finished_file(self.path, private=True) as file:
            file.write(line + b"\n" + digest.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._saved = stored

    def _stored(self, state: AdminState) -> StoredState:
        brief = state.until_restart
        pins = [
            StoredPin(pin.node, pin.uid, pin.gid, pid=process.pid, start_ticks=process.start_ticks)
            for process, pin in state.pins.items()
            if not pin.until_restart
        ]
        pins += [
            StoredPin(pin.node, pin.uid, pin.gid, target=name)
            for name, pin in state.target_pins.items()
            if not pin.until_restart
        ]
        return StoredState(
            version=1,
            boot_id=self._boot_id,
            paused=state.paused and "pause" not in brief,
            policy=None if "policy" in brief else state.policy,
            drained=tuple(sorted(node for node in state.drained if f"node {node}" not in brief)),
            pins=tuple(pins),
        )


def _parse(data: bytes) -> StoredState:
    """Return the state of a file's contents; raises ValueError."""
    line, _, rest = data.partition(b"\n")
    if len(data) > MAX_BYTES or rest.strip() != hashlib.sha256(line).hexdigest().encode():
        raise ValueError("damaged (its checksum is wrong)")
    try:
        version = json.loads(line)["version"]
        if version != 1:
            raise ValueError(f"of version {version}, which this hmd does not know")
        return _CODEC.validate_json(line)
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise ValueError(f"not an admin state ({type(error).__name__})") from None


def describe(state: AdminState) -> str:
    """Return what is in force in a few words, empty for nothing."""
    words = ["paused"] if state.paused else []
    if state.policy is not None:
        words.append(f"policy {state.policy}")
    if state.drained:
        words.append(f"node {format_ids(sorted(state.drained))} drained")
    if count := len(state.pins):
        words.append(f"{count} process{'es' if count > 1 else ''} pinned")
    if state.target_pins:
        words.append(f"target {', '.join(sorted(state.target_pins))} pinned")
    return ", ".join(words)
