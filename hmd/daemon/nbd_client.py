# SPDX-License-Identifier: MIT
"""Memory of another machine as a block device, which outlives restarts of its server.

The unit of ``hmd enable --far nbd:HOST/EXPORT`` runs this: it connects once per CPU, and again
where connections are gone, while the kernel holds requests back. nbd-client 3.24 does not: with
``-persist``, too, the kernel fails requests once the last connection is gone, which ends programs.

Sources: include/uapi/linux/nbd-netlink.h, drivers/block/nbd.c, and the newstyle handshake of
github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hmd.base.errors import HmdError
from hmd.daemon.systemd import Notifier
from hmd.linux.swap import NBD_FAILURE, read_swap_areas

PORT: Final = 10809
TIMEOUT_S: Final = 10
"""Time after which a request without an answer is sent again, over another connection."""
GIVE_UP_S: Final = 3600
"""Time without any connection after which the kernel fails requests."""
_RETRY_S: Final = 1.0
_PAGE: Final = 4096

_CONNECT, _DISCONNECT, _RECONFIGURE = 1, 2, 3
_INDEX, _SIZE, _BLOCK_SIZE, _TIMEOUT, _SERVER_FLAGS, _SOCKETS, _GIVE_UP = 1, 2, 3, 4, 5, 7, 8
_NESTED: Final = 0x8000  # NLA_F_NESTED
_FIXED_NEWSTYLE, _NO_ZEROES, _MULTI_CONN = 1, 2, 1 << 8


def export_uuid(host: str, port: int, export: str, machine: str) -> str:
    """Return the UUID of the swap area that ``machine`` has on an export.

    By it an export is known again: after a restart of its machine it is blank.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"nbd://{host}:{port}/{export}#{machine}"))


def open_export(host: str, port: int, export: str) -> tuple[socket.socket, int, int]:
    """Return a socket that is ready for requests, bytes of the export, and flags of the server.

    Raises OSError where no server answers, HmdError where it does not serve what is needed.
    """
    sock = socket.create_connection((host, port), TIMEOUT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What is late is dropped before it is sent again: it must not arrive after what is newer.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TIMEOUT_S * 500)
        magic, flags = struct.unpack("!16sH", _receive(sock, 18))
        if magic != b"NBDMAGICIHAVEOPT" or not flags & _FIXED_NEWSTYLE:
            raise HmdError(f"port {port} is not that of an nbd server")
        flags &= _FIXED_NEWSTYLE | _NO_ZEROES
        name = export.encode()
        # The option NBD_OPT_EXPORT_NAME, which a server refuses by closing the connection.
        sock.sendall(struct.pack("!I8sII", flags, b"IHAVEOPT", 1, len(name)) + name)
        try:
            size_bytes, server_flags = struct.unpack("!QH", _receive(sock, 10))
        except ConnectionError:
            raise HmdError(f"the server has no export {export} for this machine") from None
        _receive(sock, 0 if flags & _NO_ZEROES else 124)
        if not server_flags & _MULTI_CONN:
            raise HmdError("the server does not serve several connections: take nbd-server")
    except BaseException:
        sock.close()
        raise
    return sock, size_bytes, server_flags


def has_swap(sock: socket.socket, area: str) -> bool:
    """Return whether an export begins with the swap area of this UUID (mkswap(8))."""
    sock.sendall(struct.pack("!IHHQQI", 0x25609513, 0, 0, 0, 0, _PAGE))  # NBD_CMD_READ
    magic, error, _ = struct.unpack("!IIQ", _receive(sock, 16))
    if magic != 0x67446698 or error:
        raise HmdError("the server cannot read the export")
    page = _receive(sock, _PAGE)
    return page[-10:] == b"SWAPSPACE2" and page[1036:1052] == uuid.UUID(area).bytes


def _receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError("the server closed the connection")
        data += part
    return data


class Nbd:
    """The kernel's nbd devices, by generic netlink; raises OSError as the kernel answers."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)  # NETLINK_GENERIC
        # The controller's command CTRL_CMD_GETFAMILY, by name; its answer has the number.
        family = self._request(16, 3, _attribute(2, b"nbd\0"))[1]
        self._family = struct.unpack("=H", family)[0]

    def command(
        self, command: int, values: Mapping[int, int], socks: Sequence[socket.socket] = ()
    ) -> int:
        """Carry out a command with these attributes; return the number of the device.

        RECONFIGURE puts sockets in the place of dead ones; ENOSPC where there is none.
        """
        attributes = [
            _attribute(kind, struct.pack("=I" if kind == _INDEX else "=Q", value))
            for kind, value in values.items()
        ]
        items = (_attribute(1, struct.pack("=I", sock.fileno())) for sock in socks)
        nested = b"".join(_attribute(1 | _NESTED, item) for item in items)
        attributes += [_attribute(_SOCKETS | _NESTED, nested)] if socks else []
        found = self._request(self._family, command, b"".join(attributes))
        return int(struct.unpack("=I", found[_INDEX])[0]) if _INDEX in found else values[_INDEX]

    def _request(self, family: int, command: int, attributes: bytes) -> dict[int, bytes]:
        """Send a command; return the attributes of its answer once the kernel has done it."""
        body = struct.pack("=BBH", command, 1, 0) + attributes
        # Flags: NLM_F_REQUEST and NLM_F_ACK.
        self._socket.send(struct.pack("=IHHII", len(body) + 16, family, 5, 0, 0) + body)
        found: dict[int, bytes] = {}
        while True:
            data = self._socket.recv(1 << 16)
            length, kind = struct.unpack_from("=IH", data)
            if kind == 2:  # NLMSG_ERROR: the end, also where there is none
                if error := -struct.unpack_from("=i", data, 16)[0]:
                    raise OSError(error, os.strerror(error))
                return found
            place = 20
            while place < length:
                size, name = struct.unpack_from("=HH", data, place)
                found[name] = data[place + 4 : place + size]
                place += (size + 3) & ~3


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", len(data) + 4, kind) + data + b"\0" * (-len(data) % 4)


class FarDevice:
    """A device over an export, with as many connections as the machine has CPUs, at least two.

    With one, the kernel fails requests whose answer was cut off. ``file`` has the device's path
    while there is one: a client that is started again goes on with a device in use. The file
    ``NBD_FAILURE`` next to it says why there is no connection, if there is none.
    """

    def __init__(self, host: str, port: int, export: str, area: str, file: Path) -> None:
        self._server, self._area, self._file, self._nbd = (host, port, export), area, file, Nbd()
        self._socks: list[socket.socket] = []
        self._count = max(os.cpu_count() or 1, 2)
        self._said = ""
        if self._in_use():
            self._index = int(file.read_text().removeprefix("/dev/nbd"))
            return
        opened = [open_export(*self._server) for _ in range(self._count)]
        self._socks = [sock for sock, _, _ in opened]
        _, size_bytes, flags = opened[0]
        values = {_SIZE: size_bytes, _BLOCK_SIZE: _PAGE, _SERVER_FLAGS: flags}
        values |= {_TIMEOUT: TIMEOUT_S, _GIVE_UP: GIVE_UP_S}
        self._index = self._nbd.command(_CONNECT, values, self._socks)
        file.write_text(f"/dev/nbd{self._index}\n")

    def keep_connected(self) -> None:
        """Wait until connections end, or a second where some are missing; replace them once."""
        poll = select.poll()
        for sock in self._socks:
            poll.register(sock, select.POLLRDHUP)
        missing = len(self._socks) < self._count
        ended = {fd for fd, _ in poll.poll(_RETRY_S * 1000 if missing else None)}
        for sock in [sock for sock in self._socks if sock.fileno() in ended]:
            sock.close()
            self._socks.remove(sock)
        try:
            while len(self._socks) < self._count:
                self._add_connection()
            said, lost = "all connections are there again", False
        except (OSError, HmdError) as error:
            said = f"{self._count - len(self._socks)} connections are missing: {error}"
            # Of a device in use, the client that is started again does not know the connections.
            lost = not (self._socks or getattr(error, "errno", None) == errno.ENOSPC)
        if said != self._said:
            sys.stderr.write(f"hmd-far: {self._server[0]}: {said}\n")
            self._file.with_name(NBD_FAILURE.name).write_text(said if lost else "")
        self._said = said

    def close(self) -> None:
        """End the device, unless it is still swap: its pages would be lost."""
        if not self._in_use():
            self._nbd.command(_DISCONNECT, {_INDEX: self._index})
            self._file.unlink()

    def _add_connection(self) -> None:
        sock, _, _ = open_export(*self._server)
        try:
            if not has_swap(sock, self._area):
                raise HmdError("its export has lost the pages that went out")
            self._nbd.command(_RECONFIGURE, {_INDEX: self._index}, [sock])
        except BaseException:
            sock.close()
            raise
        self._socks.append(sock)

    def _in_use(self) -> bool:
        path = self._file.read_text().strip() if self._file.exists() else ""
        return any(area.path == path for area in read_swap_areas())


def wait_for_no_reclaim() -> None:
    """Keep this process in memory, and its allocations from waiting for I/O; needs root.

    Else what frees memory could wait for memory (PR_SET_IO_FLUSHER of prctl(2)).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(57, 1, 0, 0, 0) or libc.mlockall(3):  # MCL_CURRENT | MCL_FUTURE
        raise OSError(ctypes.get_errno(), "PR_SET_IO_FLUSHER or mlockall(2) failed: run it as root")


def main() -> None:
    """``HOST PORT EXPORT UUID FILE``: connect, notify systemd, keep connected until SIGTERM."""
    host, port, export, area, file = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        wait_for_no_reclaim()
        device = FarDevice(host, int(port), export, area, Path(file))
        Notifier(os.environ).ready(f"{export} of {host}")
        try:
            while True:
                device.keep_connected()
        finally:
            device.close()
    except (OSError, HmdError) as error:
        sys.exit(f"hmd-far: {host}: {error}")


if __name__ == "__main__":
    main()
