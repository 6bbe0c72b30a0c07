# SPDX-License-Identifier: MIT
"""QEMU's monitor, by which tests plug and unplug the memory of a running machine."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from hmd.base.errors import HmdError


class MonitorError(HmdError):
    """QEMU refuses a command, or does not answer."""


class Monitor:
    """A QMP connection over a socket, open from construction to ``close``.

    It takes one JSON document per line (docs/interop/qmp-spec.rst in QEMU's source).
    """

    def __init__(self, connection: socket.socket, timeout_s: float = 30.0) -> None:
        """Negotiate capabilities; QEMU answers once it runs. Raises MonitorError."""
        self._socket = connection
        self._timeout_s = timeout_s
        self._events: list[dict[str, Any]] = []
        self._file = connection.makefile("rb")
        self._shaken = False

    def do(self, command: str, **arguments: Any) -> Any:
        """Return QEMU's answer to a command; raises MonitorError where QEMU refuses."""
        if not self._shaken:
            self._shaken = True
            self._hear()  # the greeting
            self.do("qmp_capabilities")
        request = {"execute": command, "arguments": arguments}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise MonitorError(f"QEMU's monitor does not answer: {error}") from None
        while True:
            heard = self._hear()
            if "event" in heard:
                self._events.append(heard)
            elif "error" in heard:
                raise MonitorError(f"QEMU refuses {command}: {heard['error'].get('desc')}")
            else:
                return heard.get("return")

    def wait(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Return the data of the next event of a name; events already received come first."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for heard in self._events:
                if heard["event"] == event:
                    self._events.remove(heard)
                    data: dict[str, Any] = heard.get("data", {})
                    return data
            self._events.append(self._hear(max(deadline_s - time.monotonic(), 0.01)))

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def _hear(self, timeout_s: float | None = None) -> dict[str, Any]:
        self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
        try:
            line = self._file.readline()
        except OSError as error:
            raise MonitorError(f"QEMU's monitor does not answer: {error}") from None
        if not line:
            raise MonitorError("QEMU's monitor closed the connection")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def plug(self, node: int) -> None:
        """Plug the memory of an absent node, as a memory module."""
        self.do("device_add", driver="pc-dimm", id=f"dimm{node}", memdev=f"ram{node}", node=node)

    def unplug(self, node: int, timeout_s: float = 120) -> None:
        """Unplug memory once the guest has offlined it, where its kernel can migrate all pages."""
        self.do("device_del", id=f"dimm{node}")
        self.wait("DEVICE_DELETED", timeout_s)
