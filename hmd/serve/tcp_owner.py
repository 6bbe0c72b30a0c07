"""The user at the other end of a TCP connection of this machine.

The kernel knows the owner of every socket and reports it over sock_diag(7) for the addresses and
ports of a connection, in a time that does not depend on how many there are. Needs no privilege;
``None`` where the other end is on another machine or in another network namespace, or the kernel
was built without CONFIG_INET_DIAG.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Hashable
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_FLAG: Final = 1
_NO_COOKIE: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr (netlink(7)): length, type, flags, sequence, port."""
_QUERY: Final = struct.Struct("=BBBBI2s2s16s16sIII")
"""struct inet_diag_req_v2: family, protocol, extensions, padding, states, ports, addresses,
interface, cookie."""
_UID_OFFSET: Final = _HEADER.size + 4 + 48 + 12
"""idiag_uid in struct inet_diag_msg: four bytes, inet_diag_sockid, three numbers."""
_ALL_STATES: Final = 0xFFFFFFFF
_TIMEOUT_S: Final = 1.0


class TcpOwners:
    """Looks owners of connections up; for one thread."""

    def __init__(self) -> None:
        """Open a netlink socket, where this process may."""
        self._netlink: socket.socket | None = None
        try:
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
            self._netlink = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(_TIMEOUT_S)
        except OSError:
            pass  # a sandbox without AF_NETLINK: owners are addresses only
        self._sequence = 0

    def close(self) -> None:
        """Close the netlink socket."""
        if self._netlink is not None:
            self._netlink.close()

    def uid(self, connection: socket.socket) -> int | None:
        """Return the user of the other end of a TCP connection, None where that is not known."""
        if self._netlink is None:
            return None
        try:
            client, server = connection.getpeername(), connection.getsockname()
            if client[0] != server[0] and not ipaddress.ip_address(client[0]).is_loopback:
                return None
            return self._query(connection.family, client, server)
        except (OSError, ValueError):
            return None

    def _query(self, family: int, client: tuple[str, int], server: tuple[str, int]) -> int | None:
        assert self._netlink is not None
        self._sequence += 1
        ports = [end[1].to_bytes(2, "big") for end in (client, server)]
        addresses = [socket.inet_pton(family, end[0]) for end in (client, server)]
        query = _QUERY.pack(
            family,
            socket.IPPROTO_TCP,
            0,
            0,
            _ALL_STATES,
            *ports,
            *addresses,
            0,
            _NO_COOKIE,
            _NO_COOKIE,
        )
        length = _HEADER.size + len(query)
        header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_FLAG, self._sequence, 0)
        self._netlink.sendto(header + query, (0, 0))
        while True:
            answer = self._netlink.recv(4096)
            _, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            if sequence == self._sequence:
                break  # an answer that was too late for its own query is skipped
        if kind != _SOCK_DIAG_BY_FAMILY:
            return None
        (uid,) = struct.unpack_from("=I", answer, _UID_OFFSET)
        return int(uid)


def owner_of(connection: socket.socket, uid: int | None) -> Hashable:
    """Return whose a connection is: a user of this machine, else an address or IPv6 /64 network."""
    if uid is not None:
        return ("uid", uid)
    address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
    if address.version == 6:
        mapped = address.ipv4_mapped
        return ("address", str(mapped)) if mapped else ("network", address.packed[:8])
    return ("address", str(address))
