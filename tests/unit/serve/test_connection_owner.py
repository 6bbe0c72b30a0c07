# SPDX-License-Identifier: MIT
"""Whose a connection is, where no user of this machine holds its other end."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from hmd.serve.bounded_http import owner_of


class FromPeer:
    """A connection from an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def getpeername(self) -> tuple[str, int]:
        return self._address, 4711


def owner(address: str, uid: int | None = None) -> object:
    return owner_of(cast(socket.socket, FromPeer(address)), uid)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_owner_of_peers_is_their_address_or_ipv6_network(one: str, other: str, same: bool) -> None:
    assert (owner(one) == owner(other)) == same


def test_owner_of_local_user_is_the_user_from_any_address() -> None:
    assert owner("127.0.0.1", 1000) == owner("::1", 1000) != owner("127.0.0.1", 1001)
