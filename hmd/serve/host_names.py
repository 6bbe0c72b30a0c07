"""The Host header of a request: names that a foreign web page cannot have.

A page whose name resolves to this machine (DNS rebinding) makes a browser send that name. An
address, or a name that is known to be this machine's, cannot come from such a page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def host_name(host: str) -> str:
    """Return a Host header's name without its port, which may be any, so that ``ssh -L`` works."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdecimal() else host


def names_this_machine(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header has an address, ``localhost`` or one of ``names``."""
    name = host_name(host).lower()
    if name in LOOPBACK_NAMES or name in {known.lower() for known in names}:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
